"""Random numbers that depend only on the step: user code sees the same ones in every process, and leaves no trace.

Without workers, the trainer's generators are saved before each batch, seeded for it, and restored after it. That must
not cost more than a small batch does, and the libraries' functions take 60 µs for it, because they convert 624 words to
Python numbers and back. So the words are copied as bytes, in memory. Their address is found by searching for what the
libraries' functions return; if it is not found, those functions are used.
"""

from __future__ import annotations

import ctypes
import itertools
import random
import struct
import sys
from typing import Any

import numpy as np
from numpy.random.mtrand import get_bit_generator, set_bit_generator

from antifreeze.core import step_seed

_Twister, _seed_numpy = np.random.MT19937, np.random.seed
_WORDS = 624
_HALF = 2 * _WORDS  # in bytes
_MEMORY = ctypes.c_char * (4 * _WORDS + 4)  # the words of a Mersenne twister and the position of the next one
_START = _WORDS.to_bytes(4, sys.byteorder)
"""The position of a twister whose words are all unused."""


def seed_now(seed: int, epoch: int, step: int) -> None:
    """Seed ``random``, ``numpy.random`` and, if it is loaded, torch for one step. Nothing is restored."""
    global _late
    _late = value = step_seed(seed, epoch, step)
    _seed(value)


def seed_late() -> None:
    """Seed torch, which was imported during a step, as ``seed_now`` would have done at the start of the step."""
    generator = _torch_generator()
    if generator is not None and _late is not None:
        generator.manual_seed(_late)


class seeded:  # noqa: N801  used like a function
    """Seed as ``seed_now`` does for a ``with`` block, and restore the previous states at its end."""

    __slots__ = ("_saved", "_value")

    def __init__(self, seed: int, epoch: int, step: int) -> None:
        self._value = step_seed(seed=seed, epoch=epoch, step=step)

    def __enter__(self) -> None:
        self._saved = save()
        _seed(self._value)

    def __exit__(self, *_: object) -> None:
        restore(self._saved)


Saved = tuple[Any, ...]
"""The saved states of the generators of this process."""


def save() -> Saved:
    """Return the states of all generators, for ``restore``."""
    numpy = get_bit_generator()
    memory = _numpy[1] if _numpy[0] is numpy else _memory_of(numpy)
    torch = _torch or _torch_generator()
    return (
        _python.getstate() if _python_memory is None else _python_memory.raw,
        _python.gauss_next,
        numpy,
        memory,
        np.random.get_state(legacy=False) if memory is None else memory.raw,
        None if memory is None else _gauss.raw,
        torch,
        None if torch is None else torch.get_state(),
    )


def restore(saved: Saved) -> None:
    """Restore the states that ``save`` returned."""
    python, gauss_next, numpy, memory, words, gauss, torch, torch_state = saved
    if _python_memory is None:
        _python.setstate(python)
    else:
        _python_memory.raw = python
    _python.gauss_next = gauss_next
    if get_bit_generator() is not numpy:
        set_bit_generator(numpy)
    if memory is None:
        np.random.set_state(words)
    else:
        memory.raw, _gauss.raw = words, gauss
    if torch is not None:
        torch.set_state(torch_state)


_late: int | None = None
_torch: Any = None


def _torch_generator() -> Any:
    # Never imported on the user's behalf: that takes a second and 150 MB. During its import, it has no generator yet.
    global _torch
    if _torch is None:
        _torch = getattr(sys.modules.get("torch"), "default_generator", None)
    return _torch


def _seed(value: int) -> None:
    numpy = get_bit_generator()
    if type(numpy) is not _Twister:
        numpy = _Twister(0)
        set_bit_generator(numpy)  # the user has set a generator of another type
    # Not the bits that torch uses. Both generate their words in the same way, so their random numbers would be
    # correlated.
    _seed_numpy(value >> 31)
    if _numpy[0] is not numpy:
        _memory_of(numpy)
    # Python's seed() takes longer than everything else here. The same words with swapped halves are as good.
    halves = _numpy[2]
    if _python_memory is None or halves is None:
        words = numpy.state["state"]["key"].tolist()
        _python.setstate((3, (*words[_WORDS // 2 :], *words[: _WORDS // 2], _WORDS), None))
    else:
        _python_parts[0][:], _python_parts[1][:], _python_parts[2][:] = _START, halves[1], halves[0]
        _python.gauss_next = None
    torch = _torch or _torch_generator()
    if torch is not None:
        torch.manual_seed(value)


# -- where the words are --------------------------------------------------------------------------------------------


def _find_python() -> Any:
    """Return the memory of the words of ``random``, or None if it is not laid out as expected."""
    head = object.__basicsize__
    if type(_python) is not random.Random or random.Random.__basicsize__ < head + ctypes.sizeof(_MEMORY):
        return None
    memory = _MEMORY.from_address(id(_python) + head)
    *words, position = _python.getstate()[1]
    return memory if memory.raw == np.array([position, *words], np.uint32).tobytes() else None


def _parts(memory: Any, *borders: int) -> list[memoryview]:
    view = memoryview(memory).cast("B")
    return [view[start:end] for start, end in itertools.pairwise(borders)]


def _find_gauss() -> Any:
    """Return the memory of the normal number that ``numpy.random`` keeps, and of whether it does; None if not found.

    NumPy draws normal numbers in pairs. It is located in a generator that holds a known one, and expected at the same
    offset in the global generator.
    """
    layout, kept = struct.Struct("=ixxxxd"), np.random.RandomState(5)
    kept.standard_normal()
    found = (ctypes.c_char * type(kept).__basicsize__).from_address(id(kept))
    expected = layout.pack(1, kept.get_state(legacy=False)["gauss"])
    offset = found.raw.find(expected)
    kept.standard_normal()
    shared: Any = np.random.standard_normal.__self__  # type: ignore[attr-defined]
    if offset < 0 or found.raw[offset : offset + 4] != bytes(4) or type(shared) is not np.random.RandomState:
        return None
    return (ctypes.c_char * layout.size).from_address(id(shared) + offset)


_python: Any = random.random.__self__  # type: ignore[attr-defined]
_is_cpython = sys.implementation.name == "cpython"
_python_memory = _find_python() if _is_cpython else None
_gauss: Any = _find_gauss() if _is_cpython else None
_python_parts: Any = None if _python_memory is None else _parts(_python_memory, 0, 4, 4 + _HALF, 4 + 2 * _HALF)
"""The position, and the two halves of the words."""
_numpy: tuple[Any, Any, Any] = (None, None, None)
"""A NumPy bit generator, the memory of its words, and the two halves of that memory."""


def _memory_of(generator: Any) -> Any:
    """Return the memory of a bit generator's words, or None if it is not laid out as expected."""
    global _numpy
    if _numpy[0] is not generator:
        # Invariant: the generator is referenced together with its memory, so that the address stays valid.
        memory = _find_numpy(generator)
        _numpy = (generator, memory, None if memory is None else _parts(memory, 0, _HALF, 2 * _HALF))
    return _numpy[1]


def _find_numpy(generator: Any) -> Any:
    if _gauss is None or type(generator) is not _Twister:
        return None
    memory = _MEMORY.from_address(generator.ctypes.state_address)
    state = generator.state["state"]
    expected = state["key"].astype(np.uint32).tobytes() + np.int32(state["pos"]).tobytes()
    return memory if memory.raw == expected else None
