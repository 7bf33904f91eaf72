"""Names of samples and batches, and evidence, as messages show them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

from antifreeze.core import Lines, indented
from antifreeze.diagnosis import Finding
from antifreeze.ipc import Heartbeat, Slowest, Stage, repr_of
from antifreeze.worker import Task


def sample_of(record: Heartbeat) -> str:
    """Return the name of the sample that a worker was at; empty if it was at none, or if only its position is known."""
    if record.position < 0 or (record.sample < 0 and not record.name):
        return ""
    return text_of_sample(record.name or record.sample)


def sample_at(indices: Iterable[Any], position: int) -> str:
    """Return the name of the sample at a position of a batch."""
    index = next(itertools.islice(indices, position, None), "?")
    return text_of_sample(index if type(index) is int and 0 <= index < 1 << 63 else repr_of(index)[:200])


def text_of_sample(sample: int | str) -> str:
    """Return the name of a sample: its number, or its index as it is written."""
    return f"sample {sample}" if isinstance(sample, int) else sample.strip("'\"")


def named(sample: str, dataset: str) -> str:
    """Return a sample and its dataset."""
    return f"{sample} of {dataset}" if sample else dataset


def batch_of(record: Heartbeat) -> str:
    """Return the batch that a worker was at, and what it did with all of it."""
    batch = f"batch {record.step}" if record.step >= 0 else "no batch"
    match record.stage:
        case Stage.COLLATE:
            return f"collating {batch}"
        case Stage.PACK | Stage.SEND:
            return f"sending {batch}"
        case _:
            return batch


def slowest_of(name: Callable[[Task, str, int], str], task: Task, slowest: Slowest) -> tuple[str, float]:
    """Return the name of the sample of a task that took longest, and its seconds."""
    others = f" or one of {slowest.others} after it" if slowest.others else ""
    return name(task, f"sample {slowest.sample}", slowest.position) + others, slowest.seconds


def evidence_lines(finding: Finding) -> list[str]:
    """Return the evidence as lines of an error, a little to the right of its other lines."""
    return [f"  {line}" for line in finding.evidence_lines]


def lines_of(finding: Finding) -> Lines:
    """Return the evidence for a log, each on its own line."""
    return indented(evidence_lines(finding), by="  ")
