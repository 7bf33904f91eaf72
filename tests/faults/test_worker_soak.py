"""Random faults at random moments, in every engine: batches are those of the undisturbed run, in its order."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from worker_datasets import LENGTH, Fault, Several, plain
from worker_engines import ENGINES, make, undisturbed
from worker_processes import PATIENCE_S, bases, nurseries, send, templates, workers

import antifreeze as af
from conftest import more

LETHAL = ("killed", "segfault", "exits", "exits_as_if_well", "stopped")
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV)


@dataclass(frozen=True, slots=True)
class Trial:
    """What is done, all of it chosen by the seed."""

    engine: str
    epochs: int
    num_samples: int
    options: dict[str, Any]
    faults: tuple[Fault, ...]
    raises_at: int | None
    blow: tuple[signal.Signals, str, int, int, float] | None
    """A signal from outside: to whom, in which epoch, after which batch, and how much later."""
    step_s: float
    """How long a training step takes."""


def choose(seed: int, folder: Path) -> Trial:
    """Return the trial of a seed."""
    rng = random.Random(seed)  # noqa: S311
    engine, num_samples = rng.choice(ENGINES), rng.choice([24, 50])
    options = {
        "num_workers": rng.randrange(1, 5),
        "batch_size": rng.choice([1, 3, 8]),
        "prefetch_factor": rng.choice([None, None, 1, 3]),
        "persistent_workers": rng.random() < 0.5,
        "delay_s": rng.choice([0.0, 0.0, 0.002, 0.01]),
        "stall_limit": 1,
    }
    how = rng.choice(["inside", "inside", "outside", "nursery", "raise", "both"])
    epochs = 1 if how in ("raise", "both") else rng.choice([1, 1, 2])
    samples = rng.sample(range(num_samples), 4)
    faults, raises_at, blow = [], None, None
    if how in ("inside", "both", "nursery"):
        for number in range(rng.choice([1, 1, 2, 3])):
            # Those that strike at no one sample only once: two such losses make the batch, or the start, the reason.
            moment = rng.choice(["sample", "sample", "collate", "pack", "load"] if number == 0 else ["sample"])
            at = -1 if moment == "load" else samples[number]
            faults.append(Fault(rng.choice(LETHAL), moment, at, str(folder / str(number))))
    if how in ("raise", "both"):
        raises_at = samples[3]
        faults.append(Fault("raises", "sample", raises_at))
    if how in ("outside", "nursery"):
        # Workers only if nothing else happens to them: a sample at which two are lost counts as the reason.
        servers = ["nursery", "template", "modules"]
        whom = rng.choice(servers if how == "nursery" else ["one", "all", *servers, "everybody"])
        last = -(-num_samples // options["batch_size"])
        blow = (rng.choice(SIGNALS), whom, rng.randrange(epochs), rng.randrange(last), rng.choice([0, 0, 0.005, 0.05]))
    step_s = rng.choice([0.0, 0.0, 0.001, 0.01])
    return Trial(engine, epochs, num_samples, options, tuple(faults), raises_at, blow, step_s)


def strike(number: signal.Signals, whom: str, delay_s: float) -> None:
    """Send the signal."""
    time.sleep(delay_s)
    found = {
        "one": lambda: workers()[:1],
        "all": workers,
        "nursery": nurseries,
        "template": templates,
        "modules": bases,
        "everybody": lambda: nurseries() + bases() + templates() + workers(),
    }
    send(number, found[whom]())


def read(trial: Trial, batches: Iterator[Any], epoch: int) -> tuple[list[tuple[int, bytes]], list[str]]:
    """Return the batches of an epoch, and the errors between them."""
    found: list[tuple[int, bytes]] = []
    errors: list[str] = []
    kept: list[Any] = []
    threads = []
    while len(errors) < 9:
        try:
            batch = next(batches)
        except StopIteration:
            break
        except af.AntifreezeError as error:
            errors.append(f"{type(error).__name__}: {error}")
            continue
        found.append(plain(batch))
        if trial.blow is not None and trial.blow[2:4] == (epoch, len(found) - 1):
            threads.append(threading.Thread(target=strike, args=(trial.blow[0], trial.blow[1], trial.blow[4])))
            threads[-1].start()
        kept = [*kept[-3:], (batch, found[-1])]
        assert all(plain(held) == before for held, before in kept)
        kept[0][0][0][...] = -1.0  # it is the trainer's own, and reaches nobody else
        del kept[0]
        time.sleep(trial.step_s)
    for thread in threads:
        thread.join(PATIENCE_S)
    return found, errors


def numbers(batch: tuple[int, bytes]) -> list[int]:
    return [int(n) for n in np.frombuffer(batch[1]).reshape(-1, LENGTH)[:, 0]]


def without(trial: Trial, expected: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """Return what is left of an epoch in which a sample raises."""
    at = trial.raises_at
    if at is None:
        return expected
    (bad,) = [number for number, batch in enumerate(expected) if at in numbers(batch)]
    if trial.engine == "map":
        return expected[:bad] + expected[bad + 1 :]
    if trial.engine == "streaming":
        return expected[:bad]
    num_workers = trial.options["num_workers"]
    return [b for n, b in enumerate(expected) if n < bad or numbers(b)[0] % num_workers != at % num_workers]


def run(seed: int, folder: Path) -> None:
    """Compare a disturbed run with the undisturbed one."""
    trial = choose(seed, folder)
    print(f"seed {seed}: {trial}")
    same = {name: trial.options[name] for name in ("num_workers", "batch_size", "persistent_workers")}
    expected = undisturbed(trial.engine, epochs=2, num_samples=trial.num_samples, **same)
    loader = make(trial.engine, Several(trial.faults), num_samples=trial.num_samples, **trial.options)
    for epoch in range(trial.epochs):
        found, errors = read(trial, iter(loader), epoch)
        assert len(errors) == (trial.raises_at is not None), f"seed {seed}: {errors}"
        left = without(trial, expected[epoch])
        assert [b[0] for b in found] == [b[0] for b in left], f"seed {seed}"
        assert found == left, f"seed {seed}"


@pytest.mark.parametrize("seed", [*range(5), *more(*range(5, 16))])
def test_a_disturbed_run_is_the_undisturbed_one(seed: int, tmp_path: Path) -> None:
    """A few of what the soak does a thousand times."""
    run(seed, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1000, 2000))
def test_a_thousand_disturbed_runs_are_the_undisturbed_ones(seed: int, tmp_path: Path) -> None:
    """The seed of each trial is in its name."""
    run(seed, tmp_path)
