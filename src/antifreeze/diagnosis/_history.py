"""The history of a loader over all its epochs: the numbers behind ``report()``, and the file of skipped samples.

The file has one line of JSON for each sample. Training continues whatever happens to it: a path that cannot be written
raises when the loader is created, and later problems (a full disk, a removed directory) are reported once.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from antifreeze.core import ConfigError, get_logger, one_line, open_to_append, write_all
from antifreeze.diagnosis._policy import warn_after_s
from antifreeze.diagnosis._report import MAX_SKIPS, STAGES, Report, Restart, Skip

logger = get_logger()

_MAX_REASON_CHARS = 4_000
_MAX_RESTARTS = 1000
_MAX_NOTES = 20


class SkipLog:
    """Appends to a file owned by this user; several ranks may write to the same file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Create the file if it does not exist.

        Raises:
            ConfigError: the file cannot be written: missing directory, symbolic link, pipe, other owner, full disk.
        """
        # Absolute, because the working directory may have changed by the time the first sample fails.
        self.path = Path(path).absolute()
        self._has_failed = False
        self._is_torn = False
        try:
            os.close(open_to_append(self.path))
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            hint = "pass the path of a file in an existing, writable directory"
            raise ConfigError(
                f"cannot write skip_log {str(path)!r}: {reason}", hint=hint, argument="skip_log"
            ) from error

    def add(self, skip: Skip) -> None:
        """Append a line. Never raises because of the file."""
        sample, reason = one_line(skip.sample), one_line(skip.reason, _MAX_REASON_CHARS)
        values = {"sample": sample, "reason": reason, "epoch": skip.epoch, "step": skip.step}
        try:
            handle = open_to_append(self.path)
            try:
                # A full disk may have taken part of a line, which the next line must not continue.
                start = "\n" if self._is_torn else ""
                self._is_torn = True
                write_all(handle, f"{start}{json.dumps(values)}\n".encode())
                self._is_torn = False
            finally:
                os.close(handle)
        except OSError as error:
            if not self._has_failed:
                text = "cannot log skipped samples to %s: %s; training continues, and report() still counts them"
                logger.warning(f"antifreeze: {text}", self.path, error.strerror or str(error))
            self._has_failed = True


def open_skip_log(path: str | os.PathLike[str] | None) -> SkipLog | None:
    """Return the log for the argument ``skip_log``, or None if it is None."""
    return None if path is None else SkipLog(path)


@dataclass(slots=True)
class History:
    """Counts and remembers. One for each loader, kept over all its epochs."""

    num_workers: int
    batch_size: int | None
    skip_log: SkipLog | None = None
    epochs: int = 0
    batches: int = 0
    samples: int = 0
    nbytes: int = 0
    num_skipped: int = 0
    skipped: list[Skip] = field(default_factory=list)
    restarts: list[Restart] = field(default_factory=list)
    slow: list[str] = field(default_factory=list)
    stage_s: dict[str, float] = field(default_factory=dict)
    slowest: tuple[str, float] | None = None
    memory: dict[int, int] = field(default_factory=dict)
    waiting_s: float = 0.0
    training_s: float = 0.0
    _left_s: float | None = None
    """When the last batch was handed over."""
    _began_s: float | None = None
    _others: list[Callable[[], Mapping[str, float]]] = field(default_factory=list)

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        # Without ``_others``, which belong to this process. The first part is for objects that have a ``__dict__``.
        return None, {name: getattr(self, name) for name in self.__slots__} | {"_others": []}

    def asked(self) -> None:
        """Note that a batch is asked for: until now the training loop was at work."""
        now_s = time.perf_counter()
        if self._left_s is not None:
            self.training_s += now_s - self._left_s
        self._began_s = now_s

    def answered(self) -> None:
        """Note that it is handed over, or that there is none."""
        now_s = time.perf_counter()
        if self._began_s is not None:
            self.waiting_s += now_s - self._began_s
        self._left_s = now_s

    def ended(self) -> None:
        """Note that an epoch is over: what comes until the next one is not counted."""
        self._left_s = self._began_s = None

    def progress(self, first: int, stall_limit_s: float | None = None) -> dict[str, Any]:
        """Return the progress of an epoch, as fields of a rank's status; ``first`` is ``batches`` when it began."""
        now_s = time.perf_counter()
        asked_s, left_s = self._began_s, self._left_s
        waits = asked_s is not None and (left_s is None or left_s < asked_s)
        progress = {
            "step": self.batches - first,
            "waited_s": now_s - asked_s if waits and asked_s is not None else 0.0,
            "idle_s": now_s - (left_s if left_s is not None else asked_s if asked_s is not None else now_s),
            "warn_s": warn_after_s(stall_limit_s),
        }
        return progress if stall_limit_s is None else progress | {"silent_s": stall_limit_s}

    def delivered(self, samples: int, nbytes: int) -> None:
        """Count a batch."""
        self.batches += 1
        self.samples += samples
        self.nbytes += nbytes

    @property
    def slowest_s(self) -> float:
        """How long the slowest sample so far has taken."""
        return -1.0 if self.slowest is None else self.slowest[1]

    def spent(self, times: Mapping[str, float]) -> None:
        """Count the seconds of each stage."""
        for stage, seconds in times.items():
            name = "send" if stage == "pack" else stage
            self.stage_s[name] = self.stage_s.get(name, 0.0) + seconds

    @contextmanager
    def adding(self, spent: Callable[[], Mapping[str, float]]) -> Iterator[None]:
        """Include what another component adds up while an epoch lasts."""
        self._others.append(spent)
        try:
            yield
        finally:
            self._others.remove(spent)
            self.spent(spent())

    def skip(self, skip: Skip) -> None:
        """Remember a sample that was skipped."""
        self.num_skipped += 1
        if len(self.skipped) < MAX_SKIPS:
            self.skipped.append(skip)
        if self.skip_log is not None:
            self.skip_log.add(skip)

    def restart(self, restart: Restart) -> None:
        """Remember a worker that was replaced."""
        if len(self.restarts) < _MAX_RESTARTS:
            self.restarts.append(restart)

    def note(self, text: str) -> None:
        """Remember something that was slow."""
        if len(self.slow) < _MAX_NOTES:
            self.slow.append(text)

    def report(
        self, *, per_worker_load: str = "", carried: tuple[str, ...] = (), persistent_workers: bool = False
    ) -> Report:
        """Return it all, with what is known of the workers' start."""
        stage_s = Counter(self.stage_s)
        for others in self._others:
            stage_s.update(others())
        return Report(
            epochs=self.epochs,
            delivered_batches=self.batches,
            delivered_samples=self.samples,
            skipped=tuple(self.skipped),
            num_skipped=self.num_skipped,
            restarts=tuple(self.restarts),
            wall_s=self.waiting_s + self.training_s,
            waiting_s=self.waiting_s,
            training_s=self.training_s,
            stage_s={stage: stage_s[stage] for stage in (*STAGES, *stage_s) if stage in stage_s},
            num_workers=self.num_workers,
            cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
            batch_size=self.batch_size,
            worker_memory=tuple(nbytes for _, nbytes in sorted(self.memory.items())),
            slowest_sample=self.slowest,
            batch_nbytes=self.nbytes // self.batches if self.batches else 0,
            slow=tuple(self.slow),
            per_worker_load=per_worker_load,
            carried=carried,
            persistent_workers=persistent_workers,
        )
