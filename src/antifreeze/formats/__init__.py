"""What stands in the files: how Parquet is read, and what its columns become."""

from antifreeze.formats._agreement import mismatch
from antifreeze.formats._columns import Converter, Where
from antifreeze.formats._footers import Footer, read_footer
from antifreeze.formats._leaves import Kind, Leaf
from antifreeze.formats._parquet import Parquet, ParquetFragment
from antifreeze.formats._shapes import infer_shapes
from antifreeze.formats._survey import build_manifest

__all__ = [
    "Converter",
    "Footer",
    "Kind",
    "Leaf",
    "Parquet",
    "ParquetFragment",
    "Where",
    "build_manifest",
    "infer_shapes",
    "mismatch",
    "read_footer",
]
