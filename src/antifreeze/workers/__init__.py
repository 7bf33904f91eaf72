"""Who makes tasks into blocks: the calling thread, or decoder threads beside it."""

from antifreeze.workers._arena import Arena
from antifreeze.workers._block import Arrays, ArrowRows, Block, Decoded
from antifreeze.workers._board import Note
from antifreeze.workers._bounded import bounded
from antifreeze.workers._produce import Blocks, InlineBlocks, Producer, Release
from antifreeze.workers._stream import Decoding, StreamReader
from antifreeze.workers._threads import ThreadedBlocks

__all__ = [
    "Arena",
    "Arrays",
    "ArrowRows",
    "Block",
    "Decoded",
    "Blocks",
    "Decoding",
    "InlineBlocks",
    "Note",
    "Producer",
    "Release",
    "StreamReader",
    "ThreadedBlocks",
    "bounded",
]
