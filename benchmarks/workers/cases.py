"""What is measured, by name: a dataset, and how it is loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One dataset with the arguments of its loader."""

    name: str
    label: str
    make: Callable[[], Any]
    """Called in the process that measures, so that nothing is imported before."""
    options: dict[str, Any] = field(default_factory=dict)


def _plain(name: str, *arguments: Any) -> Callable[[], Any]:
    def make() -> Any:
        from workers import plain

        return getattr(plain, name)(*arguments)

    return make


def _tensors(name: str, *arguments: Any) -> Callable[[], Any]:
    def make() -> Any:
        from workers import tensors

        return getattr(tensors, name)(*arguments)

    return make


IMAGE = (3, 224, 224)
CASES = {
    case.name: case
    for case in (
        Case(name="1mb-array", label="1 MB: a NumPy array, as it is", make=_plain("Arrays", (256, 1024)), options={"batch_size": None}),
        Case(name="1mb-tensor", label="1 MB: a new tensor, as it is", make=_tensors("FreshTensors", (256, 1024)), options={"batch_size": None}),
        Case(name="1mb-same", label="1 MB: the same 8 tensors, as they are", make=_tensors("Tensors", (256, 1024)), options={"batch_size": None}),
        Case(name="1mb-rows", label="1 MB: 256 tensors of 4 KB, collated", make=_tensors("Tensors", (1024,)), options={"batch_size": 256}),
        Case(name="1mb-array-rows", label="1 MB: 256 NumPy arrays of 4 KB, collated", make=_plain("Arrays", (1024,)), options={"batch_size": 256}),
        Case(name="38mb-array", label="38 MB: a NumPy array, as it is", make=_plain("Arrays", (64, *IMAGE), 2), options={"batch_size": None}),
        Case(name="38mb-tensor", label="38 MB: a new tensor, as it is", make=_tensors("FreshTensors", (64, *IMAGE), 2), options={"batch_size": None}),
        Case(name="38mb-same", label="38 MB: the same 2 tensors, as they are", make=_tensors("Tensors", (64, *IMAGE), 2), options={"batch_size": None}),
        Case(name="38mb-rows", label="38 MB: 64 tensors of 600 KB, collated", make=_tensors("Tensors", IMAGE), options={"batch_size": 64}),
        Case(name="38mb-array-rows", label="38 MB: 64 NumPy arrays of 600 KB, collated", make=_plain("Arrays", IMAGE), options={"batch_size": 64}),
        Case(name="one-int", label="batch size 1: an int", make=_plain("Ints"), options={"batch_size": 1}),
        Case(name="one-tensor", label="batch size 1: a tensor of 32 floats", make=_tensors("Tensors", (32,)), options={"batch_size": 1}),
        Case(name="one-array", label="batch size 1: a NumPy array of 32 floats", make=_plain("Arrays", (32,)), options={"batch_size": 1}),
        Case(name="spin-1ms", label="1 ms of pure Python, batches of 16", make=_plain("Spin", 8_000), options={"batch_size": 16}),
        Case(name="spin-10ms", label="10 ms of pure Python, batches of 16", make=_plain("Spin", 80_000), options={"batch_size": 16}),
        Case(name="sleep-10ms", label="10 ms of waiting, batches of 16", make=_plain("Sleep", 0.01), options={"batch_size": 16}),
        Case(name="sleep-5ms", label="5 ms of waiting, batches of 4", make=_plain("Sleep", 0.005), options={"batch_size": 4}),
        Case(name="start-plain", label="ints, no torch in the dataset", make=_plain("Ints"), options={"batch_size": 8}),
        Case(name="start-torch", label="tensors, torch in the dataset", make=_tensors("Tensors", (32,)), options={"batch_size": 8}),
    )
}
