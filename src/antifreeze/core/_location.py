"""Where a loader is while it waits: made by decoders and worker pools, shown to other ranks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Location:
    """What a loader waits for, as messages name it."""

    worker: str = ""
    """Who: ``worker 1 (pid 99)``, ``decoder thread 0``."""
    stage: str = ""
    what: str = ""
    """The file, the row, the sample."""
    still_s: float = 0.0
    """For how long it has made no progress."""
    line: str = ""
    """The line of Python that it is on, if that is known."""
