"""Where litData keeps its item loaders."""

from antifreeze.api import ParquetLoader

__all__ = ["ParquetLoader"]
