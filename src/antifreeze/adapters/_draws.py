"""The state of a torch generator as two integers: what it was seeded with, and how many numbers were drawn since.

A Mersenne twister has 2.5 KB of state, too much for a position that is saved with every batch. But all of it follows
from the seed and the count. The count is not kept anywhere, so it is found by drawing from a second generator until it
stands where the first one does: NumPy's, which is the same twister and draws a number in a nanosecond.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

_WORDS = 624
_AT_A_TIME = 2048
_MOST_BLOCKS = 1 << 22
"""Beyond 2.6 billion draws the words themselves are kept."""
# How torch has laid out the state since its beginnings in Lua; what is left over are normal numbers drawn in pairs.
_LAYOUT = np.dtype([("seed", "<u8"), ("left", "<i4"), ("seeded", "<i4"), ("next", "<u8"), ("words", "<u8", _WORDS)])


class Draws:
    """Tells how many numbers were drawn from a generator. Remembers the last answer: the next one is not far."""

    def __init__(self) -> None:
        self._seed, self._block = -1, 0
        self._words: Any = None
        self._lost = -1
        """A seed from which no way was found: somebody has put another state in place."""

    def describe(self, state: torch.Tensor) -> dict[str, Any]:
        """Return the state of a generator in few words."""
        found = _parsed(state)
        seed, drawn = int(found["seed"]), int(found["next"])
        words = found["words"].astype(np.uint32)
        if np.array_equal(words, _seeded(seed)):
            return {"seed": seed, "draws": 0}
        if seed != self._seed or not self._search(words):
            self._seed, self._block, self._words = seed, 0, _seeded(seed)
            if self._lost == seed or not self._search(words):
                self._seed, self._lost = -1, seed
                return {"seed": seed, "draws": drawn, "words": base64.b85encode(words.tobytes()).decode()}
        return {"seed": seed, "draws": (self._block - 1) * _WORDS + drawn}

    def _search(self, words: Any) -> bool:
        """Go forward from the block of numbers that was found last to the one that these words give."""
        if self._block and np.array_equal(words, self._words):
            return True
        target = np.random.Generator(_twister(words, 0)).integers(1 << 32, size=_WORDS, dtype=np.uint32)
        draw = np.random.Generator(_twister(self._words))
        first, count = self._block + 1, 8
        while first < _MOST_BLOCKS:
            numbers = draw.integers(1 << 32, size=(count, _WORDS), dtype=np.uint32)
            for row in np.flatnonzero(numbers[:, 0] == target[0]).tolist():
                if np.array_equal(numbers[row], target):
                    self._block, self._words = first + row, words
                    return True
            first, count = first + count, min(2 * count, _AT_A_TIME)
        return False


def check_description(description: Mapping[str, Any]) -> None:
    """Raise ValueError unless this describes the state of a generator."""
    numbers = description["seed"], description["draws"]
    if any(type(n) is not int or n < 0 for n in numbers) or numbers[0] >= 2**64 or numbers[1] > _MOST_BLOCKS * _WORDS:
        raise ValueError(f"{description!r:.200} does not describe a generator")
    if "words" in description and len(base64.b85decode(description["words"])) != 4 * _WORDS:
        raise ValueError("these are not the words of a generator")


def state_of(description: Mapping[str, Any]) -> torch.Tensor:
    """Return the state of a generator that was described in few words."""
    seed, draws = int(description["seed"]), int(description["draws"])
    state = torch.Generator().manual_seed(seed).get_state()
    if draws == 0:
        return state
    if "words" in description:
        words, place = np.frombuffer(base64.b85decode(description["words"]), np.uint32), draws
    else:
        twister = _twister(_seeded(seed))
        draw = np.random.Generator(twister)
        for first in range(0, draws, _AT_A_TIME * _WORDS):
            draw.integers(1 << 32, size=min(_AT_A_TIME * _WORDS, draws - first), dtype=np.uint32)
        words, place = twister.state["state"]["key"], twister.state["state"]["pos"]
    target = _parsed(state)
    target["words"], target["next"], target["left"] = words, place, _WORDS + 1 - place
    return state


def _parsed(state: torch.Tensor) -> Any:
    """Return the parts of a generator's state; to change them is to change the state."""
    return state.numpy()[: _LAYOUT.itemsize].view(_LAYOUT)[0]


def _seeded(seed: int) -> Any:
    return _parsed(torch.Generator().manual_seed(seed).get_state())["words"].astype(np.uint32)


def _twister(words: Any, position: int = _WORDS) -> np.random.MT19937:
    twister = np.random.MT19937(0)
    twister.state = {"bit_generator": "MT19937", "state": {"key": words, "pos": position}}
    return twister
