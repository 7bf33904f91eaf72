"""The indices of an epoch, as a sampler gives them; and from a position within it, as it gave them before."""

from __future__ import annotations

import zlib
from array import array
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from antifreeze.loaders._generators import Generators, States
from antifreeze.loaders._torch_settings import draws_nothing, free_steps, length_of, loading, owner_of
from antifreeze.worker import has_state, opened_state, sealed_state

_PLAIN = (int, float, str, bytes, bool, type(None))


class Mark(NamedTuple):
    """What was noted when a sampler was about to give a step."""

    fingerprint: int = 0
    """Of the indices of all steps before it."""
    state: bytes | None = None
    """The sampler's own state, if it has one."""
    is_end: bool = False
    """Whether that is the state of a sampler that has given all it had: the next time, it starts over."""


class Indices:
    """What a sampler gives, step by step, taken from it when torch's loader would take it.

    With workers, torch takes ``prefetch_factor * num_workers`` steps from the sampler at ``iter()``, and one more with
    each batch that it hands over. A sampler may draw from the trainer's random generators at any step, so when it is
    asked decides about the order of its indices, and about all that is drawn after them. Only where nobody can
    notice does it run further ahead of what is delivered. Each step is marked, so that a state can be taken there.
    """

    def __init__(self, sampler: Any, generators: Generators, *, ahead: int) -> None:
        self._sampler, self._generators, self._ahead = sampler, generators, ahead
        self.asked: States | None = None
        """Where generators were when the sampler was first asked for an index."""
        self._owner = owner_of(sampler)
        self.draws_nothing = draws_nothing(sampler)
        """Whether nobody can see in a generator when it is started and asked."""
        self._iterator: Iterator[Any] = iter(())
        self._has_state = self.is_started = False
        self._free = free_steps(sampler) if ahead else 0
        self.runs_ahead = self._free > ahead
        """Whether it may be asked earlier than torch's loader asks it."""
        self._wanted = 0
        """How many calls torch's loader would have made by now."""
        self.calls = 0
        """How often the sampler was asked, once in vain included."""
        self._step, self._length, self._is_over = 0, length_of(sampler), False
        self._ready: deque[Any] = deque()
        """What was taken from the sampler and not asked for here."""
        self._marks: deque[tuple[int, Mark]] = deque([(0, Mark())])
        """Of the step before which nothing is delivered, and of all after it that were taken."""

    # -- beginning -------------------------------------------------------------------------------------------------

    def start(self, mark: Mark | None = None) -> None:
        """Start the sampler; from its own state, if it had one."""
        saved = {} if mark is None or mark.state is None else opened_state(mark.state)
        if "sampler" in saved and self._owner is not None:
            with loading("the sampler"):
                self._owner.load_state_dict(saved["sampler"])
        self._iterator = iter(()) if saved and mark is not None and mark.is_end else iter(self._sampler)
        if "iterator" in saved and has_state(self._iterator):
            with loading("the sampler's iterator"):
                self._iterator.load_state_dict(saved["iterator"])  # type: ignore[attr-defined]
        self._has_state, self.is_started = self._owner is not None or has_state(self._iterator), True

    def go_to(self, step: int, mark: Mark, calls: int, asked: States | None) -> bool:
        """Go to a step without loading a sample, and take from the sampler what was taken before.

        Returns whether it is where it was when the mark was made, as far as that can be known.
        """
        if mark.state is not None:
            self._step = self.calls = step
            self._marks = deque([(step, mark)])
            self.asked = asked
            return True
        if asked is not None:
            self._generators.put(asked)
        while self.calls < step and not self._is_over:
            self._ask()
            self._ready.clear()
            self.mark(self._step)
        if self._step < step:
            self._marks = deque([(step, Mark(-1))])
        while self.calls < calls and not self._is_over:
            self._ask()
        return self._marks[0][1].fingerprint == mark.fingerprint

    def prefetch(self, step: int = 0) -> None:
        """Take from the sampler what torch's loader takes when an epoch begins, or had taken by this step."""
        self._wanted = step + self._ahead if self._ahead else 0
        self._fill()

    # -- resuming --------------------------------------------------------------------------------------------------

    def more(self) -> None:
        """Take from the sampler what torch's loader takes when it hands over a batch, or its error."""
        if self._ahead:
            self._wanted += 1
            self._fill()

    def is_ready(self) -> bool:
        """True unless another step would be taken from the sampler too early."""
        return bool(self._ready) or self._is_over or self.calls < self._free

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if not self._ready:
            if self._is_over:
                raise StopIteration
            self._ask()
            if self._is_over:
                raise StopIteration
        return self._ready.popleft()

    def mark(self, step: int) -> Mark:
        """Return what was noted before a step, and forget what was noted before earlier ones."""
        while self._marks[0][0] < step:
            self._marks.popleft()
        return self._marks[0][1]

    def _fill(self) -> None:
        while self.calls < self._wanted and not self._is_over:
            self._ask()

    def _ask(self) -> None:
        if self.asked is None:
            self.asked = self._generators.states_for_sampler()
        self.calls += 1
        try:
            what = next(self._iterator)
        except StopIteration:
            self._is_over = True
            if self._has_state:
                step, mark = self._marks[-1]
                self._marks[-1] = (step, Mark(mark.fingerprint, self._state(), is_end=True))
            return
        self._step += 1
        fingerprint = fingerprint_of(what, self._marks[-1][1].fingerprint)
        self._marks.append((self._step, Mark(fingerprint, self._state() if self._has_state else None)))
        self._ready.append(what)
        if self._has_state and self._step == self._length:
            # Whether its state is that of the end or of a new beginning must not depend on whether another batch is
            # asked for: a BatchSampler has mostly asked the sampler in vain for its last batch.
            self._ask()

    def _state(self) -> bytes | None:
        states = {} if self._owner is None else {"sampler": self._owner.state_dict()}
        if has_state(self._iterator):
            states["iterator"] = self._iterator.state_dict()  # type: ignore[attr-defined]
        return sealed_state(states) if states else None


def fingerprint_of(what: Any, before: int) -> int:
    """Return a number that tells one sequence of indices from another; what cannot be told apart does not count.

    It is made for every batch. A sum takes a tenth of the time of a look at each index, and misses only two that change
    positions within a batch.
    """
    try:
        if type(what) is list and what and type(what[0]) is int:
            if len(what) == 1:
                return zlib.crc32(b"%d" % what[0], before)
            return zlib.crc32(b"%d %d %d %d" % (len(what), what[0], what[-1], sum(what)), before)
        return zlib.crc32(array("q", what if isinstance(what, list) else [what]), before)
    except (TypeError, OverflowError, ValueError):  # the last: a number of thousands of digits
        return zlib.crc32(_told(what), before)


def _told(what: Any) -> bytes:
    try:
        return repr(what).encode(errors="replace") if _is_plain(what) else b"?"
    except (ValueError, RecursionError):
        return b"?"


def _is_plain(what: Any) -> bool:
    return isinstance(what, _PLAIN) or (isinstance(what, list | tuple) and all(map(_is_plain, what)))
