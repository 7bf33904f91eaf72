"""How many tasks a worker should hold at a time: a few large ones, or many tiny ones. Pure."""

from __future__ import annotations

AHEAD = 2
"""The default prefetch factor of torch's DataLoader."""
_GROUP_S = 0.04
_GROUP_NBYTES = 1 << 24
_MAX_QUOTA = 256
_GAIN = 0.2


class PrefetchTuner:
    """Tracks how long tasks take and how large they are, and sets the quota from that.

    A message costs about a tenth of a millisecond on each side. For shorter tasks that overhead dominates, so they are
    sent and returned in groups. An explicit ``prefetch_factor`` is used as is.
    """

    def __init__(self, prefetch_factor: int | None) -> None:
        self._fixed = prefetch_factor
        self._seconds = self._nbytes = -1.0
        self._sent_nbytes = 0.0
        self.quota = AHEAD if prefetch_factor is None else max(1, prefetch_factor)
        """Maximum number of tasks a worker holds."""

    def sent(self, nbytes: int) -> None:
        """Account for data sent along with a task: rows queued at a worker take memory too."""
        self._sent_nbytes = max(self._sent_nbytes + _GAIN * (nbytes - self._sent_nbytes), float(nbytes))

    def observe(self, seconds: float, nbytes: int) -> None:
        """Account for one finished task."""
        if self._seconds < 0:
            self._seconds, self._nbytes = seconds, float(nbytes)
        self._seconds += _GAIN * (seconds - self._seconds)
        # A large task raises the estimate at once, small ones lower it slowly: the estimate bounds memory.
        self._nbytes = max(self._nbytes + _GAIN * (nbytes - self._nbytes), float(nbytes))
        if self._fixed is None:
            by_time = _GROUP_S / max(self._seconds, 1e-6)
            by_size = _GROUP_NBYTES / max(self._nbytes, self._sent_nbytes, 1.0)
            self.quota = int(max(AHEAD, min(by_time, by_size, _MAX_QUOTA)))

    @property
    def room(self) -> int:
        """Free slots a worker should have before it is sent more tasks, so that tasks are sent in groups."""
        return 1 if self._fixed is not None else max(1, self.quota // 2)
