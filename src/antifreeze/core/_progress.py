"""A progress bar on a terminal, and nothing anywhere else."""

from __future__ import annotations

import sys
import time
from typing import IO, Self

_WIDTH = 28
_EVERY_S = 0.1


class Progress:
    """Counts up to ``total`` on one line of a terminal; silent when the output is not one.

    Not thread-safe: one thread advances it.
    """

    def __init__(self, label: str, total: int, unit: str, stream: IO[str] | None = None) -> None:
        self._label, self._total, self._unit = label, total, unit
        self._stream = sys.stderr if stream is None else stream
        self._shown = self._stream is not None and self._stream.isatty()
        self._done = 0
        self._start_s = time.monotonic()
        self._next_s = self._start_s + _EVERY_S

    def advance(self, by: int = 1) -> None:
        """Count ``by`` more units as done."""
        self._done += by
        if self._shown and time.monotonic() >= self._next_s:
            self._draw()
            self._next_s = time.monotonic() + _EVERY_S

    def _draw(self, end: str = "") -> None:
        fraction = self._done / self._total if self._total else 1.0
        filled = int(fraction * _WIDTH)
        rate = self._done / max(time.monotonic() - self._start_s, 1e-9)
        bar = "━" * filled + " " * (_WIDTH - filled)
        text = f"\r{self._label} {bar} {self._done:,}/{self._total:,} {self._unit}  {rate:,.0f} {self._unit}/s "
        self._stream.write(text + end)
        self._stream.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            self._draw(end="\n")
