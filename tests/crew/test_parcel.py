"""Functions travel by value, with all that they look up."""

from __future__ import annotations

import functools
import pickle
import threading
from typing import Any

from antifreeze.crew._parcel import make_parcel
from antifreeze.transport import map_bytes


def make_inner(number: int) -> Any:
    """Define a class, as a dataset may do for each sample."""

    class Inner:
        lock = threading.Lock()

        class Innermost:
            cached = functools.lru_cache(lambda x: x + number)

    return Inner.Innermost.cached(1)


def test_a_function_brings_what_the_bodies_of_its_classes_look_up() -> None:
    """``threading`` and ``functools`` are names of the module, which the worker does not have."""
    parcel = make_parcel(make_inner, 0, {__name__})
    try:
        memory = map_bytes(parcel.fd, max(start + size for start, size in parcel.pieces), private=True)
        head, *buffers = [memory[start : start + size] for start, size in parcel.pieces]
        program, _ = pickle.loads(head.data, buffers=buffers)  # noqa: S301  we wrote it
    finally:
        parcel.close()

    assert program is not make_inner
    assert {"threading", "functools"} <= set(program.__globals__)
    assert program(4) == 5
