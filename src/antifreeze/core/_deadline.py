"""The one way to wait: until a moment, never for a duration."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment after which waiting is an error.

    A timeout that is passed down a call chain restarts at every level; a moment can be passed on unchanged.
    """

    at_s: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """Return the moment that lies this many seconds ahead."""
        return cls(time.monotonic() + seconds)

    @property
    def left_s(self) -> float:
        """Seconds left; never negative, so that it can be given to any ``timeout=``."""
        return max(0.0, self.at_s - time.monotonic())

    @property
    def passed(self) -> bool:
        """Whether the moment has come."""
        return self.left_s == 0.0
