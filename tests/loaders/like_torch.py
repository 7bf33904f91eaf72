"""Small programs that use loaders as training scripts do, run with torch's loader or with ours, step by step.

Both must give the same indices, and leave the trainer's random generators in the same states, after every step.
"""

# ruff: noqa: S311  nothing here is secret

from __future__ import annotations

import copy
import hashlib
import json
import random
import selectors
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.utils.data as tud

import antifreeze as af

PATIENCE_S = 100
LENGTH = 11


class Op(NamedTuple):
    """One step of a program."""

    name: str
    loader: int = 0
    number: int = 0


class Stream(tud.IterableDataset[int]):
    """An iterable dataset that draws nothing."""

    def __iter__(self) -> Iterator[int]:
        info = tud.get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        yield from range(first, LENGTH, step)


class Eager:
    """A sampler that draws all its indices when it is started."""

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(LENGTH).tolist())

    def __len__(self) -> int:
        return LENGTH


class Drawing:
    """A sampler that draws each index when it is asked for it, from a generator of some library."""

    def __init__(self, library: str) -> None:
        self.library = library

    def __iter__(self) -> Iterator[int]:
        for _ in range(LENGTH):
            if self.library == "random":
                yield random.randrange(LENGTH)
            elif self.library == "numpy":
                yield int(np.random.randint(LENGTH))
            else:
                yield int(torch.randint(LENGTH, ()))

    def __len__(self) -> int:
        return LENGTH


class ShufflingBatches:
    """A batch sampler that shuffles with ``random``, and draws again when it is asked in vain."""

    def __iter__(self) -> Iterator[list[int]]:
        order = random.sample(range(LENGTH), LENGTH)
        for first in range(0, LENGTH, 4):
            yield order[first : first + 4]
        random.random()

    def __len__(self) -> int:
        return -(-LENGTH // 4)


def _random_sampler(**options: Any) -> Callable[[torch.Generator], dict[str, Any]]:
    return lambda g: {"sampler": tud.RandomSampler(range(LENGTH), generator=g, **options), "batch_size": 3}


LOADERS: dict[str, Callable[[torch.Generator], dict[str, Any]]] = {
    "in order": lambda _: {"batch_size": 3},
    "in order, generator": lambda g: {"batch_size": 3, "generator": g},
    "shuffle": lambda _: {"batch_size": 3, "shuffle": True},
    "shuffle, single samples": lambda _: {"shuffle": True},
    "shuffle, drop_last": lambda _: {"batch_size": 4, "shuffle": True, "drop_last": True},
    "shuffle, no batches": lambda g: {"batch_size": None, "shuffle": True, "generator": g},
    "shuffle, generator": lambda g: {"batch_size": 3, "shuffle": True, "generator": g},
    "shuffle, generator, full batches": lambda g: {"batch_size": 1, "shuffle": True, "generator": g},
    "shuffle, generator, drop_last": lambda g: {"batch_size": 2, "shuffle": True, "generator": g, "drop_last": True},
    "generator of the sampler": _random_sampler(),
    "with replacement": _random_sampler(replacement=True, num_samples=100),
    "more than there is": _random_sampler(num_samples=30),
    "two generators": lambda g: _random_sampler()(g) | {"generator": torch.Generator().manual_seed(8)},
    "replacement, no generator": lambda _: {
        "sampler": tud.RandomSampler(range(LENGTH), replacement=True, num_samples=70),
        "batch_size": 3,
    },
    "subset": lambda _: {"sampler": tud.SubsetRandomSampler(range(2, LENGTH)), "batch_size": 2},
    "weighted": lambda _: {"sampler": tud.WeightedRandomSampler([1.0 + i for i in range(LENGTH)], 13), "batch_size": 2},
    "weighted, generator": lambda g: {
        "sampler": tud.WeightedRandomSampler([1.0 + i for i in range(LENGTH)], 13, generator=g),
        "generator": g,
    },
    "batch sampler": lambda _: {"batch_sampler": tud.BatchSampler(tud.RandomSampler(range(LENGTH)), 3, False)},
    "distributed": lambda _: {
        "sampler": tud.DistributedSampler(range(LENGTH), num_replicas=2, rank=1, shuffle=True),  # type: ignore[arg-type]
        "batch_size": 2,
    },
    "drawn when started": lambda _: {"sampler": Eager(), "batch_size": 3},
    "drawn with random": lambda _: {"sampler": Drawing("random"), "batch_size": 2},
    "drawn with numpy": lambda _: {"sampler": Drawing("numpy"), "batch_size": 2},
    "drawn with torch": lambda g: {"sampler": Drawing("torch"), "batch_size": 2, "generator": g},
    "user's batch sampler": lambda _: {"batch_sampler": ShufflingBatches()},
    "iterable": lambda _: {"dataset": Stream(), "batch_size": 2},
    "iterable, generator": lambda g: {"dataset": Stream(), "batch_size": 2, "generator": g},
}


def as_is(samples: Any) -> Any:
    return samples


class World:
    """The loaders, iterators and generators of one program."""

    def __init__(self, kind: str, names: tuple[str, str], **options: Any) -> None:
        self.kind, self.names, self.options = kind, names, options
        self.seed(1)
        self.generators = [torch.Generator().manual_seed(2 + number) for number in range(2)]
        self.loaders = [self.make(number) for number in range(2)]
        self.iterators: list[Any] = [None, None]
        self.given = [0, 0]
        self.is_left = [False, False]
        """Whether an epoch was left before its end, and no other one begun."""
        self.before: list[Any] = [None, None]
        """The loader and the iterator that a state was taken of."""
        self.is_pending = [False, False]
        self.num_refused = 0
        self.is_resumed = [False, False]
        """Whether an iterator resumes from a state and has given nothing: thrown away, it would leave the state."""

    def make(self, number: int) -> Any:
        options = {"dataset": range(LENGTH), "collate_fn": as_is} | LOADERS[self.names[number]](self.generators[number])
        if self.kind == "torch":
            return tud.DataLoader(**options, **self.options)
        return af.DataLoader(**options, **self.options, timeout=PATIENCE_S if self.options["num_workers"] else 0)

    def seed(self, seed: int) -> None:
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)

    def run(self, op: Op) -> Any:
        """Take one step, and return what it gave and where it has left the generators."""
        gave = getattr(self, f"op_{op.name}")(op.loader, op.number)
        return gave, self.states()

    def states(self) -> list[str]:
        given = [g for loader in self.loaders if (g := loader.generator) is not None]
        theirs = [repr(g.get_state().tolist()) for g in (torch.default_generator, *self.generators, *given)]
        numpy = np.random.get_state()
        texts = [*theirs, repr(random.getstate()), repr((numpy[1].tolist(), numpy[2:]))]  # type: ignore[union-attr]
        return [hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()[:8] for text in texts]

    # -- what a step can be ----------------------------------------------------------------------------------------

    def op_iter(self, loader: int, _: int) -> None:
        """Make an iterator, and throw away the one that was there."""
        self.op_drop(loader, 0)
        self.iterators[loader] = iter(self.loaders[loader])
        self.given[loader], self.is_left[loader] = 0, True

    def op_next(self, loader: int, number: int) -> Any:
        """Take some batches."""
        if self.iterators[loader] is None:
            return "no iterator"
        found: list[Any] = []
        self.is_resumed[loader] = self.is_pending[loader] = False
        for _ in range(1 + number % 4):
            try:
                batch = next(self.iterators[loader], "end")
            except af.StateMismatch:
                # Somebody has drawn from a generator while a sampler was at work with it: refused, not silently wrong.
                self.num_refused += 1
                self.loaders[loader], self.iterators[loader] = self.before[loader]
                batch = next(self.iterators[loader], "end")
            found.append(batch)
            if batch == "end":
                self.op_drop(loader, 0)
                self.is_left[loader] = False
                break
            self.given[loader] += 1
        return found

    def op_epoch(self, loader: int, _: int) -> Any:
        """Take a whole epoch."""
        self.op_drop(loader, 0)
        self.is_left[loader] = False
        return list(self.loaders[loader])

    def op_break(self, loader: int, number: int) -> Any:
        """Take a few batches with a ``for`` loop, and leave it."""
        self.op_drop(loader, 0)
        self.is_left[loader] = True
        found = []
        for batch in self.loaders[loader]:
            found.append(batch)
            if len(found) > number % 3:
                break
        return found

    def op_drop(self, loader: int, _: int) -> None:
        """Throw an iterator away."""
        if self.is_resumed[loader]:
            self.op_next(loader, 0)
        self.iterators[loader] = None

    def op_seed(self, _: int, number: int) -> None:
        """Seed everything."""
        self.seed(number)

    def op_seed_generator(self, loader: int, number: int) -> None:
        """Seed what was given as ``generator=``, or is held by a sampler."""
        self.generators[loader].manual_seed(number)

    def op_draw(self, loader: int, number: int) -> Any:
        """Draw in the training loop."""
        size = (1, 5, 700)[number % 3]
        torch.rand(size)
        torch.rand(size, generator=self.generators[loader])
        return float(torch.randn(())), random.gauss(0, 1), float(np.random.randn())

    def op_another(self, loader: int, _: int) -> None:
        """Make a loader once more, as scripts do that make one for each epoch."""
        self._replace(loader, self.make)

    def op_copy(self, loader: int, _: int) -> None:
        """Continue with a copy of a loader. Torch cannot copy one whose workers stay."""
        if not self.options.get("persistent_workers"):
            copies: dict[int, Any] = {}
            self._replace(loader, lambda loader: copy.deepcopy(self.loaders[loader], copies))
            generator = self.generators[loader]
            self.generators[loader] = copies.get(id(generator), generator)

    def op_state(self, loader: int, _: int) -> None:
        """Continue with another loader, from the state of this one; torch has no such thing, and continues."""
        old, live = self.loaders[loader], self.iterators[loader] is not None
        if live and self.given[loader] == self._length(loader):
            return  # of an epoch whose last batch was delivered, a state leads to the next one
        if not live and self.is_left[loader]:
            return  # an epoch that was left is finished by whoever loads its state
        self.is_resumed[loader] = live
        if self.kind == "torch":
            return
        new = self.make(loader)
        new.load_state_dict(json.loads(json.dumps(old.state_dict())))
        if not self.is_pending[loader]:
            self.before[loader] = old, self.iterators[loader]
        self.is_pending[loader] = live
        self.loaders[loader] = new
        if live:
            self.iterators[loader] = iter(new)

    def _length(self, loader: int) -> int:
        return (
            len(list(tud.DataLoader(Stream(), batch_size=2))) if self._is_stream(loader) else len(self.loaders[loader])
        )

    def _is_stream(self, loader: int) -> bool:
        return self.names[loader].startswith("iterable")

    def _replace(self, loader: int, make: Callable[[int], Any]) -> None:
        self.op_drop(loader, 0)
        self.loaders[loader], self.is_left[loader] = make(loader), False


OPS = sorted(name.removeprefix("op_") for name in dir(World) if name.startswith("op_"))


def run(kind: str, names: tuple[str, str], program: list[Op], options: dict[str, Any]) -> list[Any]:
    """Return what each step of a program gave, and where it has left the generators."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        world = World(kind, names, **options)
        return [world.states(), *(world.run(op) for op in program)]
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])


@contextmanager
def clean_process() -> Iterator[Callable[..., Any]]:
    """Have programs run in another process, where torch's loader may fork: it has none of this one's threads."""
    command = [sys.executable, __file__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield partial(_call, process)
        finally:
            process.kill()


def _call(process: subprocess.Popen[str], *arguments: Any) -> Any:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(arguments) + "\n")
    process.stdin.flush()
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        assert selector.select(PATIENCE_S), f"torch does not come to an end with {arguments}"
    return json.loads(process.stdout.readline())


if __name__ == "__main__":
    for line in sys.stdin:
        kind, names, program, options = json.loads(line)
        print(json.dumps(run(kind, tuple(names), [Op(*op) for op in program], options)), flush=True)
