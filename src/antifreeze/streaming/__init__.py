"""Where litData keeps these names, so that ``from litdata.streaming...`` moves over by its first word."""

from antifreeze.api import (
    CombinedStreamingDataset,
    ParallelStreamingDataset,
    StreamingDataLoader,
    StreamingDataset,
)

__all__ = ["CombinedStreamingDataset", "ParallelStreamingDataset", "StreamingDataLoader", "StreamingDataset"]
