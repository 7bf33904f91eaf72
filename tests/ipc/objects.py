"""Classes that can be found by name in any process, as those of a user's module can."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass
class Box:
    """Holds something."""

    content: Any


class Pair(NamedTuple):
    """Holds two things."""

    first: Any
    second: Any
