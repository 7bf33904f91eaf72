"""Where a loader's random numbers come from: the seed of each epoch, and what its sampler draws."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from antifreeze.adapters._draws import Draws, state_of
from antifreeze.adapters._samplers import chain_of, generators_of
from antifreeze.core import settle

_LOST = "the order and the random numbers are not those that they would have been"

States = dict[str, torch.Tensor]
"""The states of generators, by name."""


class Random:
    """The generators of a loader: its own, the one it was given, and those of its sampler."""

    def __init__(self) -> None:
        self._given: torch.Generator | None = None
        self._sampler: Any = None
        self._own: torch.Generator | None = None
        self._seen = 0
        """The seed that torch had when this loader last looked at it."""
        self._draws: dict[str, Draws] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_own": None, "_given": None, "_sampler": None}

    def of(self, given: torch.Generator | None, sampler: Any) -> Random:
        """Return this, after a look at what the loader has now: frameworks set attributes at any time."""
        self._given, self._sampler = given, sampler
        return self

    def own(self) -> torch.Generator:
        """Return the generator that this loader draws from instead of the trainer's.

        It begins with the trainer's state, and again when torch was seeded anew; what the trainer draws in between does
        not change a batch.
        """
        if self._own is None or torch.initial_seed() != self._seen:
            self._set_own(torch.get_rng_state())
        assert self._own is not None  # noqa: S101  it was set
        return self._own

    def draw_seed(self) -> int:
        """Return the seed of an epoch."""
        return int(torch.empty((), dtype=torch.int64).random_(generator=self._given or self.own()).item())

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Put the loader's own random numbers in place of the trainer's for a ``with`` block."""
        own, before = self.own(), torch.get_rng_state()
        torch.set_rng_state(own.get_state())
        try:
            yield
            own.set_state(torch.get_rng_state())
        finally:
            torch.set_rng_state(before)

    def states(self) -> States:
        """Return where all generators stand, and the loader's own would, before the next epoch."""
        is_new = self._own is None or torch.initial_seed() != self._seen
        own = {"own": torch.get_rng_state() if is_new or self._own is None else self._own.get_state()}
        return (own if self._needs_own() else {}) | {name: g.get_state() for name, g in self._others().items()}

    def seeds(self) -> dict[str, int]:
        """Return what all generators were seeded with last."""
        return {"own": torch.initial_seed()} | {name: g.initial_seed() for name, g in self._others().items()}

    def describe(self, states: States) -> dict[str, Any]:
        """Return states in few words."""
        return {name: self._draws.setdefault(name, Draws()).describe(state) for name, state in states.items()}

    def restore(self, saved: Mapping[str, Any], seeds: Mapping[str, int], *, is_beginning: bool, strict: bool) -> None:
        """Put all generators where they were.

        Args:
            saved: where they were, in few words.
            seeds: what they were seeded with when the state was loaded. Who seeds one after that, before an epoch
                begins, wants other random numbers; unless the seed is the one that it had when it was saved.
            is_beginning: whether an epoch begins there.
            strict: whether another seed of the given generator is an error.
        """
        now = self.seeds()
        known = {name: (seeds.get(name), saved.get(name, {}).get("seed")) for name in now}
        left = {name for name in now if is_beginning and now[name] not in known[name]}
        if "given" in saved and "given" in now and "given" not in left:
            seed = saved["given"]["seed"]
            settle({"generator": (seed, now["given"])} if seed != now["given"] else {}, strict=strict, lost=_LOST)
        for name, generator in self._others().items():
            if name in saved and name not in left:
                generator.set_state(state_of(saved[name]))
        if "own" in saved and "own" not in left:
            self._set_own(state_of(saved["own"]))

    def _set_own(self, state: torch.Tensor) -> None:
        self._own, self._seen = torch.Generator(), torch.initial_seed()
        self._own.set_state(state)

    def _needs_own(self) -> bool:
        return self._given is None or any(getattr(s, "generator", self) is None for s in chain_of(self._sampler))

    def _others(self) -> dict[str, torch.Generator]:
        given = {} if self._given is None else {"given": self._given}
        others = [g for g in generators_of(self._sampler) if g is not self._given and g.device.type == "cpu"]
        return given | {f"sampler {number}": g for number, g in enumerate(others)}
