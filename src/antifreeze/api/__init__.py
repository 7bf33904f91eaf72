"""The names that users call."""

from antifreeze.api._combined import CombinedStreamingDataset
from antifreeze.api._dataset import StreamingDataset
from antifreeze.api._index import index_parquet_dataset
from antifreeze.api._loader import StreamingDataLoader
from antifreeze.api._parallel import ParallelStreamingDataset
from antifreeze.api._parquet_loader import ParquetLoader
from antifreeze.api._row_code import Batched, batched
from antifreeze.api._split import subsample, train_test_split

__all__ = [
    "Batched",
    "CombinedStreamingDataset",
    "ParallelStreamingDataset",
    "ParquetLoader",
    "StreamingDataLoader",
    "StreamingDataset",
    "batched",
    "index_parquet_dataset",
    "subsample",
    "train_test_split",
]
