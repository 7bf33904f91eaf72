"""File contents: how Parquet is read, and what its columns become."""

from antifreeze.formats._arrays import infer_shapes
from antifreeze.formats._build_manifest import build_manifest, mismatch
from antifreeze.formats._columns import Converter, PieceLocation
from antifreeze.formats._footers import Footer, read_footer
from antifreeze.formats._leaves import Leaf, LeafKind
from antifreeze.formats._parquet import Parquet

__all__ = [
    "Converter",
    "Footer",
    "Leaf",
    "LeafKind",
    "Parquet",
    "PieceLocation",
    "build_manifest",
    "infer_shapes",
    "mismatch",
    "read_footer",
]
