"""Where litData keeps these names, so that ``from litdata.streaming...`` moves over by its first word."""

from antifreeze.datasets import CombinedStreamingDataset, ParallelStreamingDataset, StreamingDataset
from antifreeze.loaders import StreamingDataLoader

__all__ = ["CombinedStreamingDataset", "ParallelStreamingDataset", "StreamingDataLoader", "StreamingDataset"]
