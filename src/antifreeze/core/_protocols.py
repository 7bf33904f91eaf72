"""The plug points, in one place. Nothing is inherited; ``antifreeze.testing`` has the suite that each must pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol


class Fragment(Protocol):
    """One opened fragment. Used by one thread at a time, though not always by the same one."""

    def pieces(self) -> Iterator[Any]:
        """Yield the rows from front to back as Arrow record batches that share no memory with each other.

        Raises ``CorruptFile`` at the first piece that does not decode and names the rows; what came before is good.
        """
        ...

    def close(self) -> None:
        """Free what is held. May be called twice, and before the end."""
        ...


class Format(Protocol):
    """A kind of file that can be read in fragments."""

    def open(self, path: str, group: int, columns: Sequence[str], piece_rows: int) -> Fragment:
        """Open a fragment for the given columns, to be decoded ``piece_rows`` rows at a time.

        Called in a decoder thread, once for each fragment and epoch. Raises ``CorruptFile``.
        """
        ...
