"""The indices of an epoch, as a sampler gives them; and from a place within it, as it has given them before."""

from __future__ import annotations

import itertools
import zlib
from array import array
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from antifreeze.adapters._random import Random
from antifreeze.adapters._samplers import is_torchs, length_of, owner_of
from antifreeze.child import has_state, opened_state, sealed_state
from antifreeze.crew import Steps

_PLAIN = (int, float, str, bytes, bool, type(None))


class Mark(NamedTuple):
    """What was noted when a sampler stood before a step."""

    fingerprint: int = 0
    """Of the indices of all steps before it."""
    state: bytes | None = None
    """The sampler's own state, if it has one."""
    is_end: bool = False
    """Whether that is the state of a sampler that has given all it had: the next time, it begins anew."""


class Indices:
    """What a sampler gives, step by step. It runs ahead of what is delivered, so each step is marked."""

    def __init__(self, sampler: Any, random: Random) -> None:
        self._sampler, self._random = sampler, random
        self._owner = owner_of(sampler)
        self._indices: Iterator[Any] = iter(())
        self._drawn: list[Any] = []
        """What was drawn from the sampler before it was asked for."""
        self._step, self._length = 0, length_of(sampler)
        self._marks: deque[tuple[int, Mark]] = deque([(0, Mark())])
        """Of the step before which nothing is delivered, and of all after it that were drawn."""

    def begin(self, step: int = 0, mark: Mark | None = None) -> bool:
        """Start the sampler, and go to a step without loading a sample.

        Returns whether it stands where it stood when the mark was made, as far as that can be known.
        """
        saved = {} if mark is None or mark.state is None else opened_state(mark.state)
        if "sampler" in saved and self._owner is not None:
            self._owner.load_state_dict(saved["sampler"])
        self._indices = iter(()) if saved and mark is not None and mark.is_end else iter(self._sampler)
        if "iterator" in saved and has_state(self._indices):
            self._indices.load_state_dict(saved["iterator"])  # type: ignore[attr-defined]
        if is_torchs(self._sampler):
            # Torch's samplers draw from the trainer's random numbers when they give their first index, and only then.
            with self._random.in_place():
                self._drawn = list(itertools.islice(self._indices, 1))
        if mark is not None and saved:
            self._step, self._marks = step, deque([(step, mark)])
            return True
        drawn = sum(1 for _ in itertools.islice(self, step))
        self._marks = deque([self._marks[-1]] if drawn == step else [(step, Mark(-1))])
        return mark is None or self._marks[0][1].fingerprint == mark.fingerprint

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        what = self._drawn.pop() if self._drawn else next(self._indices)
        self._step += 1
        mark = Mark(fingerprint_of(what, self._marks[-1][1].fingerprint), self._state())
        if self._step == self._length:
            # Samplers may do something when they are asked in vain: torch's draw random numbers once more. Whether they
            # are asked must not depend on who takes the batches, and how.
            self._drawn = list(itertools.islice(self._indices, 1))
            mark = mark if self._drawn else Mark(mark.fingerprint, self._state(), is_end=True)
        self._marks.append((self._step, mark))
        return what

    def mark(self, step: int) -> Mark:
        """Return what was noted before a step, and forget what was noted before earlier ones."""
        while self._marks[0][0] < step:
            self._marks.popleft()
        return self._marks[0][1]

    def _state(self) -> bytes | None:
        states = {} if self._owner is None else {"sampler": self._owner.state_dict()}
        if has_state(self._indices):
            states["iterator"] = self._indices.state_dict()  # type: ignore[attr-defined]
        return sealed_state(states) if states else None


def fingerprint_of(what: Any, before: int) -> int:
    """Return a number that tells one sequence of indices from another; what cannot be told apart does not count.

    It is made for every batch. A sum takes a tenth of the time of a look at each index, and misses only two that change
    places within a batch.
    """
    try:
        if type(what) is list and what and type(what[0]) is int:
            return zlib.crc32(b"%d %d %d %d" % (len(what), what[0], what[-1], sum(what)), before)
        return zlib.crc32(array("q", what if isinstance(what, list) else [what]), before)
    except (TypeError, OverflowError):
        return zlib.crc32(repr(what).encode(errors="replace") if _is_plain(what) else b"?", before)


def _is_plain(what: Any) -> bool:
    return isinstance(what, _PLAIN) or (isinstance(what, list | tuple) and all(map(_is_plain, what)))


def runs_of(steps: Steps) -> list[list[int]]:
    """Return the steps that are missing as pairs: the first of a run, and how many."""
    runs: list[list[int]] = []
    for step in steps.missing:
        if runs and step == sum(runs[-1]):
            runs[-1][1] += 1
        else:
            runs.append([step, 1])
    return runs
