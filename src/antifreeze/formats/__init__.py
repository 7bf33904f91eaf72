"""File contents: how Parquet is read, and what its columns become."""

from antifreeze.formats._build_manifest import build_manifest
from antifreeze.formats._columns import Converter, PieceLocation
from antifreeze.formats._footers import Footer, read_footer
from antifreeze.formats._leaves import Leaf, LeafKind
from antifreeze.formats._parquet import Parquet
from antifreeze.formats._schema_merge import mismatch
from antifreeze.formats._shapes import infer_shapes

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
