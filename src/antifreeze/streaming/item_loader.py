"""Where litData keeps its item loaders."""

from antifreeze.datasets import ParquetLoader

__all__ = ["ParquetLoader"]
