"""Messages and shared memory between processes."""

from antifreeze.ipc._channel import Channel, Closed, pair
from antifreeze.ipc._codec import Packed, dump, fingerprint, is_found, pack, unpack, unshare
from antifreeze.ipc._heartbeat import (
    HEARTBEAT_NBYTES,
    Heartbeat,
    HeartbeatReader,
    HeartbeatWriter,
    Slowest,
    Stage,
    positions_of,
    repr_of,
)
from antifreeze.ipc._mapped_memory import (
    Bytes,
    FilePart,
    Mappings,
    create,
    map_bytes,
    map_part,
    reduce_memmap,
    reduce_mmap,
)
from antifreeze.ipc._segments import Inbox, Opened, Outbox, Piece, SegmentUpdate
from antifreeze.ipc._tensors import is_tensor, reduce_tensor, tensor_of

__all__ = [
    "Bytes",
    "Channel",
    "Closed",
    "FilePart",
    "HEARTBEAT_NBYTES",
    "Heartbeat",
    "HeartbeatReader",
    "HeartbeatWriter",
    "Inbox",
    "Mappings",
    "Opened",
    "Outbox",
    "Packed",
    "Piece",
    "SegmentUpdate",
    "Slowest",
    "Stage",
    "create",
    "dump",
    "fingerprint",
    "is_found",
    "is_tensor",
    "map_bytes",
    "map_part",
    "pack",
    "pair",
    "positions_of",
    "reduce_memmap",
    "reduce_mmap",
    "reduce_tensor",
    "repr_of",
    "tensor_of",
    "unpack",
    "unshare",
]
