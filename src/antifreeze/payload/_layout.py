"""Where the parts of a payload are in memory, so that a worker can find them."""

from __future__ import annotations

import os
from typing import NamedTuple

from antifreeze.ipc import Bytes, FilePart, map_bytes, map_part
from antifreeze.payload._shared_list import SentList

BytesAt = tuple[int, int] | FilePart
"""Location of some bytes: offset and size in the payload, or a part of a file."""


def bytes_at(locations: list[BytesAt], payload: int, handles: list[int]) -> list[Bytes]:
    """Return the bytes at these locations. The payload is mapped copy-on-write: writes stay in this process."""
    memory = map_bytes(payload, os.fstat(payload).st_size, "c")
    return [map_part(p, handles) if isinstance(p, FilePart) else memory[p[0] : sum(p)] for p in locations]


class PayloadLayout(NamedTuple):
    """Where a program is. The descriptors of the payload and of transferred handles are sent with the message."""

    pieces: list[BytesAt]
    """The program's pickle, then its buffers, then those of large lists."""
    lists: list[SentList]
    tracker: int
    """Index of the handle of the trainer's resource tracker; -1 if it has none."""
