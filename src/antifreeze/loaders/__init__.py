"""The two loaders. ``DataLoader`` is apart, in ``loaders.dataloader``: it imports torch."""

from antifreeze.loaders._streaming import StreamingDataLoader

__all__ = [
    "StreamingDataLoader",
]
