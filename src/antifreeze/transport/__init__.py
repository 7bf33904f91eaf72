"""How objects travel between processes, and how a process is seen from another one."""

from antifreeze.transport._board import (
    BOARD_NBYTES,
    BoardReader,
    BoardWriter,
    Record,
    Slowest,
    Stage,
    places_of,
    repr_of,
)
from antifreeze.transport._channel import Channel, Closed, pair
from antifreeze.transport._codec import Packed, dump, fingerprint, pack, unpack, unshare
from antifreeze.transport._mapped import FilePart, Mappings, map_part, reduce_memmap, reduce_mmap
from antifreeze.transport._memory import Bytes, create, map_bytes
from antifreeze.transport._segments import Inbox, News, Opened, Outbox, Piece
from antifreeze.transport._tensors import is_tensor, reduce_tensor, tensor_of

__all__ = [
    "BOARD_NBYTES",
    "BoardReader",
    "BoardWriter",
    "Bytes",
    "Channel",
    "Closed",
    "FilePart",
    "Inbox",
    "Mappings",
    "News",
    "Opened",
    "Outbox",
    "Packed",
    "Piece",
    "Record",
    "Slowest",
    "Stage",
    "create",
    "dump",
    "fingerprint",
    "is_tensor",
    "map_bytes",
    "map_part",
    "pack",
    "pair",
    "places_of",
    "reduce_memmap",
    "reduce_mmap",
    "reduce_tensor",
    "repr_of",
    "tensor_of",
    "unpack",
    "unshare",
]
