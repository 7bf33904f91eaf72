"""What users read: Parquet files as rows and batches, alone, mixed or side by side."""

from antifreeze.datasets._combined import CombinedStreamingDataset
from antifreeze.datasets._composite import check_overrides
from antifreeze.datasets._dataset import ParquetLoader, StreamingDataset, subsample, train_test_split
from antifreeze.datasets._delivery import Batch, Delivery
from antifreeze.datasets._parallel import ParallelStreamingDataset
from antifreeze.datasets._reading import (
    MAX_STREAMS,
    MAX_WINDOW_ROWS,
    STALL_LIMIT_S,
    ReadOptions,
    RunShape,
    machine_memory,
    make_run_shape,
    parse_limit,
)
from antifreeze.datasets._row_source import INFINITE, ReadRequest, RowDataset, RowSource
from antifreeze.datasets._source import index_parquet_dataset, open_source
from antifreeze.datasets._to_batch import collate, finisher, row_of
from antifreeze.datasets._transforms import Moment, batched
from antifreeze.datasets._user_code import UserCode, row_batch, row_location

__all__ = [
    "Batch",
    "CombinedStreamingDataset",
    "Delivery",
    "INFINITE",
    "MAX_STREAMS",
    "MAX_WINDOW_ROWS",
    "Moment",
    "ParallelStreamingDataset",
    "ParquetLoader",
    "ReadOptions",
    "ReadRequest",
    "RowDataset",
    "RowSource",
    "RunShape",
    "STALL_LIMIT_S",
    "StreamingDataset",
    "UserCode",
    "batched",
    "check_overrides",
    "collate",
    "finisher",
    "index_parquet_dataset",
    "machine_memory",
    "make_run_shape",
    "open_source",
    "parse_limit",
    "row_batch",
    "row_location",
    "row_of",
    "subsample",
    "train_test_split",
]
