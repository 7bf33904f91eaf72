"""Where litData keeps these names, so that ``from litdata.streaming...`` moves over by its first word."""

from antifreeze.api import StreamingDataLoader, StreamingDataset

__all__ = ["StreamingDataLoader", "StreamingDataset"]
