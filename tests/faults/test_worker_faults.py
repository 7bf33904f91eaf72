"""Fault x engine x moment: whatever happens to a worker, the batches are those of an undisturbed run, in its order.

Faults happen once, remembered by a file, or are inflicted from here. Nothing depends on how long anything takes: a run
that does not end is ended by pytest, with the line that every thread stands on.
"""

from __future__ import annotations

import gc
import io
import itertools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from worker_datasets import (
    BATCH_SIZE,
    LENGTH,
    NUM_SAMPLES,
    Bumpy,
    Deadly,
    Fault,
    InTurn,
    Leaky,
    Native,
    Patient,
    Skipping,
    first_value,
    numbers_of,
    plain,
    slow_start,
    tiny,
)
from worker_engines import ENGINES, AsIterable, make, undisturbed
from worker_processes import (
    awaits_signals,
    bases,
    identity,
    lives,
    nurseries,
    programs,
    send,
    state_of,
    templates,
    threads_of,
    until,
    workers,
)

import antifreeze as af
from antifreeze.worker import DUMP_SIGNAL
from conftest import more

MIDDLE = 17
MOMENTS = {
    "load": Fault("", "load"),
    "init": Fault("", "init", 0),
    "first sample": Fault("", "sample", 0),
    "middle": Fault("", "sample", MIDDLE),
    "last sample": Fault("", "sample", NUM_SAMPLES - 1),
    "collate": Fault("", "collate", MIDDLE),
    "pack": Fault("", "pack", MIDDLE),
}
OF_THE_ENGINE = [(e, m) for e in ENGINES for m in MOMENTS if e != "streaming" or m != "init"]
STOPPED = [(engine, moment) for engine, moment in OF_THE_ENGINE if moment != "last sample"]
CAUSES = {
    "killed": "killed",
    "killed_with_its_group": "killed",
    "segfault": "crashed",
    "aborted": "crashed",
    "exits": "exited",
    "exits_as_if_well": "exited",
    "stopped": "stopped",
    "sleeps": "sleeping",
    "holds_the_interpreter": "busy",
    "full_pipe": "full-pipe",
    "silent_peer": "network",
    "deadlock": "lock",
    "waits_for_a_child": "child",
}


@pytest.fixture
def flag(tmp_path: Path) -> str:
    """Return a file that is there once the fault has happened."""
    return str(tmp_path / "it-has-happened")


def fault_at(moment: str, kind: str, flag: str = "") -> Fault:
    place = MOMENTS[moment]
    return Fault(kind, place.moment, place.at, flag)


def crew_for(moment: str) -> dict[str, int]:
    """Return how many workers: another one that is ready earlier would do all the work before the fault is noticed."""
    return {"num_workers": 1 if moment in ("load", "init") else 2}


def few_first(pairs: list[tuple[str, str]], *always: str) -> list[Any]:
    """Return pairs as parameters: those with one of these words always run, the others only with `make test-more`."""
    few = [pair for pair in pairs if not set(pair).isdisjoint(always)]
    return [*few, *more(*(pair for pair in pairs if pair not in few))]


def restarts(loader: Any) -> list[str]:
    return [restart.cause for restart in loader.report(io.StringIO()).restarts]


# -- it happens in user code ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("engine", "moment"), OF_THE_ENGINE)
def test_a_worker_that_is_killed_costs_nothing(engine: str, moment: str, flag: str) -> None:
    """At whatever it was, another one takes it over."""
    loader = make(engine, fault_at(moment, "killed", flag), **crew_for(moment))

    assert [plain(batch) for batch in loader] == undisturbed(engine, **crew_for(moment))[0]
    assert Path(flag).exists()
    assert restarts(loader) == ["killed"]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", ["segfault", "aborted", "exits", "exits_as_if_well", "killed_with_its_group"])
def test_a_worker_that_ends_costs_nothing(engine: str, kind: str, flag: str) -> None:
    """A worker that goes with the exit code of success has not brought its batch either."""
    loader = make(engine, fault_at("middle", kind, flag))

    assert [plain(batch) for batch in loader] == undisturbed(engine)[0]
    assert restarts(loader) == [CAUSES[kind]]


@pytest.mark.parametrize(("engine", "moment"), few_first(STOPPED, "map", "middle"))
def test_a_worker_that_is_stopped_costs_the_limit(engine: str, moment: str, flag: str) -> None:
    """A stopped process cannot be asked anything; its state is seen from outside."""
    loader = make(engine, fault_at(moment, "stopped", flag), stall_limit=1, **crew_for(moment))

    assert [plain(batch) for batch in loader] == undisturbed(engine, **crew_for(moment))[0]
    assert restarts(loader) == ["stopped"]


@pytest.mark.parametrize(
    "kind", ["sleeps", "holds_the_interpreter", "full_pipe", "silent_peer", "deadlock", "waits_for_a_child"]
)
def test_a_worker_that_is_stuck_costs_the_limit(kind: str, flag: str) -> None:
    """Each way of being stuck is found out, named, and ended."""
    loader = make("map", fault_at("middle", kind, flag), stall_limit=1)

    assert [plain(batch) for batch in loader] == undisturbed("map")[0]
    assert restarts(loader) == [CAUSES[kind]]


@pytest.mark.parametrize("moment", ["init", "collate", "pack"])
def test_a_worker_that_holds_the_interpreter_can_be_anywhere(moment: str, flag: str) -> None:
    """Nothing in that process runs any more, no thread of ours either."""
    loader = make("map", fault_at(moment, "holds_the_interpreter", flag), stall_limit=1, **crew_for(moment))

    assert [plain(batch) for batch in loader] == undisturbed("map")[0]
    assert len(restarts(loader)) == 1


@pytest.mark.parametrize("engine", ENGINES)
def test_a_worker_that_says_it_is_idle_and_does_not_run_is_found_out(engine: str, flag: str) -> None:
    """A thread of a library holds the interpreter: the record stands at a stage in which a worker may rest."""
    loader = make(engine, fault_at("middle", "idle_main_thread_behind_a_busy_one", flag), stall_limit=1, delay_s=0.02)

    assert [plain(batch) for batch in loader] == undisturbed(engine)[0]


def test_a_finished_batch_does_not_wait_for_the_one_after_it(flag: str) -> None:
    """Small batches are sent together, but not at the price of one that is there."""
    found = []
    for batch in af.DataLoader(Patient(flag), batch_size=None, num_workers=1, prefetch_factor=4):
        found.append(batch)
        Path(flag).touch()

    assert found == [0, 1, 2, 3]


def test_to_be_asked_where_it_stands_does_not_interrupt_a_worker(tmp_path: Path) -> None:
    """Native code takes an interruption for an end or an error, and what is only slow must not be disturbed."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    batches = iter(af.DataLoader(Native(str(fifo)), batch_size=None, num_workers=1, prefetch_factor=2))
    assert next(batches) == 0
    until(Path(f"{fifo}.open").exists, "the sample is at its native call")
    (worker,) = workers()
    until(lambda: state_of(worker) == "S", "the worker waits")

    send(DUMP_SIGNAL, [worker])
    until(lambda: not awaits_signals(worker), "the worker was asked")
    fifo.write_text("go on")

    assert list(batches) == [1]


def test_slow_samples_after_fast_ones_are_not_one_that_is_stuck() -> None:
    """Fast ones are not timed one by one; that a worker goes from one to the next counts all the same."""
    loader = af.DataLoader(Bumpy(256, {200, 201, 202, 203}), batch_size=64, num_workers=1, stall_limit=3)

    assert [batch.tolist() for batch in loader] == [list(range(i, i + 64)) for i in range(0, 256, 64)]
    assert restarts(loader) == []


def test_a_worker_that_leaks_is_replaced_after_its_batches() -> None:
    """Nothing is made again: it is asked for no more, and goes when it has brought what it had."""
    loader = make("map", worker_memory_limit="100MB", num_samples=240, delay_s=0.03)
    loader.dataset.__class__ = Leaky

    assert [plain(batch) for batch in loader] == undisturbed("map", num_samples=240)[0]
    assert set(restarts(loader)) == {"leak"}


# -- it is done from outside ---------------------------------------------------------------------------------------

Blow = Callable[[], None]


def _to_one(number: signal.Signals) -> Blow:
    return lambda: send(number, workers()[:1])


def _to_all(number: signal.Signals) -> Blow:
    return lambda: send(number, workers())


def _to_nursery(number: signal.Signals) -> Blow:
    return lambda: send(number, nurseries())


def _to_template(number: signal.Signals) -> Blow:
    return lambda: send(number, templates())


def _to_modules(number: signal.Signals) -> Blow:
    return lambda: send(number, bases())


def _to_everybody(number: signal.Signals) -> Blow:
    def blow() -> None:
        everybody = nurseries() + bases() + templates() + workers()
        send(number, everybody)

    return blow


BLOWS: dict[str, Blow] = {
    "one killed": _to_one(signal.SIGKILL),
    "all killed": _to_all(signal.SIGKILL),
    "nursery killed": _to_nursery(signal.SIGKILL),
    "nursery and all killed": _to_everybody(signal.SIGKILL),
    "template killed": _to_template(signal.SIGKILL),
    "modules killed": _to_modules(signal.SIGKILL),
    "template stopped": _to_template(signal.SIGSTOP),
    "modules stopped": _to_modules(signal.SIGSTOP),
    "one stopped": _to_one(signal.SIGSTOP),
    "all stopped": _to_all(signal.SIGSTOP),
    "nursery stopped": _to_nursery(signal.SIGSTOP),
    "nursery and all stopped": _to_everybody(signal.SIGSTOP),
    "one terminated": _to_one(signal.SIGTERM),
}
SHORT = [name for name in BLOWS if "stopped" not in name]


def struck(batches: Iterator[Any], blow: Blow, after: int) -> Iterator[tuple[int, bytes]]:
    """Yield batches; strike after so many of them."""
    for number, batch in enumerate(batches, start=1):
        yield plain(batch)
        if number == after:
            until(workers, "there are workers")
            blow()


ALWAYS = ("map", "one killed", "all killed", "one stopped", "all stopped", "nursery killed", "nursery stopped")
"""Other blows reach processes that have nothing to do with the engine."""
IN_THE_MIDDLE = [name for name in BLOWS if name not in ("one terminated", "all stopped")]


@pytest.mark.parametrize(("name", "engine"), few_first([(n, e) for n in IN_THE_MIDDLE for e in ENGINES], *ALWAYS))
def test_a_blow_in_the_middle_of_an_epoch(engine: str, name: str) -> None:
    """To a worker, to all of them, to the process that they come from."""
    loader = make(engine, stall_limit=1, delay_s=0.02)

    assert list(struck(loader, BLOWS[name], after=3)) == undisturbed(engine)[0]


BETWEEN = ["one killed", "all stopped", "nursery killed", "nursery stopped", "template killed", "template stopped"]


@pytest.mark.parametrize(("name", "engine"), few_first([(n, e) for n in BETWEEN for e in ENGINES], *ALWAYS))
def test_a_blow_between_epochs(engine: str, name: str) -> None:
    """Workers that stay for the next epoch are idle; nobody waits for them, and nobody looks at what they do."""
    loader = make(engine, stall_limit=1, persistent_workers=True)
    found = [[plain(batch) for batch in loader]]
    BLOWS[name]()
    found += [[plain(batch) for batch in loader] for _ in range(2)]

    assert found == undisturbed(engine, epochs=3, persistent_workers=True)


def test_all_are_killed_again_and_again() -> None:
    """Not the same sample each time, so it is no sample's fault."""
    loader = make("map", delay_s=0.01)
    found = []
    for number, batch in enumerate(loader):
        found.append(plain(batch))
        if number in (1, 4, 7):
            send(signal.SIGKILL, workers())

    assert found == undisturbed("map")[0]


@pytest.mark.parametrize(
    "name", ["nursery killed", "nursery and all killed", "all killed", "nursery stopped", "template killed"]
)
@pytest.mark.parametrize("num_workers", [1, 4])
def test_a_blow_while_workers_start(name: str, num_workers: int) -> None:
    """One blow, and not one for each of them: it says nothing about the dataset."""
    loader = make("map", num_workers=num_workers, worker_init_fn=slow_start)
    thread = threading.Thread(
        target=lambda: (until(lambda: len(workers()) == num_workers, "workers are born"), BLOWS[name]())
    )
    thread.start()

    assert [plain(batch) for batch in loader] == undisturbed("map")[0]
    thread.join(60)


@pytest.mark.parametrize(
    "name", ["one killed", "nursery killed", "nursery stopped", "template killed", "modules killed"]
)
def test_what_a_worker_has_started_ends_with_it(name: str, flag: str) -> None:
    """Also if it goes with its fork server, which is the one to know of it otherwise."""
    loader = make("map", fault_at("middle", "waits_for_a_child", flag), num_workers=1)
    started: list[tuple[int, str]] = []

    def strike() -> None:
        until(programs, "the worker has started a program")
        started.extend(map(identity, programs()))
        BLOWS[name]()

    thread = threading.Thread(target=strike)
    thread.start()

    assert [plain(batch) for batch in loader] == undisturbed("map")[0]
    thread.join(60)
    until(lambda: not any(map(lives, started)), "what it had started is gone")
    assert started


class Halves(torch.utils.data.Dataset[torch.Tensor]):
    """Needs torch in its workers."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index / 2])


HALVES = torch.tensor([[index / 2] for index in range(8)])


def has_torch(pid: int) -> bool:
    """Whether a process has loaded torch, or has begun to."""
    return "libtorch" in Path(f"/proc/{pid}/maps").read_text()


def test_a_nursery_that_has_imported_torch_has_one_thread() -> None:
    """One with more could hand a lock that nobody opens to its workers."""
    iterator = iter(af.DataLoader(Halves(), batch_size=4, num_workers=2, persistent_workers=True))
    found = [next(iterator)]
    (nursery,) = nurseries()

    assert len(threads_of(nursery)) == 1
    assert torch.equal(torch.cat([*found, *iterator]), HALVES)


def test_a_nursery_that_has_workers_without_torch_is_told_of_it_when_others_need_it() -> None:
    send(signal.SIGKILL, nurseries())  # the one that other tests have used
    until(lambda: not nurseries(), "the nursery is gone")
    iterator = iter(make("map"))
    first = next(iterator)
    (nursery,) = nurseries()
    assert not has_torch(nursery)

    assert torch.equal(torch.cat(list(af.DataLoader(Halves(), batch_size=4, num_workers=2))), HALVES)
    assert nurseries() == [nursery]
    assert [plain(batch) for batch in (first, *iterator)] == undisturbed("map")[0]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_blow_to_a_nursery_that_imports_torch(number: signal.Signals) -> None:
    """In the middle of it."""

    def strike() -> None:
        until(lambda: any(map(has_torch, nurseries())) or bool(workers()), "torch is imported")
        send(number, nurseries())

    thread = threading.Thread(target=strike)
    thread.start()
    found = list(af.DataLoader(Halves(), batch_size=4, num_workers=2))
    thread.join(60)

    assert torch.equal(torch.cat(found), HALVES)


@pytest.mark.parametrize("name", ["one killed", "nursery killed"])
def test_a_batch_in_hand_stays_what_it_is(name: str) -> None:
    """It stands in memory that a worker has made, and needs nobody any more."""
    loader = make("map", num_samples=200, delay_s=0.01)
    iterator = iter(loader)
    values, _ = next(iterator)
    held, before = values[1:3], values.tobytes()
    processes = workers() + nurseries() if "nursery" in name else workers()
    BLOWS[name]() if "nursery" in name else BLOWS["all killed"]()
    until(lambda: not any(state_of(pid) not in ("Z", "") for pid in processes), "they are gone")
    later = [next(iterator) for _ in range(3)]

    assert values.tobytes() == before
    values[...] = -1
    assert (held == -1).all()
    assert [plain(batch) for batch in later] == undisturbed("map", num_samples=200)[0][1:4]
    del iterator, later


def test_batches_that_are_changed_while_workers_die_stay_apart() -> None:
    """A segment that comes back, and one that does not, must not be taken for each other."""
    loader = make("map", num_samples=160, delay_s=0.002)
    kept = []
    for number, batch in enumerate(loader):
        kept.append((batch, plain(batch)))
        if number % 3 == 0:
            batch[0][...] = np.nan
            kept[-1] = (batch, plain(batch))
        if number in (5, 15, 25):
            send(signal.SIGKILL, workers()[:1])
        if number % 7 == 6:
            assert all(plain(held) == expected for held, expected in kept)
            del kept[::2]
    assert all(plain(held) == expected for held, expected in kept)


def test_a_trainer_that_does_not_ask_is_served_all_the_same() -> None:
    """What dies during a long training step is replaced during it."""
    loader = make("map", delay_s=0.01)
    iterator = iter(loader)
    found = [plain(next(iterator))]
    before = workers()
    send(signal.SIGKILL, before)
    until(lambda: len(workers()) == 2 and not set(workers()) & set(before), "there are others")

    assert found + [plain(batch) for batch in iterator] == undisturbed("map")[0]


def test_two_loaders_lose_their_workers_at_once() -> None:
    """They have one fork server between them, and nothing else."""
    first, second = iter(make("map", delay_s=0.01)), iter(make("streaming", delay_s=0.01))
    found: list[tuple[Any, Any]] = []
    for number, (one, two) in enumerate(zip(first, second, strict=True)):
        found.append((plain(one), plain(two)))
        if number == 2:
            BLOWS["nursery and all killed"]()

    assert found == list(zip(undisturbed("map")[0], undisturbed("streaming")[0], strict=True))


# -- a sample that costs its workers -------------------------------------------------------------------------------


def rest(engine: str, left_out: int) -> list[list[int]]:
    """Return the numbers of each batch, without one sample."""
    batches = [np.frombuffer(raw).reshape(-1, LENGTH)[:, 0] for _, raw in undisturbed(engine)[0]]
    return [[int(n) for n in batch if n != left_out] for batch in batches]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", ["killed", "segfault"])
def test_a_sample_that_kills_two_workers_is_named(engine: str, kind: str) -> None:
    """A third one would die as well."""
    loader = make(engine, fault_at("middle", kind))
    found = []
    with pytest.raises(af.WorkerDied) as caught:
        found.extend(numbers_of(batch) for batch in loader)
    name = {"map": "sample 17 of Numbers", "iterable": "of shard 1", "streaming": "row 17"}[engine]

    assert name in str(caught.value) or (engine == "iterable" and "sample 8" in str(caught.value))
    assert caught.value.facts["cause"] == CAUSES[kind]
    assert found == rest(engine, -1)[: len(found)]
    assert MIDDLE not in itertools.chain(*found)
    assert restarts(loader).count(CAUSES[kind]) == 2


def test_a_sample_that_stalls_two_workers_is_named() -> None:
    """The second one is given three times as long, for it may only be slow."""
    loader = make("map", fault_at("middle", "stopped"), stall_limit=0.3)
    with pytest.raises(af.Stalled, match="sample 17 of Numbers") as caught:
        list(loader)

    assert caught.value.facts["cause"] == "stopped"


@pytest.mark.parametrize("engine", ["map", "streaming"])
@pytest.mark.parametrize("how", ["skip", "function"])
def test_a_sample_that_kills_two_workers_is_left_out_if_that_is_wished(engine: str, how: str) -> None:
    """It, and nothing else."""
    asked: list[af.AntifreezeError] = []

    def decide(error: af.AntifreezeError) -> str:
        asked.append(error)
        return "skip"

    loader = make(engine, fault_at("middle", "killed"), on_error="skip" if how == "skip" else decide)

    assert [numbers_of(batch) for batch in loader] == rest(engine, MIDDLE)
    assert len(asked) == (how == "function")
    (skip,) = loader.report(io.StringIO()).skipped
    assert str(MIDDLE) in skip.sample


def test_going_on_after_a_poisoned_batch_gives_all_the_others() -> None:
    """The error takes the place of one batch."""
    iterator = iter(make("map", fault_at("middle", "killed")))
    found, errors = read_on(iterator)

    assert [type(error) for error in errors] == [af.WorkerDied]
    assert found == [batch for batch in undisturbed("map")[0] if batch[0] != MIDDLE - MIDDLE % BATCH_SIZE]


@pytest.mark.parametrize(("moment", "words"), [("collate", "at collating batch 4"), ("pack", "at sending batch 4")])
def test_a_batch_that_kills_two_workers_is_named(moment: str, words: str) -> None:
    """No sample of it is to blame, so the batch is, and what was done with it."""
    with pytest.raises(af.WorkerDied, match=words):
        list(make("map", fault_at(moment, "killed"), on_error="skip"))


@pytest.mark.parametrize(("moment", "words"), [("load", "rebuilds the dataset"), ("init", "in worker_init_fn")])
def test_workers_that_always_die_at_their_start_are_given_up(moment: str, words: str) -> None:
    """Not for ever, and not after a hundred of them."""
    place = MOMENTS[moment]
    with pytest.raises(af.WorkerDied, match=f"before they could start.* at its start, .*{words}"):
        list(make("map", Fault("killed", place.moment)))


@pytest.mark.parametrize("most", [0, 2])
def test_so_many_losses_are_healed_and_no_more(most: int) -> None:
    """max_restarts counts workers, whatever they have died of."""
    loader = make("map", max_restarts=most, num_samples=400, delay_s=0.005)
    found: list[tuple[int, bytes]] = []

    def train() -> None:
        for number, batch in enumerate(loader):
            found.append(plain(batch))
            if number % 4 == 1:
                send(signal.SIGKILL, workers()[:1])

    with pytest.raises(af.WorkerDied, match=rf"{most + 1} times in this epoch"):
        train()

    assert found == undisturbed("map", num_samples=400)[0][: len(found)]


# -- user code that raises -----------------------------------------------------------------------------------------


def read_on(iterator: Iterator[Any]) -> tuple[list[tuple[int, bytes]], list[Exception]]:
    """Return all batches, and the errors that came between them."""
    found: list[tuple[int, bytes]] = []
    errors: list[Exception] = []
    while len(errors) < 50:
        try:
            found.append(plain(next(iterator)))
        except StopIteration:
            break
        except af.AntifreezeError as error:
            errors.append(error)
    return found, errors


@pytest.mark.parametrize("kind", ["raises", "raises_stop_iteration", "exits_in_order"])
@pytest.mark.parametrize("moment", ["first sample", "middle", "collate", "pack"])
def test_an_error_is_named_and_the_rest_can_be_had(kind: str, moment: str) -> None:
    """Only the batch that it happened in is missing, once."""
    place = MOMENTS[moment]
    found, errors = read_on(iter(make("map", fault_at(moment, kind))))

    assert len(errors) == 1
    if place.moment == "sample":
        assert f"dataset[{place.at}]" in str(errors[0])
    assert f"batch {place.at // BATCH_SIZE}" in str(errors[0])
    assert found == [batch for batch in undisturbed("map")[0] if batch[0] != place.at - place.at % BATCH_SIZE]


@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_an_error_of_an_iterable_ends_its_share_and_no_other(num_workers: int) -> None:
    """A generator that has raised is over; what the others have made must not be lost with it."""
    found, errors = read_on(iter(make("iterable", fault_at("middle", "raises"), num_workers=num_workers)))
    slot = MIDDLE % num_workers
    expected = [
        batch
        for batch in undisturbed("iterable", num_workers=num_workers)[0]
        if batch[0] % num_workers != slot or batch[0] + BATCH_SIZE * num_workers <= MIDDLE
    ]

    assert [str(error).split("\n")[0] for error in errors] == ["next(dataset) raised ValueError: a message of its own"]
    assert found == expected


@pytest.mark.parametrize("kind", ["raises", "exits_in_order"])
def test_an_error_of_a_transform_ends_the_epoch_and_not_the_loader(kind: str, flag: str) -> None:
    """The rows that it happened at are named; the next epoch is whole."""
    loader = make("streaming", fault_at("middle", kind, flag))
    found = []
    with pytest.raises(af.UserCodeError, match="row 17"):
        found.extend(plain(batch) for batch in loader)

    assert found == undisturbed("streaming")[0][: len(found)]
    loader.set_epoch(0)
    assert [plain(batch) for batch in loader] == undisturbed("streaming")[0]


@pytest.mark.parametrize("moment", ["load", "init"])
def test_an_error_at_the_start_is_the_users_own(moment: str) -> None:
    """It comes once, and is not taken for a death."""
    place = MOMENTS[moment]
    with pytest.raises(af.UserCodeError, match="a message of its own"):
        list(make("map", Fault("raises", place.moment)))


# -- what two faults do to each other ------------------------------------------------------------------------------


def test_an_error_and_a_death_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    """The error ends the workers, one of which is dying; who goes on must not wait for what that one had."""
    for number in range(6):
        iterator = iter(make("map", Deadly(str(tmp_path / f"{number}")), num_workers=3, prefetch_factor=1))
        found, errors = read_on(iterator)

        assert [batch[0] for batch in found] == list(range(8, NUM_SAMPLES, BATCH_SIZE))
        assert [isinstance(error, af.WorkerDied) for error in errors] == [False, True]


def test_a_share_that_was_ahead_when_another_failed_goes_on(tmp_path: Path) -> None:
    """What it had brought already comes from memory or is made again, whichever; it must come, and once."""
    loader = af.DataLoader(AsIterable(InTurn, str(tmp_path)), batch_size=None, num_workers=2, prefetch_factor=8)
    iterator, found, errors = iter(loader), [], []
    while len(errors) < 9:
        try:
            found.append(next(iterator))
        except StopIteration:
            break
        except af.AntifreezeError as error:
            errors.append(str(error).split("\n")[0])

    assert found == [0, 10, 11, 12, 13, 14, 15]
    assert errors == ["next(dataset) raised ValueError"]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(("batch_size", "bad"), [(1, (3,)), (2, (1,)), (2, (4, 5)), (5, (2, 22))])
def test_an_iterable_of_which_samples_are_left_out_goes_on_after_a_death(
    batch_size: int, bad: tuple[int, ...], drop_last: bool, tmp_path: Path
) -> None:
    """Who takes it over leaves the same ones out, and nobody counts them twice."""
    runs = []
    for number in range(2):
        flag = tmp_path / "it"
        if number == 0:
            flag.touch()
        else:
            flag.unlink()
        loader = af.DataLoader(
            AsIterable(Skipping, str(flag), bad),
            batch_size=batch_size,
            drop_last=drop_last,
            num_workers=1,
            on_error="skip",
            collate_fn=list,
            generator=torch.Generator().manual_seed(7),
        )
        runs.append((list(loader), len(loader.report(io.StringIO()).skipped)))

    assert runs[0] == runs[1]
    assert len(restarts(loader)) == 1


# -- persistent workers --------------------------------------------------------------------------------------------


def mapped() -> int:
    return sum("antifreeze-batch" in line for line in Path("/proc/self/maps").read_text().splitlines())


@pytest.mark.parametrize("engine", ENGINES)
def test_epochs_that_are_left_early_leave_no_memory(engine: str) -> None:
    """Batches that nobody takes give their memory back, or each such epoch would cost some."""
    loader = make(engine, persistent_workers=True, num_samples=80)
    sizes = []
    for _ in range(24):
        for _batch in loader:
            break
        del _batch
        sizes.append(mapped())
    gc.collect()

    assert max(sizes[12:]) <= 2 * max(sizes[:12]) + 8
    assert mapped() < 100


@pytest.mark.parametrize("engine", ENGINES)
def test_an_epoch_after_one_that_was_left_early_is_whole(engine: str) -> None:
    """Nothing of the one before is taken for its own."""
    loader = make(engine, persistent_workers=True, delay_s=0.002)
    for stop in (1, 3, 7):
        for number, _ in enumerate(loader, start=1):
            if number == stop:
                send(signal.SIGKILL, workers()[:1]) if stop == 3 else None
                break
    if engine == "streaming":
        loader.set_epoch(3)
    found = [plain(batch) for batch in loader]

    assert found == undisturbed(engine, epochs=4, persistent_workers=True)[3]


# -- much at a time ------------------------------------------------------------------------------------------------


def test_more_rows_at_a_time_than_one_message_can_carry_descriptors(tmp_path: Path) -> None:
    """Each batch of rows stands in a segment of its own when a worker gets all of them at once."""
    rows = [np.full(10_000, number, np.float32) for number in range(600)]
    pq.write_table(pa.table({"x": rows}), tmp_path / "a.parquet", row_group_size=600)
    dataset = af.StreamingDataset(tmp_path, format="numpy", transform=first_value)
    loader = af.StreamingDataLoader(dataset, batch_size=1, num_workers=1, prefetch_factor=600)

    assert [int(batch["x"][0]) for batch in loader] == list(range(600))
    assert restarts(loader) == []


def test_an_order_of_ten_thousand_tiny_samples_survives_deaths() -> None:
    """Many tasks and results are under way in each message when the worker goes."""
    loader = make("map", num_samples=3000, batch_size=1, collate_fn=tiny)
    found = []
    for number, batch in enumerate(loader):
        found.append(batch)
        if number in (100, 1000, 2000):
            send(signal.SIGKILL, workers()[:1])

    assert found == list(range(3000))
    assert set(restarts(loader)) == {"killed"}
