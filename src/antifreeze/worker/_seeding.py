"""Random numbers that depend only on the step: user code sees the same ones in every process, and leaves no trace.

Without workers, the trainer's generators are saved before each batch, seeded for it, and restored after it. That must
not cost more than a small batch does, and the libraries' functions take 60 µs for it, because they convert 624 words to
Python numbers and back. So NumPy's generator is exchanged for one of ours, and the rest is copied as bytes, in memory.
Its address is found by searching for what the libraries' functions return; if it is not found, those functions are
used.
"""

from __future__ import annotations

import ctypes
import random
import struct
import sys
from typing import Any, NamedTuple

import numpy as np
from numpy.random.mtrand import get_bit_generator, set_bit_generator

from antifreeze.core import step_seed

_WORDS = 624
_HALF = 2 * _WORDS  # in bytes
_MEMORY = ctypes.c_char * (4 * _WORDS + 4)  # the words of a Mersenne twister and the position of the next one
_START = _WORDS.to_bytes(4, sys.byteorder)
"""The position of a twister whose words are all unused."""

_python: Any = random.random.__self__  # type: ignore[attr-defined]
_ours = np.random.MT19937(0)
"""What ``numpy.random`` draws from during a step."""
_seed_numpy = np.random.seed
_late: int | None = None
_torch: Any = None


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
    torch = _torch or _torch_generator()
    if _memories is None:
        states = [_python.getstate(), np.random.get_state(legacy=False)]
    else:
        # Ours, too: a step may itself iterate over a loader.
        states = [memory.raw for memory in _memories]
    return states, _python.gauss_next, get_bit_generator(), torch, None if torch is None else torch.get_state()


def restore(saved: Saved) -> None:
    """Restore the states that ``save`` returned."""
    states, gauss_next, numpy, torch, torch_state = saved
    # Order: NumPy forgets the normal number that it keeps when it gets another generator.
    if get_bit_generator() is not numpy:
        set_bit_generator(numpy)
    if _memories is None:
        _python.setstate(states[0])
        np.random.set_state(states[1])
    else:
        for memory, state in zip(_memories, states, strict=True):
            memory.raw = state
    _python.gauss_next = gauss_next
    if torch is not None:
        torch.set_state(torch_state)


def _torch_generator() -> Any:
    # Never imported on the user's behalf: that takes a second and 150 MB. During its import, it has no generator yet.
    global _torch
    if _torch is None:
        _torch = getattr(sys.modules.get("torch"), "default_generator", None)
    return _torch


def _seed(value: int) -> None:
    if get_bit_generator() is not _ours:
        set_bit_generator(_ours)
    # Not the bits that torch uses. Both generate their words in the same way, so their random numbers would be
    # correlated.
    _seed_numpy(value >> 31)
    # Python's seed() takes longer than everything else here. The same words with swapped halves are as good.
    if _memories is None:
        words = _ours.state["state"]["key"].tolist()
        _python.setstate((3, (*words[_WORDS // 2 :], *words[: _WORDS // 2], _WORDS), None))
    else:
        halves = _memories.ours.raw
        _memories.python.raw = _START + halves[_HALF : 2 * _HALF] + halves[:_HALF]
        _python.gauss_next = None
    torch = _torch or _torch_generator()
    if torch is not None:
        torch.manual_seed(value)


# -- where the words are --------------------------------------------------------------------------------------------


class _Memories(NamedTuple):
    """What ``random`` and ``numpy.random`` draw from, as memory."""

    python: Any
    gauss: Any
    """The normal number that ``numpy.random`` keeps, and whether it does."""
    ours: Any


def _find_memories() -> _Memories | None:
    """Return the memory of the generators, or None if it is not laid out as expected."""
    head = object.__basicsize__
    if sys.implementation.name != "cpython" or type(_python) is not random.Random:
        return None
    if random.Random.__basicsize__ < head + ctypes.sizeof(_MEMORY):
        return None
    python, ours = _MEMORY.from_address(id(_python) + head), _MEMORY.from_address(_ours.ctypes.state_address)
    *words, position = _python.getstate()[1]
    state: Any = _ours.state["state"]
    expected = state["key"].astype(np.uint32).tobytes() + np.int32(state["pos"]).tobytes()
    gauss = _find_gauss()
    is_found = python.raw == np.array([position, *words], np.uint32).tobytes() and ours.raw == expected
    return _Memories(python, gauss, ours) if is_found and gauss is not None else None


def _find_gauss() -> Any:
    """Return the memory of the normal number that ``numpy.random`` keeps, or None if it is not found.

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


_memories = _find_memories()
