"""What ``DataLoader`` says of wrong arguments, failing code and bad samples, and what it reports."""

from __future__ import annotations

import io
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import cloudpickle
import numpy as np
import pytest
import torch
import torch.utils.data as tud
from beside_torch import WORKERS, Items, Made, Streamed, check, die, needs_grad, numbers, once, ours

import antifreeze as af

# Workers get the classes of this module by value, so they import neither it nor pytest.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = pytest.mark.usefixtures("the_nursery_stays")

# -- wrong arguments and failing code ------------------------------------------------------------------------------

WRONG: dict[str, Callable[[], dict[str, Any]]] = {
    "num_workers below 0": lambda: {"num_workers": -1},
    "num_workers of text": lambda: {"num_workers": "2"},
    "num_workers of None": lambda: {"num_workers": None},
    "timeout below 0": lambda: {"timeout": -1},
    "prefetch without workers": lambda: {"prefetch_factor": 2},
    "prefetch below 0": lambda: {"prefetch_factor": -1, "num_workers": 1},
    "persistent without workers": lambda: {"persistent_workers": True},
    "context without workers": lambda: {"multiprocessing_context": "spawn"},
    "unknown context": lambda: {"multiprocessing_context": "spoon", "num_workers": 1},
    "context of another type": lambda: {"multiprocessing_context": 3, "num_workers": 1},
    "sampler and shuffle": lambda: {"sampler": [1], "shuffle": True},
    "batch_sampler and batch_size": lambda: {"batch_sampler": [[1]], "batch_size": 2},
    "batch_sampler and shuffle": lambda: {"batch_sampler": [[1]], "shuffle": True},
    "batch_sampler and drop_last": lambda: {"batch_sampler": [[1]], "drop_last": True},
    "no batches, drop_last": lambda: {"batch_size": None, "drop_last": True},
    "batch_size of 0": lambda: {"batch_size": 0},
    "batch_size below 0": lambda: {"batch_size": -3},
    "batch_size of a fraction": lambda: {"batch_size": 2.5},
    "drop_last of text": lambda: {"drop_last": "yes"},
    "shuffle of no samples": lambda: {"dataset": Items([]), "shuffle": True},
    "shuffle without a length": lambda: {"dataset": object(), "shuffle": True},
    "iterable and shuffle": lambda: {"dataset": Streamed(3), "shuffle": True},
    "iterable and sampler": lambda: {"dataset": Streamed(3), "sampler": [1]},
    "iterable and batch_sampler": lambda: {"dataset": Streamed(3), "batch_sampler": [[1]]},
    "an unknown argument": lambda: {"batchsize": 3},
    "too many positions": lambda: {"collate_fn": None, "": 1},
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_refused_as_by_torch(name: str) -> None:
    """With the same type of error, when the loader is made."""
    options = {"dataset": numbers()} | WRONG[name]()
    errors = []
    for kind in (tud.DataLoader, af.DataLoader):
        with pytest.raises((ValueError, TypeError)) as caught:
            kind(**options)
        errors.append(caught.value)

    assert isinstance(errors[1], type(errors[0]))


@pytest.mark.parametrize(
    "options",
    [
        {"on_error": "ignore"},
        {"on_error": 3},
        {"stall_limit": 0},
        {"stall_limit": "2"},
        {"stall_limit": float("nan")},
        {"max_restarts": -1},
        {"max_restarts": 2.5},
        {"worker_memory_limit": "much"},
        {"worker_memory_limit": -1},
    ],
    ids=str,
)
def test_wrong_arguments_of_our_own_are_refused(options: dict[str, Any]) -> None:
    """At once, by an error that names the argument."""
    with pytest.raises(af.ConfigError) as caught:
        af.DataLoader(numbers(), **options)

    assert caught.value.argument == next(iter(options))


class Custom(Exception):
    """An error that cannot be rebuilt from its message alone."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{text} ({code})")
        self.code = code


def fails(kind: type[Exception], arguments: tuple[Any, ...]) -> Callable[[int], int]:
    def get(index: int) -> int:
        if index == 7:
            raise kind(*arguments)
        return index

    return get


ERRORS: dict[type[Exception], tuple[Any, ...]] = {
    ValueError: ("v",),
    KeyError: ("k",),
    IndexError: (),
    FileNotFoundError: (2, "no such file", "f"),
    RuntimeError: ("r", 3),
    AssertionError: (),
    UnicodeDecodeError: ("utf-8", b"x", 0, 1, "why"),
    Custom: (3, "c"),
}


@pytest.mark.parametrize("num_workers", WORKERS)
@pytest.mark.parametrize("kind", ERRORS)
def test_errors_of_the_dataset_are_caught_by_their_type(kind: type[Exception], num_workers: int) -> None:
    """As with torch without workers, after the batches before it; who goes on gets those behind it."""
    batches = iter(ours(Made(12, fails(kind, ERRORS[kind])), batch_size=3, num_workers=num_workers))

    assert [next(batches).tolist() for _ in range(2)] == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(kind) as caught:
        next(batches)
    assert isinstance(caught.value, af.UserCodeError)
    assert "sample 7" in str(caught.value)
    assert isinstance(caught.value.__cause__, kind)
    assert [batch.tolist() for batch in batches] == [[9, 10, 11]]


MISFITS: dict[str, Callable[[int], Any]] = {
    "shapes": lambda i: np.zeros(3 if i != 4 else 5),
    "tensors": lambda i: torch.zeros(3 if i != 4 else 5),
    "None": lambda i: i if i != 4 else None,
    "None in a dict": lambda i: {"a": i if i != 4 else None},
    "keys": lambda i: {"a": 1, "b": 2} if i != 4 else {"a": 1},
    "lengths": lambda i: [1, 2] if i != 4 else [1],
}


@pytest.mark.parametrize("num_workers", WORKERS)
@pytest.mark.parametrize("name", MISFITS)
def test_samples_that_do_not_fit_together_are_named(name: str, num_workers: int) -> None:
    """Torch says only that something does not fit; the type of its error stays."""
    with pytest.raises((RuntimeError, TypeError, KeyError)) as expected:
        list(tud.DataLoader(Made(6, MISFITS[name]), batch_size=3))
    with pytest.raises(expected.type, match="sample 4") as caught:
        list(ours(Made(6, MISFITS[name]), batch_size=3, num_workers=num_workers))
    assert isinstance(caught.value, af.UserCodeError)


def test_tensors_that_need_gradients_can_be_collated() -> None:
    """Torch refuses that in workers, and not without them."""
    check(lambda: {"dataset": Made(6, needs_grad), "batch_size": 3})


def test_an_error_of_the_sampler_is_the_users_own() -> None:
    """It is raised in the trainer, where the sampler runs, in its place among the batches."""

    class Failing(tud.Sampler[int]):
        def __iter__(self) -> Iterator[int]:
            yield from (0, 1, 2, 3)
            raise ZeroDivisionError("in the sampler")

    for num_workers in WORKERS:
        found = []
        with pytest.raises(ZeroDivisionError, match="in the sampler"):
            found += list(ours(numbers(), batch_size=2, sampler=Failing(), num_workers=num_workers))


def test_a_timeout_is_a_runtime_error_as_in_torch() -> None:
    """Who sets ``timeout=`` and catches what torch raises goes on catching it."""
    loader = ours(Made(3, lambda _: time.sleep(1000)), num_workers=1, timeout=0.3)
    with pytest.raises(RuntimeError, match=r"DataLoader timed out after 0\.3 seconds"):
        next(iter(loader))


def test_what_cannot_be_sent_is_named() -> None:
    """To the worker, and back from it."""
    with pytest.raises(af.NotPicklable, match="items"):
        next(iter(ours(Items((j for j in [i]) for i in range(3)), num_workers=1)))
    with pytest.raises(af.NotPicklable, match="cannot be pickled"):
        next(iter(ours(Made(3, lambda _: threading.current_thread()), collate_fn=list, num_workers=1)))


class NotTheSame(Exception):
    """A user's own, named like one of ours."""


class NotAsSaved(Exception):
    """Another."""


class ReturnedNone(Exception):
    """Another."""


@pytest.mark.parametrize("kind", [NotTheSame, NotAsSaved, ReturnedNone])
def test_an_exception_that_is_named_like_one_of_ours_is_the_users(kind: type[Exception]) -> None:
    """What an error is follows from where it was raised, not from the name of its class."""

    def fail(_: int) -> None:
        raise kind("the user's own words")

    for num_workers in WORKERS:
        with pytest.raises(kind, match=f"raised {kind.__name__}: the user's own words") as caught:
            next(iter(ours(Made(3, fail), num_workers=num_workers)))
        assert isinstance(caught.value, af.UserCodeError)
        assert not isinstance(caught.value, af.NotRepeatable | af.StateMismatch)


def test_a_sample_that_is_named_like_one_of_our_messages_is_the_users() -> None:
    """Its name is part of what the message says, and decides nothing."""
    for num_workers in WORKERS:
        with pytest.raises(KeyError) as caught:
            next(iter(ours({}, sampler=["it cannot be pickled"], num_workers=num_workers)))
        assert isinstance(caught.value, af.UserCodeError)
        assert not isinstance(caught.value, af.NotPicklable)


class Unfit(tuple[Any, ...]):
    """Arrives, and cannot be put together there."""

    __slots__ = ()

    def __new__(cls, kind: type[Exception], there: bool) -> Self:
        """Raise what is asked for, unless it is the worker that asks."""
        if not there:
            raise kind("not here")
        return super().__new__(cls, (kind, False))

    def __getnewargs__(self) -> tuple[Any, ...]:
        return tuple(self)


@pytest.mark.parametrize("kind", [ValueError, StopIteration])
def test_a_batch_that_cannot_be_rebuilt_in_the_trainer_is_named(kind: type[Exception]) -> None:
    """Whatever its class raises there, StopIteration not being the end of the epoch; the others can be had."""

    def collate(ids: list[int]) -> Any:
        return Unfit(kind, there=True) if 5 in ids else ids

    batches, found = iter(ours(numbers(), batch_size=4, collate_fn=collate, num_workers=2)), []
    found.append(next(batches))
    with pytest.raises(
        af.UserCodeError, match=rf"rebuilding the batch .* raised {kind.__name__}: not here\n.*batch 1"
    ) as e:
        next(batches)

    assert isinstance(e.value.__cause__, kind)
    assert [*found, *batches] == [[i, i + 1, i + 2, i + 3] for i in (0, 8, 12, 16)]


@pytest.mark.parametrize("num_workers", WORKERS)
def test_stop_iteration_out_of_the_function_that_decides_is_no_end(num_workers: int) -> None:
    """Someone has forgotten a default for next()."""

    def decide(_: Exception) -> str:
        return next(iter([]))

    batches = iter(ours(Made(8, lambda i: 1 // (i - 5)), batch_size=4, num_workers=num_workers, on_error=decide))
    next(batches)
    with pytest.raises(af.UserCodeError, match="on_error raised StopIteration"):
        next(batches)


# -- samples that fail ---------------------------------------------------------------------------------------------


def bad(index: int) -> int:
    if index in (4, 9, 10, 11):
        raise ValueError(f"bad {index}")
    return index


GOOD = [[0, 1, 2], [3, 5], [6, 7, 8], [12, 13, 14]]


@pytest.mark.parametrize("num_workers", WORKERS)
def test_samples_that_fail_are_left_out_if_that_is_wished(num_workers: int, tmp_path: Path) -> None:
    """Each is reported and logged; a batch of which nothing is left does not come."""
    log = tmp_path / "skips.jsonl"
    loader = ours(Made(15, bad), batch_size=3, on_error="skip", skip_log=log, num_workers=num_workers)
    found = [batch.tolist() for batch in loader]
    report = loader.report(io.StringIO())

    assert found == GOOD
    assert [skip.sample for skip in report.skipped] == [f"sample {i} of Made" for i in (4, 9, 10, 11)]
    assert [(skip.epoch, skip.step) for skip in report.skipped] == [(0, 1), (0, 3), (0, 3), (0, 3)]
    assert "bad 4" in report.skipped[0].reason
    assert report.num_skipped == 4
    assert [json.loads(line)["sample"] for line in log.read_text().splitlines()] == [s.sample for s in report.skipped]


@pytest.mark.parametrize("num_workers", WORKERS)
def test_a_function_decides_about_samples_that_fail(num_workers: int) -> None:
    """It is called in the trainer, with the error that would be raised."""
    asked: list[Any] = []

    def decide(error: Any) -> str:
        asked.append(error)
        return "skip" if "bad 9" not in str(error) else "raise"

    loader = ours(Made(15, bad), batch_size=3, on_error=decide, num_workers=num_workers)
    batches = iter(loader)
    found = [next(batches).tolist() for _ in range(3)]
    with pytest.raises(ValueError, match="bad 9"):
        next(batches)
    found += [batch.tolist() for batch in batches]

    assert found == GOOD
    assert [error.sample for error in asked] == ["sample 4", "sample 9"]
    assert all(isinstance(error, af.UserCodeError) for error in asked)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_samples_that_fail_can_be_left_out_without_batches(num_workers: int) -> None:
    """Then their place stays empty."""
    loader = ours(Made(15, bad), batch_size=None, on_error="skip", num_workers=num_workers)

    assert list(loader) == [i for i in range(15) if i not in (4, 9, 10, 11)]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_samples_of_arrays_of_indices_can_be_left_out(num_workers: int) -> None:
    """A batch sampler may give arrays, which are neither true nor false."""
    indices = np.arange(15).reshape(5, 3)
    loader = ours(Made(15, bad), batch_sampler=indices, on_error="skip", num_workers=num_workers)

    assert [batch.tolist() for batch in loader] == GOOD


@pytest.mark.parametrize("num_workers", [0, 2])
def test_samples_of_a_dataset_that_is_asked_in_bulk_can_be_left_out(num_workers: int) -> None:
    """One by one, as there is no other way to know which of them fails."""

    class Bulk(Made):
        def __getitems__(self, indices: list[int]) -> list[Any]:
            return [self.make(index) for index in indices]

    for on_error in ("skip", lambda _: "skip"):
        loader = ours(Bulk(15, bad), batch_size=3, on_error=on_error, num_workers=num_workers)
        assert [batch.tolist() for batch in loader] == GOOD


@pytest.mark.parametrize("num_workers", [0, 1])
def test_samples_of_an_iterable_can_be_left_out(num_workers: int) -> None:
    """If its iterator can go on; a generator that has raised cannot."""

    class Numbers:
        i = -1

        def __iter__(self) -> Iterator[int]:
            return self

        def __next__(self) -> int:
            self.i += 1
            if self.i >= 15:
                raise StopIteration
            return bad(self.i)

    class Stream(tud.IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return Numbers()

    class Generated(tud.IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            yield from map(bad, range(15))

    loader = ours(Stream(), batch_size=3, on_error="skip", num_workers=num_workers)
    assert [batch.tolist() for batch in loader] == GOOD
    with pytest.raises(ValueError, match="bad 4"):
        list(ours(Generated(), batch_size=3, on_error="skip", num_workers=num_workers))


def deadly(index: int) -> int:
    if index == 4:
        die()
    return index


def test_a_sample_that_kills_its_worker_is_an_error_that_names_it() -> None:
    """After it was tried twice."""
    with pytest.raises(af.WorkerDied, match="sample 4") as caught:
        list(ours(Made(15, deadly), batch_size=3, num_workers=2))

    assert isinstance(caught.value, RuntimeError)
    assert "SIGKILL" in str(caught.value)


@pytest.mark.parametrize("on_error", ["skip", lambda _: "skip"], ids=["skip", "function"])
def test_a_sample_that_kills_its_worker_is_left_out_if_that_is_wished(on_error: Any) -> None:
    """All others come, in order."""
    loader = ours(Made(15, deadly), batch_size=3, on_error=on_error, num_workers=2)
    found = [batch.tolist() for batch in loader]
    report = loader.report(io.StringIO())

    assert found == [[0, 1, 2], [3, 5], [6, 7, 8], [9, 10, 11], [12, 13, 14]]
    assert [skip.sample for skip in report.skipped] == ["sample 4 of Made"]
    assert len(report.restarts) == 2


def test_a_batch_that_needs_a_worker_that_was_killed_is_made_again(tmp_path: Path) -> None:
    """The same batches in the same order, and the report says why it took longer."""

    def kills_once(index: int) -> int:
        if index == 31 and once(tmp_path / "died"):
            die()
        return index

    loader = ours(Made(60, kills_once), batch_size=3, num_workers=2)
    found = [batch.tolist() for batch in loader]
    (restart,) = loader.report(io.StringIO()).restarts

    assert found == [[i, i + 1, i + 2] for i in range(0, 60, 3)]
    assert "31" in restart.sample
    assert restart.cause
    assert restart.pid > 0


# -- the report ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", WORKERS)
def test_the_report_counts(num_workers: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Over all epochs, and it is printed as it is returned."""
    loader = ours(numbers(), batch_size=3, num_workers=num_workers)
    for _ in range(2):
        list(loader)
    report = loader.report()

    assert (report.epochs, report.delivered_batches, report.delivered_samples) == (2, 14, 40)
    assert (report.num_workers, report.batch_size) == (num_workers, 3)
    assert (report.skipped, report.restarts, report.num_skipped) == ((), (), 0)
    assert report.waiting_s > 0
    assert report.wall_s >= report.waiting_s
    assert {"fetch", "collate"} <= set(report.stage_s)
    assert capsys.readouterr().out == f"{report}\n"
    assert "2 epochs, 14 batches, 40 samples" in str(report)
    assert "sample sample" not in str(report)


def test_the_report_of_a_loader_that_was_not_used() -> None:
    """Nothing happened, and it says so."""
    report = ours(numbers(), num_workers=2).report(io.StringIO())

    assert (report.epochs, report.delivered_batches, report.restarts) == (0, 0, ())


def test_an_iterator_that_was_thrown_away_is_no_epoch() -> None:
    """Lightning makes one before it restores its state."""
    loader = ours(Made(15, bad), batch_size=3, on_error="skip")
    iter(loader)
    list(loader)

    assert {skip.epoch for skip in loader.report(io.StringIO()).skipped} == {0}
