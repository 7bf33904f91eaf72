"""What is measured, by name: a dataset, and how it is loaded."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

IMAGE = (3, 224, 224)
LOOPS_1MS = 8_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One dataset with the arguments of its loader."""

    name: str
    label: str
    make: Callable[[], Any]
    """Called in the process that measures, so that nothing is imported before."""
    options: dict[str, Any] = field(default_factory=dict)
    less_cpu: float | None = None
    """How many times less CPU a batch must cost than with torch's loader."""
    rate: float | None = None
    """How many times as many batches a second there must be."""
    reported: bool = False
    """What has no bar is reported."""
    pairs: int = 1
    """How often all are measured in a round. Where samples take all the time, they differ by less than one pair."""


def of(module: str, name: str, *arguments: Any) -> Callable[[], Any]:
    def make() -> Any:
        return getattr(importlib.import_module(f"workers.{module}"), name)(*arguments)

    return make


RATES = (
    Case(
        name="1mb-array",
        label="1 MB: NumPy arrays that are ready, `batch_size=None`",
        make=of("plain", "Arrays", (256, 1024)),
        options={"batch_size": None},
        less_cpu=5.0,
        rate=1.0,
    ),
    # The bar is for how batches travel. With these, most is what 256 samples and collating them cost.
    Case(
        name="1mb-rows",
        label="1 MB: 256 tensors of 4 KB, default collate",
        make=of("tensors", "Tensors", (1024,)),
        options={"batch_size": 256},
        rate=1.0,
        reported=True,
    ),
    Case(
        name="1mb-array-rows",
        label="1 MB: 256 NumPy arrays of 4 KB, default collate",
        make=of("plain", "Arrays", (1024,)),
        options={"batch_size": 256},
        rate=1.0,
        reported=True,
    ),
    Case(
        name="38mb-array",
        label="38 MB: NumPy arrays that are ready, `batch_size=None`",
        make=of("plain", "Arrays", (64, *IMAGE), 2),
        options={"batch_size": None},
        less_cpu=2.5,
        rate=1.0,
    ),
    Case(
        name="38mb-rows",
        label="38 MB: 64 tensors of 600 KB, default collate",
        make=of("tensors", "Tensors", IMAGE),
        options={"batch_size": 64},
        less_cpu=2.5,
        rate=1.0,
    ),
    Case(
        name="38mb-array-rows",
        label="38 MB: 64 NumPy arrays of 600 KB, default collate",
        make=of("plain", "Arrays", IMAGE),
        options={"batch_size": 64},
        less_cpu=2.5,
        rate=1.0,
    ),
    Case(
        name="one-int",
        label="batch size 1: ints",
        make=of("plain", "Ints"),
        options={"batch_size": 1},
        rate=5.0,
    ),
    Case(
        name="one-tensor",
        label="batch size 1: tensors of 32 floats",
        make=of("tensors", "Tensors", (32,)),
        options={"batch_size": 1},
        rate=5.0,
    ),
    Case(
        name="spin-1ms",
        label="pure Python, about 1 ms a sample, batches of 16",
        make=of("plain", "Spin", LOOPS_1MS),
        options={"batch_size": 16},
        rate=1.0,
    ),
    Case(
        name="spin-10ms",
        label="pure Python, about 10 ms a sample, batches of 16",
        make=of("plain", "Spin", 10 * LOOPS_1MS),
        options={"batch_size": 16},
        rate=1.0,
        pairs=9,
    ),
    Case(
        name="sleep-10ms",
        label="sleeping 10 ms a sample, batches of 16",
        make=of("plain", "Sleep", 0.01),
        options={"batch_size": 16},
        rate=1.0,
        pairs=9,
    ),
    # Without a bar. Most of what these cost is the dataset's own: a new tensor of 38 MB is 9,000 page faults.
    Case(
        name="1mb-fresh",
        label="1 MB: a new tensor each time, `batch_size=None`",
        make=of("tensors", "FreshTensors", (256, 1024)),
        options={"batch_size": None},
    ),
    Case(
        name="38mb-fresh",
        label="38 MB: a new tensor each time, `batch_size=None`",
        make=of("tensors", "FreshTensors", (64, *IMAGE), 2),
        options={"batch_size": None},
    ),
    # Without a bar. torch moves a tensor into shared memory when it first sends it; one that is sent again costs it no
    # copy, and trainer and dataset write into the same memory from then on. Ours is a copy each time.
    Case(
        name="1mb-same",
        label="1 MB: the same 8 tensors again and again, `batch_size=None`",
        make=of("tensors", "Tensors", (256, 1024)),
        options={"batch_size": None},
    ),
    Case(
        name="38mb-same",
        label="38 MB: the same 2 tensors again and again, `batch_size=None`",
        make=of("tensors", "Tensors", (64, *IMAGE), 2),
        options={"batch_size": None},
    ),
)
STARTS = (
    Case(name="start-plain", label="without torch", make=of("plain", "Ints"), options={"batch_size": 8}, pairs=5),
    Case(
        name="start-torch", label="with torch", make=of("tensors", "Tensors", (32,)), options={"batch_size": 8}, pairs=5
    ),
)
OTHERS = (
    Case(name="cure", label="5 ms a sample", make=of("plain", "Sleep", 0.005), options={"batch_size": 4}),
    Case(name="steady", label="ints", make=of("plain", "Ints"), options={"batch_size": 16}),
    Case(name="big", label="1 GB", make=of("plain", "Big"), options={"batch_size": 64}),
)
CASES = {case.name: case for case in (*RATES, *STARTS, *OTHERS)}
