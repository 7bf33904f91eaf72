"""Decoder threads in the trainer, from fragments to blocks."""

from antifreeze.decode._block import Arena, Arrays, ArrowRows, Block, Decoded
from antifreeze.decode._combine import (
    CombinedBlocks,
    Pairs,
    Rebatcher,
    StridedBlocks,
    mixed,
    one_after_the_other,
    side_by_side,
)
from antifreeze.decode._produce import Blocks, InlineBlocks, Producer, Release
from antifreeze.decode._stream import Decoding, StreamReader
from antifreeze.decode._thread_progress import ThreadProgress, bounded
from antifreeze.decode._threads import ThreadedBlocks

__all__ = [
    "Arena",
    "Arrays",
    "ArrowRows",
    "Block",
    "Blocks",
    "CombinedBlocks",
    "Decoded",
    "Decoding",
    "InlineBlocks",
    "Pairs",
    "Producer",
    "Rebatcher",
    "Release",
    "StreamReader",
    "StridedBlocks",
    "ThreadProgress",
    "ThreadedBlocks",
    "bounded",
    "mixed",
    "one_after_the_other",
    "side_by_side",
]
