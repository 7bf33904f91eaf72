"""What happened to a loader, epoch after epoch: the numbers behind ``report()``."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from antifreeze.supervise import MOST_SKIPS, Report, Restart, Skip

_MOST_RESTARTS = 1000
_MOST_NOTES = 20


@dataclass(slots=True)
class History:
    """Counts and remembers. One for each loader, kept over all its epochs."""

    num_workers: int
    batch_size: int | None
    skip_log: Path | None = None
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
    wall_s: float = 0.0
    _left_s: float | None = None
    """When the last batch was handed over."""
    _began_s: float | None = None

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

    def delivered(self, samples: int, nbytes: int) -> None:
        """Count a batch."""
        self.batches += 1
        self.samples += samples
        self.nbytes += nbytes

    def spent(self, times: Mapping[str, float], slowest: tuple[str, float] | None) -> None:
        """Count the seconds of each stage, and remember the slowest sample."""
        for stage, seconds in times.items():
            name = "send" if stage == "pack" else stage
            self.stage_s[name] = self.stage_s.get(name, 0.0) + seconds
        if slowest is not None and (self.slowest is None or slowest[1] > self.slowest[1]):
            self.slowest = slowest

    def skip(self, skip: Skip) -> None:
        """Remember a sample that was left out."""
        self.num_skipped += 1
        if len(self.skipped) < MOST_SKIPS:
            self.skipped.append(skip)
        if self.skip_log is not None:
            line = {"sample": skip.sample, "reason": skip.reason, "epoch": skip.epoch, "step": skip.step}
            with self.skip_log.open("a") as file:
                file.write(json.dumps(line) + "\n")

    def restart(self, restart: Restart) -> None:
        """Remember a worker that was replaced."""
        if len(self.restarts) < _MOST_RESTARTS:
            self.restarts.append(restart)

    def note(self, text: str) -> None:
        """Remember something that was slow."""
        if len(self.slow) < _MOST_NOTES:
            self.slow.append(text)

    def report(self) -> Report:
        """Return it all."""
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
            stage_s=dict(self.stage_s),
            num_workers=self.num_workers,
            cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
            batch_size=self.batch_size,
            worker_memory=tuple(nbytes for _, nbytes in sorted(self.memory.items())),
            slowest_sample=self.slowest,
            batch_nbytes=self.nbytes // self.batches if self.batches else 0,
            slow=tuple(self.slow),
        )
