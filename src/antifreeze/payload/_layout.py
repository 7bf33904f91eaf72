"""Where the parts of a payload lie in memory: what a worker needs to find them."""

from __future__ import annotations

import os
from typing import NamedTuple

from antifreeze.ipc import Bytes, FilePart, map_bytes, map_part
from antifreeze.payload._shared_list import SentList

BytesAt = tuple[int, int] | FilePart
"""Where some bytes stand: from a place on in the payload, so many; or in a file."""


def bytes_at(places: list[BytesAt], payload: int, handles: list[int]) -> list[Bytes]:
    """Return the bytes at these places; what is written to the payload's is the writer's own."""
    memory = map_bytes(payload, os.fstat(payload).st_size, "c")
    return [map_part(p, handles) if isinstance(p, FilePart) else memory[p[0] : sum(p)] for p in places]


class PayloadLayout(NamedTuple):
    """Where a program is found. The payload's descriptor comes with the message, and those of handed-down handles."""

    pieces: list[BytesAt]
    """The program's pickle comes first, then its buffers, and those of large lists at the end."""
    lists: list[SentList]
    tracker: int
    """Which handle leads to the trainer's tracker of named memory; -1 if it has none."""
