"""Iterable datasets with a state: what they count from epoch to epoch, resumed, with other workers, out of order."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import torch.utils.data as tud
from beside_torch import once, ours

from conftest import more

# Workers get the classes of this module by value, so they import neither it nor pytest.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = pytest.mark.usefixtures("the_nursery_stays")


class Counting(tud.IterableDataset[Any]):
    """Says in which of its iterations a sample was made; counts them after the last ``yield``."""

    def __init__(self, length: int = 18, died: Path | None = None) -> None:
        self.length, self.died = length, died
        self.epoch = self.next = 0

    def indices(self) -> range:
        """Return this worker's shard. Those of several workers differ in length."""
        info = tud.get_worker_info()
        if info is None or info.num_workers == 1:
            return range(self.length)
        first = 2 * self.length // 3
        rest = range(first + info.id - 1, self.length, info.num_workers - 1)
        return range(first) if info.id == 0 else rest

    def __iter__(self) -> Iterator[Any]:
        indices = self.indices()
        while self.next < len(indices):
            if self.died is not None and self.epoch == 1 and indices[self.next] == 12 and once(self.died):
                os.kill(os.getpid(), signal.SIGKILL)
            self.next += 1
            yield indices[self.next - 1], self.epoch
        self.next = 0
        self.epoch += 1

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.next = state["epoch"], state["next"]


class Samples:
    """An iterator with a state."""

    def __init__(self, indices: range, epoch: int) -> None:
        self.indices, self.epoch, self.next = indices, epoch, 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self.next == len(self.indices):
            raise StopIteration
        self.next += 1
        return self.indices[self.next - 1], self.epoch

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.next = state["next"]


class CountsBefore(Counting):
    """Counts its iterations when one begins, and takes one back when it loads a state: that iteration begins again."""

    def __init__(self, length: int = 18) -> None:
        super().__init__(length)
        self.epoch = -1

    def __iter__(self) -> Iterator[Any]:
        self.epoch += 1
        return Samples(self.indices(), self.epoch)

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch = state["epoch"] - 1


class KnowsItIsLoaded(CountsBefore):
    """The same; it does not count the iteration after a state was loaded."""

    is_loaded = False

    def __iter__(self) -> Iterator[Any]:
        self.epoch += not self.is_loaded
        self.is_loaded = False
        return Samples(self.indices(), self.epoch)

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.is_loaded = state["epoch"], True


class IterableDataset(Counting):
    """Like those of Hugging Face: begins every iteration with the state that was loaded last. Counts no epochs."""

    __module__ = "datasets.iterable_dataset"
    start: Any = None

    def __iter__(self) -> Iterator[Any]:
        indices = self.indices()
        self.next = self.start["next"] if self.start else 0
        while self.next < len(indices):
            self.next += 1
            yield indices[self.next - 1], 0

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.start = state


class TakesItOverLater(IterableDataset):
    """Begins the next iteration with the state that was loaded, and only that one."""

    __module__ = __name__

    def __iter__(self) -> Iterator[Any]:
        for sample in super().__iter__():
            self.start = None
            yield sample
        self.start = None


KINDS: list[Callable[[], Any]] = [Counting, CountsBefore, KnowsItIsLoaded]
every_kind = pytest.mark.parametrize("make", KINDS)


def as_is(samples: Any) -> Any:
    return samples


def loader_of(dataset: Any, num_workers: int, **options: Any) -> Any:
    options = {"batch_size": 3, "collate_fn": as_is, "persistent_workers": num_workers > 0} | options
    return ours(dataset, num_workers, **options)


def saved(loader: Any) -> dict[str, Any]:
    """Return the state as it comes out of a file."""
    state: dict[str, Any] = json.loads(json.dumps(loader.state_dict()))
    return state


def resumed(state: dict[str, Any], dataset: Any, num_workers: int, **options: Any) -> Any:
    loader = loader_of(dataset, num_workers, **options)
    loader.load_state_dict(state)
    return loader


def epochs_of(loader: Any, number: int) -> list[list[Any]]:
    return [list(loader) for _ in range(number)]


def samples_of(batches: Iterable[Any]) -> list[Any]:
    return sorted(itertools.chain(*batches))


def whole(epoch: int) -> list[Any]:
    """Return all samples of an epoch, in the order of their indices."""
    return [(index, epoch) for index in range(18)]


# -- after the last yield ------------------------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("num_workers", [0, 2, *more(1, 3)])
def test_code_after_the_last_yield_runs_in_every_epoch(make: Any, num_workers: int) -> None:
    """Also if the last batch is full, so that the end of the data is not seen while it is made."""
    for batch_size in (2, 3, 4, None):
        loader = loader_of(make(), num_workers, batch_size=batch_size, collate_fn=as_is if batch_size else None)
        for epoch in range(3):
            batches = list(loader)
            assert samples_of(batches if batch_size else [map(tuple, batches)]) == whole(epoch)


@every_kind
@pytest.mark.parametrize("num_workers", [0, 2, *more(1, 3)])
def test_a_run_that_is_resumed_counts_its_epochs_as_before(make: Any, num_workers: int) -> None:
    """From any place: where a shard has ended, where nothing was delivered of one, at the end, at the beginning."""
    expected = epochs_of(loader_of(make(), num_workers), 4)
    sizes = list(itertools.accumulate(map(len, expected)))
    assert [samples_of(epoch) for epoch in expected] == [whole(epoch) for epoch in range(4)]
    loader = loader_of(make(), num_workers)
    found: list[Any] = []
    for epoch in range(2):
        for batch in loader:
            found.append(batch)
            if len(found) == sizes[epoch] or epoch:  # in the first epoch, other tests do this
                rest = epochs_of(resumed(saved(loader), make(), num_workers), 3 - epoch)
                assert [*found, *itertools.chain(*rest)][: sizes[2]] == list(itertools.chain(*expected[:3]))
        assert epochs_of(resumed(saved(loader), make(), num_workers), 2) == expected[epoch + 1 : epoch + 3]


@pytest.mark.parametrize("make", [IterableDataset, TakesItOverLater])
@pytest.mark.parametrize(("before", "after"), [(0, 0), (2, 2), (0, 2), (2, 0)])
def test_epochs_after_a_resume_are_whole(make: Any, before: int, after: int) -> None:
    """Whenever a dataset takes over the state that it was given, and however long it keeps it."""
    loader = loader_of(make(), before)
    first = list(loader)
    again = resumed(saved(loader), make(), after)
    assert [samples_of(epoch) for epoch in epochs_of(again, 2)] == [whole(0)] * 2
    if before != after:
        return
    for cut in (1, 4, len(first)):
        loader = loader_of(make(), before)
        found = list(itertools.islice(loader, cut))
        again = resumed(saved(loader), make(), after)
        assert samples_of([*found, *again]) == (whole(0) if cut < len(first) else sorted(whole(0) * 2))
        assert [samples_of(epoch) for epoch in epochs_of(again, 2)] == [whole(0)] * 2
        list(itertools.islice(again, 2))
        assert samples_of(again) == whole(0)


def test_a_worker_that_is_lost_before_the_first_batch_of_an_epoch_is_told_how_the_last_one_ended(
    tmp_path: Path,
) -> None:
    """Its successor begins with the dataset as it was before the first epoch."""
    loader = loader_of(Counting(died=tmp_path / "died"), 2)

    assert [samples_of(epoch) for epoch in epochs_of(loader, 3)] == [whole(epoch) for epoch in range(3)]
    assert (tmp_path / "died").exists()


def test_a_shard_that_has_more_than_when_it_was_saved_is_refused() -> None:
    """It is another dataset; what it has more would be dropped without a word."""

    class Longer(Counting):
        def indices(self) -> range:
            return super().indices() if tud.get_worker_info().id == 0 else range(12, 21)

    loader = loader_of(Counting(), 2)
    list(itertools.islice(loader, 6))
    state = saved(loader)
    assert [share[::2] for share in state["shares"]] == [[4, 0], [2, 1]]
    with pytest.raises(ValueError, match="shard 1 had ended after 2 batches when the state was saved, and now it has"):
        list(resumed(state, Longer(), 2))


# -- before the first batch ----------------------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize(("before", "after"), [(0, 0), (2, 2), (0, 2), (2, 0)])
def test_a_state_from_before_the_first_batch_has_that_of_the_dataset(make: Any, before: int, after: int) -> None:
    """The dataset may have been used, or have loaded a state of its own, before the loader was made."""
    used = make()
    assert len(list(used)) == 18
    state = saved(loader_of(used, before))
    again = resumed(state, make(), after)
    assert saved(again) == state

    assert [samples_of(epoch) for epoch in epochs_of(again, 2)] == [whole(1), whole(2)]


@every_kind
def test_a_state_from_the_first_batch_has_that_of_shards_that_have_delivered_none(make: Any) -> None:
    """Their workers begin with a copy of the trainer's dataset, and so must those of the run that is resumed."""
    used = make()
    assert len(list(used)) == 18
    for persistent in (False, True):
        loader = loader_of(used, 2, persistent_workers=persistent)
        (first,) = itertools.islice(loader, 1)
        again = resumed(saved(loader), make(), 2, persistent_workers=persistent)
        assert samples_of([first, *again]) == whole(1)
        assert samples_of(list(again)) == whole(2 if persistent else 1)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_epoch_whose_first_batch_fails_begins_as_it_began(num_workers: int) -> None:
    """Nothing of it was delivered, but the one before it was."""

    class Failing(Counting):
        is_broken = True

        def __iter__(self) -> Iterator[Any]:
            for sample in super().__iter__():
                if sample == (0, 1) and self.is_broken:
                    raise ValueError("not the second time")
                yield sample

    loader = loader_of(Failing(), num_workers)
    assert samples_of(list(loader)) == whole(0)
    with pytest.raises(ValueError, match="not the second time"):
        next(iter(loader))
    again = resumed(saved(loader), Counting(), num_workers)
    assert [samples_of(epoch) for epoch in epochs_of(again, 2)] == [whole(1), whole(2)]


def test_what_the_user_tells_the_dataset_after_loading_a_state_counts() -> None:
    """A loop calls ``set_epoch`` before each epoch, also before the one after a state of an epoch's end."""

    class Told(Counting):
        def __iter__(self) -> Iterator[Any]:
            for index in self.indices():
                yield index, self.epoch

    for num_workers in (0, 2):
        dataset = Told()
        loader = loader_of(dataset, num_workers, persistent_workers=False)
        dataset.epoch = 7
        assert samples_of(list(loader)) == whole(7)
        other = Told()
        again = resumed(saved(loader), other, num_workers, persistent_workers=False)
        other.epoch = 8
        assert samples_of(list(again)) == whole(8)


# -- other workers -------------------------------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("sees_end", [True, False])
@pytest.mark.parametrize(("before", "after"), [(0, 2), (2, 0), (2, 3), (3, 1), *more((0, 1), (1, 0), (3, 2), (1, 3))])
def test_at_the_end_of_an_epoch_the_number_of_workers_may_change(
    make: Any, before: int, after: int, sees_end: bool
) -> None:
    """The next epoch has each sample once, and the datasets of the new workers count on from the old ones'.

    Without seeing the end, that is known if the last batch of each shard is not full.
    """
    options: dict[str, Any] = {"batch_size": 3 if sees_end else 5}
    loader = loader_of(make(), before, **options)
    first = list(loader)
    batches = iter(loader)
    assert samples_of(itertools.islice(batches, len(first))) == whole(1)
    if sees_end:
        assert list(batches) == []
    again = resumed(saved(loader), make(), after, **options)

    assert [samples_of(epoch) for epoch in epochs_of(again, 3)] == [whole(2), whole(3), whole(4)]


@every_kind
def test_workers_that_last_for_one_epoch_begin_each_with_the_trainers_dataset(make: Any) -> None:
    """So it was before the state was saved, and so it is after, with any number of them."""
    loader = loader_of(make(), 2, persistent_workers=False)
    assert [samples_of(epoch) for epoch in epochs_of(loader, 2)] == [whole(0)] * 2
    for num_workers in (2, 3):
        again = resumed(saved(loader), make(), num_workers, persistent_workers=False)
        assert [samples_of(epoch) for epoch in epochs_of(again, 2)] == [whole(0)] * 2
    loader = loader_of(make(), 0)
    assert samples_of(list(loader)) == whole(0)
    again = resumed(saved(loader), make(), 2, persistent_workers=False)
    assert [samples_of(epoch) for epoch in epochs_of(again, 2)] == [whole(1)] * 2


def test_shards_that_end_in_different_states_are_not_given_to_others(caplog: pytest.LogCaptureFixture) -> None:
    """Which part of them belongs to the shard cannot be known. The next epoch is whole, and a warning says the rest."""

    class Personal(Counting):
        def state_dict(self) -> dict[str, int]:
            return super().state_dict() | {"first": self.indices()[0]}

    loader = loader_of(Personal(), 2)
    list(loader)
    again = resumed(saved(loader), Personal(), 3)
    assert "begins with the dataset as this loader has it" in caplog.text
    assert samples_of(list(again)) == whole(0)
    caplog.clear()
    assert samples_of(list(resumed(saved(loader), Personal(), 2))) == whole(1)
    assert not caplog.text


# -- out of order --------------------------------------------------------------------------------------------------


class Gated(tud.IterableDataset[int]):
    """The first shard waits for a file that the test writes, before one of its samples."""

    def __init__(self, gate: Path, at: int = 0, sizes: tuple[int, ...] = (12, 60)) -> None:
        self.gate, self.at, self.sizes = gate, at, sizes

    def __iter__(self) -> Iterator[int]:
        info: Any = tud.get_worker_info()
        number = info.id if info is not None else 0
        for i in range(self.sizes[number]):
            while number == 0 and i == self.at and not self.gate.exists():
                threading.Event().wait(0.02)
            yield 100 * number + i


def shard_of(number: int, size: int) -> list[list[int]]:
    """Return the batches of a shard."""
    values = [100 * number + i for i in range(size)]
    return [values[i : i + 3] for i in range(0, size, 3)]


def unordered(gate: Path, at: int = 0, **options: Any) -> Any:
    options = {"in_order": False, "persistent_workers": False} | options
    return loader_of(Gated(gate, at), 2, **options)


@pytest.mark.parametrize("prefetch_factor", [None, 1, 2])
def test_fast_workers_do_not_wait_for_a_slow_one(tmp_path: Path, prefetch_factor: int | None) -> None:
    """All batches of the fast one come while the other one waits, however many that are."""
    batches = iter(unordered(tmp_path / "open", prefetch_factor=prefetch_factor))
    assert list(itertools.islice(batches, 20)) == shard_of(1, 60)
    (tmp_path / "open").touch()
    assert list(batches) == shard_of(0, 12)


@pytest.mark.parametrize("cut", [3, 20])
@pytest.mark.parametrize("in_order", [True, False])
def test_a_run_out_of_order_resumes_each_shard_where_it_was(tmp_path: Path, cut: int, in_order: bool) -> None:
    """The state says how many batches of each shard were delivered; none comes twice, none is missing."""
    loader = unordered(tmp_path / "open", at=3)
    batches = iter(loader)
    first = list(itertools.islice(batches, cut))
    state = saved(loader)
    (tmp_path / "open").touch()
    assert [share[0] for share in state["shares"]] == [
        sum(batch[0] < 100 for batch in first),
        sum(batch[0] >= 100 for batch in first),
    ]
    rest = list(resumed(state, Gated(tmp_path / "open"), 2, in_order=in_order, persistent_workers=False))
    assert sorted(first + rest) == shard_of(0, 12) + shard_of(1, 60)
    assert sorted([*first, *batches]) == shard_of(0, 12) + shard_of(1, 60)
    for number in (0, 1):
        of_one = [batch for batch in first + rest if batch[0] // 100 == number]
        assert of_one == sorted(of_one)


def test_several_epochs_out_of_order_are_whole(tmp_path: Path) -> None:
    """With workers that stay, and with none."""
    (tmp_path / "open").touch()
    loader = unordered(tmp_path / "open", persistent_workers=True)
    for _ in range(3):
        assert sorted(loader) == shard_of(0, 12) + shard_of(1, 60)
    assert list(loader_of(Gated(tmp_path / "open"), 0, in_order=False)) == shard_of(0, 12)


def test_a_shard_that_fails_out_of_order_is_tried_again(tmp_path: Path) -> None:
    """Batches of other shards that came before the error do not make it count as over."""

    class Failing(Gated):
        def __iter__(self) -> Iterator[int]:
            for sample in super().__iter__():
                if sample == 9:
                    raise ValueError("nine")
                yield sample

    (tmp_path / "open").touch()
    loader = loader_of(Failing(tmp_path / "open"), 2, in_order=False, persistent_workers=False)
    found = []
    with pytest.raises(ValueError, match="nine"):
        found.extend(loader)  # keeps what came before the error
    again = resumed(saved(loader), Gated(tmp_path / "open"), 2, in_order=False, persistent_workers=False)
    assert sorted([*found, *again]) == shard_of(0, 12) + shard_of(1, 60)
