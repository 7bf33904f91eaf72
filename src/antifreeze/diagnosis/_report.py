"""What a loader has done so far, and which setting would help most."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from antifreeze.core import one_line
from antifreeze.diagnosis._causes import Cause

COLUMNS = 100
"""The rendered text is no wider."""
MAX_SKIPS = 100
"""A report lists this many skipped samples and counts the rest."""
WAITS_MUCH = 0.10
"""A training loop that waits for data this fraction of the time is limited by it."""
WAITS_LITTLE = 0.02
"""One that waits less than this fraction is not."""
ROUND_TRIP_S = 0.002
"""Batches that take less work than this cost more to send than to make."""
MUCH_MEMORY = 4_000_000_000
"""A worker that holds this many bytes is mentioned."""

_SHOWN = 5  # skips and restarts in the text; all of them are in the fields
_LABEL = 11
_MAX_ENTRY_CHARS = 20_000
_MAKES_FASTER = {
    "start": "importing modules and loading the dataset",
    "read": "reading files; a faster disk, larger files or fewer columns",
    "decode": "decoding; fewer columns, or a cheaper compression of the files",
    "transform": "the transform; make it work on whole batches, or do its fixed part once, before training",
    "fetch": "dataset[i]; make __getitem__ cheaper, or do its fixed part once, before training",
    "collate": "collate_fn; stack arrays of one size instead of lists of Python objects",
    "send": "handing batches over; make them smaller: narrower types, no Python objects",
}
STAGES = tuple(_MAKES_FASTER)
"""In the order in which a batch comes through them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """A skipped sample."""

    sample: str
    """Which sample."""
    reason: str
    """The error."""
    epoch: int
    """Number of the epoch, counted from 0."""
    step: int
    """Number of the batch in the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """A process that exited or was killed, and was restarted."""

    worker: int
    """Number of the worker; -1 for the template process, which loads the dataset for all workers."""
    pid: int
    """Process id."""
    cause: str
    """Name of the cause; ``antifreeze explain`` explains it."""
    sample: str
    """Sample that it was working on; empty if that is not known."""
    after_s: float
    """Seconds since its epoch began."""
    evidence: tuple[str, ...] = ()
    """Lines that support the cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a loader has done so far: returned by ``report()``; ``str(report)`` is what ``report()`` prints.

    Example:
        ```python
        from antifreeze import DataLoader

        loader = DataLoader(range(100), batch_size=10, num_workers=1)
        batches = list(loader)
        report = loader.report()
        print(report.delivered_samples, report.waiting_s, [restart.cause for restart in report.restarts])
        ```
    """

    epochs: int = 0
    """Number of completed epochs."""
    delivered_batches: int = 0
    """Number of batches that the training loop got."""
    delivered_samples: int = 0
    """Number of samples in them."""
    skipped: tuple[Skip, ...] = ()
    """The first hundred skipped samples."""
    num_skipped: int = 0
    """Number of all skipped samples."""
    restarts: tuple[Restart, ...] = ()
    """Workers that were lost and restarted."""
    wall_s: float = 0.0
    """Seconds in epochs."""
    waiting_s: float = 0.0
    """Seconds that the training loop waited for data."""
    training_s: float = 0.0
    """Seconds between batches, in the training loop."""
    stage_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds of all workers together, by stage: start, read, decode, transform, fetch, collate, send."""
    num_workers: int = 0
    """Number of workers."""
    cores: int = 1
    """Number of cores that this process may use."""
    batch_size: int | None = None
    """The ``batch_size`` of the loader."""
    worker_memory: tuple[int, ...] = ()
    """Private bytes of each worker."""
    slowest_sample: tuple[str, float] | None = None
    """Which sample was slowest, and its seconds."""
    batch_nbytes: int = 0
    """Mean bytes of a batch."""
    slow: tuple[str, ...] = ()
    """Notes about slow workers."""
    per_worker_load: str = ""
    """Why each worker loads the dataset for itself; empty if one process loads it for all of them."""
    carried: tuple[str, ...] = ()
    """What workers got besides plain data: handles that they opened again, replaced functions, settings of modules."""
    persistent_workers: bool = False
    """The ``persistent_workers`` of the loader."""

    def __str__(self) -> str:
        return render(self)

    def __repr__(self) -> str:
        # A notebook shows what the last line of a cell returns, under what report() has printed there.
        return f"<Report: {self.delivered_batches:,} batches in {self.epochs:,} epochs; print(it) shows all>"


# -- advice --------------------------------------------------------------------------------------------------------


def advice(report: Report) -> tuple[str, ...]:
    """Return the one or two changes that would help most, each with the number that leads to it."""
    if report.delivered_batches < 5 or report.wall_s < 1.0:
        return ()
    return tuple([*_about_lost_memory(report), *_about_speed(report), *_about_memory(report)][:2])


def _about_lost_memory(report: Report) -> Iterator[str]:
    hungry = (Cause.OUT_OF_MEMORY.value, Cause.LEAK.value)
    lost = sum(restart.cause in hungry for restart in report.restarts)
    if lost and report.num_workers > 1:
        fewer = max(1, report.num_workers // 2)
        yield f"lower num_workers from {report.num_workers} to {fewer}: {lost} of them ran out of memory"
    elif lost:
        yield f"lower batch_size or give the job more memory: the worker ran out of memory, {_count(lost, 'time')}"


def _about_speed(report: Report) -> Iterator[str]:
    waits = report.waiting_s / report.wall_s
    if waits < WAITS_LITTLE:
        text = f"data loading is not what limits you: the training loop takes {1 - waits:.0%} of the time"
        enough = _workers_needed(report, margin=1.5)
        yield f"{text}; num_workers={enough} would do" if enough < report.num_workers else text
    elif waits > WAITS_MUCH:
        yield from _too_slow(report, f"the training loop waits for data {waits:.0%} of the time")


def _too_slow(report: Report, waits: str) -> Iterator[str]:
    work_s = _work_s(report)
    stage, share = _largest_stage(report)
    if report.batch_size == 1 and work_s / report.delivered_batches < ROUND_TRIP_S:
        each = f"each batch takes {1e3 * work_s / report.delivered_batches:.2f} ms of work"
        yield f"raise batch_size: with batch_size=1 every sample travels alone, and {each}; {waits}"
    if report.num_workers == 0:
        workers = min(report.cores, max(1, _workers_needed(report)))
        yield f"set num_workers={workers}: {waits}, because it loads them itself; {report.cores} cores are there"
        return
    if stage == "start" and share > 0.5:
        yield _about_start(report, share)
        return
    idle = 1 - work_s / (report.num_workers * report.wall_s)
    if report.slowest_sample and idle > 0.5 and report.slowest_sample[1] > 0.3 * report.waiting_s:
        name, seconds = report.slowest_sample
        yield f"raise prefetch_factor: {name} alone took {seconds:.1f} s, and {waits}"
        return
    if report.num_workers < report.cores:
        more = min(report.cores, max(report.num_workers + 1, _workers_needed(report)))
        cost = f"making a batch takes {1e3 * work_s / report.delivered_batches:.0f} ms of a worker"
        train = f"training on it {1e3 * report.training_s / report.delivered_batches:.0f} ms"
        yield f"raise num_workers from {report.num_workers} to {more}: {waits}; {cost}, {train}"
    if stage:
        busy = f"{report.num_workers} workers on {report.cores} cores"
        yield f"{busy} spend {share:.0%} of their time in {stage}: speed up {_MAKES_FASTER.get(stage, stage)}"


def _about_start(report: Report, share: float) -> str:
    cost = f"{_MAKES_FASTER['start']} took {report.stage_s['start']:.1f} s, {share:.0%} of the workers' time"
    if report.persistent_workers:
        return f"call loader.prestart() before you build the model: {cost}"
    return f"set persistent_workers=True, so that workers start once and not in every epoch: {cost}"


def _about_memory(report: Report) -> Iterator[str]:
    most = max(report.worker_memory, default=0)
    if most >= MUCH_MEMORY:
        text = f"the workers hold {_size(sum(report.worker_memory))}, the largest of them {_size(most)}"
        yield f"{text}: keep what the dataset holds in NumPy or Arrow arrays, not in lists, or use fewer workers"


def _work_s(report: Report) -> float:
    """Return the seconds that all workers together have worked on batches. To start is not to work."""
    return sum(seconds for stage, seconds in report.stage_s.items() if stage != "start")


def _largest_stage(report: Report) -> tuple[str, float]:
    total_s = sum(report.stage_s.values())
    if total_s <= 0:
        return "", 0.0
    stage = max(report.stage_s, key=lambda name: report.stage_s[name])
    return stage, report.stage_s[stage] / total_s


def _workers_needed(report: Report, margin: float = 1.0) -> int:
    """Return how many workers make batches as fast as the training loop takes them."""
    if report.training_s <= 0:
        return report.cores
    return max(1, min(report.cores, math.ceil(margin * _work_s(report) / report.training_s)))


# -- text ----------------------------------------------------------------------------------------------------------


def render(report: Report) -> str:
    """Return the report as plain text of at most 100 columns."""
    rate = f" ({report.delivered_batches / report.wall_s:,.1f} batches/s)" if report.wall_s >= 0.001 else ""
    done = f"{report.delivered_batches:,} batches, {report.delivered_samples:,} samples in {report.wall_s:,.1f} s{rate}"
    lines = [f"antifreeze: {_count(report.epochs, 'epoch')}, {done}"]
    for label, entries in _sections(report):
        for index, entry in enumerate(entries):
            head = f"  {label if index == 0 else '':<{_LABEL}}"
            lines += textwrap.wrap(
                _plain(entry),
                COLUMNS,
                initial_indent=head,
                subsequent_indent=" " * (_LABEL + 4),
                break_on_hyphens=False,
            )
    return "\n".join(lines)


def _sections(report: Report) -> Iterator[tuple[str, list[str]]]:
    wall_s = report.wall_s or 1.0
    training = f"training loop {report.training_s:,.1f} s ({report.training_s / wall_s:.0%})"
    yield "time", [f"{training}, waiting for data {report.waiting_s:,.1f} s ({report.waiting_s / wall_s:.0%})"]
    total_s = sum(report.stage_s.values()) or 1.0
    stages = ", ".join(f"{name} {s:,.1f} s ({s / total_s:.0%})" for name, s in report.stage_s.items() if s > 0)
    yield "workers", [f"{report.num_workers} on {_count(report.cores, 'core')}" + (f": {stages}" if stages else "")]
    if report.per_worker_load:
        yield "start", [f"each worker imports and loads for itself, because {report.per_worker_load}"]
    if report.carried:
        yield "carried", [", ".join([*report.carried[:_SHOWN], *_rest(len(report.carried), _SHOWN)])]
    if report.worker_memory:
        yield "memory", [", ".join(map(_size, report.worker_memory))]
    if report.batch_nbytes:
        size = f", batch_size={report.batch_size}" if report.batch_size is not None else ""
        yield "batch", [f"{_size(report.batch_nbytes)} on average{size}"]
    if report.slowest_sample:
        yield "slowest", ["{}: {:,.2f} s".format(*report.slowest_sample)]
    if report.num_skipped:
        skips = [f"{s.sample} (epoch {s.epoch}, step {s.step}): {s.reason}" for s in report.skipped[:_SHOWN]]
        yield "skipped", [_count(report.num_skipped, "sample"), *skips, *_rest(report.num_skipped, len(skips))]
    if report.restarts:
        texts = [text for restart in report.restarts[:_SHOWN] for text in _lines_of_restart(restart)]
        yield "restarts", [_count(len(report.restarts), "worker"), *texts, *_rest(len(report.restarts), _SHOWN)]
    if report.slow:
        yield "slow", [*report.slow[:_SHOWN], *_rest(len(report.slow), _SHOWN)]
    if texts := list(advice(report)):
        yield "advice", texts


def _lines_of_restart(restart: Restart) -> list[str]:
    sample = f", at {restart.sample}" if restart.sample else ""
    when = f", {restart.after_s:,.1f} s into the epoch"
    who = f"worker {restart.worker}" if restart.worker >= 0 else "template process, while it loaded the dataset"
    return [f"{who} (pid {restart.pid}): {restart.cause}{sample}{when}", *restart.evidence]


def _rest(total: int, shown: int) -> list[str]:
    return [f"and {total - shown:,} more"] if total > shown else []


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _plain(text: str) -> str:
    """Return text on one line that cannot steer a terminal: names of samples and errors come from outside."""
    return one_line(" ".join(text[:_MAX_ENTRY_CHARS].split()))


def _size(nbytes: int) -> str:
    for factor, unit in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if nbytes >= factor:
            return f"{nbytes / factor:,.1f} {unit}"
    return f"{nbytes} bytes"
