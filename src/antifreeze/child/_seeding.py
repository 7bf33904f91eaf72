"""Random numbers that belong to the step: user code sees the same ones whoever runs it, and leaves no trace."""

from __future__ import annotations

import ctypes
import random
import sys
from typing import Any

import numpy as np
from numpy.random.mtrand import get_bit_generator, set_bit_generator

from antifreeze.core import step_seed

_MEMORY = ctypes.c_char * (624 * 4 + 4)  # the words of a Mersenne twister, and the place of the next one


def seed_now(seed: int, epoch: int, step: int) -> None:
    """Seed ``random``, ``numpy.random`` and, if it is there, torch for one step. Nothing is put back."""
    global _late
    _late = step_seed(seed=seed, epoch=epoch, step=step)
    _seed(_late)


def seed_late() -> None:
    """Seed torch, which was imported in the middle of a step, as ``seed_now`` would have done at its beginning."""
    generator = _torch_generator()
    if generator is not None and _late is not None:
        generator.manual_seed(_late)


def seeded(seed: int, epoch: int, step: int) -> _Seeded:
    """Seed as ``seed_now`` does for a ``with`` block, and put back at its end what was there before."""
    return _Seeded(step_seed(seed=seed, epoch=epoch, step=step))


def preserved() -> _Seeded:
    """Put back at the end of a ``with`` block what was there before, whatever is seeded inside."""
    return _Seeded(None)


_late: int | None = None


def _torch_generator() -> Any:
    # Never imported on the user's behalf: it takes a second and 150 MB. While it is being imported, it has none yet.
    return getattr(sys.modules.get("torch"), "default_generator", None)


def _seed(value: int) -> None:
    random.seed(value)
    if not isinstance(get_bit_generator(), np.random.MT19937):
        set_bit_generator(np.random.MT19937(0))  # the user has put another one there, without seed()
    np.random.seed(value % 2**32)
    generator = _torch_generator()
    if generator is not None:
        generator.manual_seed(value)


class _Seeded:
    __slots__ = ("_numpy", "_python", "_torch", "_torch_state", "_value")

    def __init__(self, value: int | None) -> None:
        self._value = value

    def __enter__(self) -> None:
        self._python = random.getstate()
        self._numpy = _NumpyState()
        self._torch = _torch_generator()
        if self._torch is not None:
            self._torch_state = self._torch.get_state()
        if self._value is not None:
            _seed(self._value)

    def __exit__(self, *_: object) -> None:
        random.setstate(self._python)
        self._numpy.restore()
        if self._torch is not None:
            self._torch.set_state(self._torch_state)


class _NumpyState:
    """The state of ``numpy.random``, taken and put back in two microseconds.

    NumPy's own functions need fifty for each, because they go through its 624 words one by one. So the words are
    copied as bytes, at the address that NumPy gives for them.
    """

    # Tried: putting another bit generator in place of NumPy's and later the first one back. It forgets the second of
    # the two normal numbers that are drawn at once, so that the user's next np.random.randn() would be another one.

    __slots__ = ("_generator", "_memory", "_slow", "_words")

    def __init__(self) -> None:
        self._generator: Any = get_bit_generator()
        self._memory = _memory_of(self._generator)
        self._slow: Any = None
        if self._memory is None:
            self._slow = np.random.get_state(legacy=False)
            return
        self._words = self._memory.raw
        # Whether a normal number is kept can be told only by taking one: then no word moves. If they do move, seeding
        # comes next, and ``restore`` puts them back.
        kept = np.random.standard_normal()
        if self._memory.raw == self._words:
            self._slow = {**self._generator.state, "has_gauss": 1, "gauss": kept}

    def restore(self) -> None:
        """Put the state back."""
        set_bit_generator(self._generator)  # forgets the normal number that user code may have left
        if self._slow is not None:
            np.random.set_state(self._slow)
        else:
            self._memory.raw = self._words


_known: tuple[Any, Any] = (None, None)


def _memory_of(generator: Any) -> Any:
    """Return the memory of a generator's state, or None if it is not laid out as expected."""
    global _known
    if _known[0] is not generator:
        # Invariant: the generator is held beside its memory, so the address stays its own.
        _known = (generator, _mapped(generator))
    return _known[1]


def _mapped(generator: Any) -> Any:
    if type(generator) is not np.random.MT19937:
        return None
    memory = _MEMORY.from_address(generator.ctypes.state_address)
    state = generator.state["state"]
    expected = state["key"].astype(np.uint32).tobytes() + np.int32(state["pos"]).tobytes()
    return memory if memory.raw == expected else None
