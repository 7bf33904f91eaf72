"""How many tasks a worker should have at a time: a few large ones, or many tiny ones. Pure."""

from __future__ import annotations

AHEAD = 2
"""As many as torch's loader gives to each worker."""
_GROUP_S = 0.04
_GROUP_NBYTES = 1 << 24
_MOST = 256
_GAIN = 0.2


class PrefetchTuner:
    """Learns how long tasks take and how large they are.

    A message costs a tenth of a millisecond or so on each side. For tasks that take less than that, it is the cost; so
    they are given out, and come back, many at a time. Who sets ``prefetch_factor`` gets exactly that many.
    """

    def __init__(self, prefetch_factor: int | None) -> None:
        self._fixed = prefetch_factor
        self._seconds = self._nbytes = -1.0
        self._sent_nbytes = 0.0
        self.quota = AHEAD if prefetch_factor is None else max(1, prefetch_factor)
        """How many tasks a worker may have."""

    def sent(self, nbytes: int) -> None:
        """Take into account what was sent along with a task: rows that wait for a worker take memory too."""
        self._sent_nbytes = max(self._sent_nbytes + _GAIN * (nbytes - self._sent_nbytes), float(nbytes))

    def observe(self, seconds: float, nbytes: int) -> None:
        """Take one task into account."""
        if self._seconds < 0:
            self._seconds, self._nbytes = seconds, float(nbytes)
        self._seconds += _GAIN * (seconds - self._seconds)
        # Large ones are believed at once, small ones slowly: it is memory that this bounds.
        self._nbytes = max(self._nbytes + _GAIN * (nbytes - self._nbytes), float(nbytes))
        if self._fixed is None:
            by_time = _GROUP_S / max(self._seconds, 1e-6)
            by_size = _GROUP_NBYTES / max(self._nbytes, self._sent_nbytes, 1.0)
            self.quota = int(max(AHEAD, min(by_time, by_size, _MOST)))

    @property
    def room(self) -> int:
        """For how many tasks there should be room with a worker before it is sent any: it works on the others."""
        return 1 if self._fixed is not None else max(1, self.quota // 2)
