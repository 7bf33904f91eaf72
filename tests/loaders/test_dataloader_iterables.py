"""``DataLoader`` over iterable datasets: shares, ranks, and what a lost worker leaves."""

from __future__ import annotations

import io
import itertools
import json
import os
import random
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import torch.utils.data as tud
from beside_torch import HERE, PATIENCE_S, Streamed, die, once, ours

import antifreeze as af

# Workers get the classes of this module by value, so they import neither it nor pytest.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = pytest.mark.usefixtures("the_nursery_stays")


def in_turn(length: int, num_workers: int, batch_size: int | None, drop_last: bool) -> list[Any]:
    """Return the batches that torch gives for ``Streamed``: one of each worker in turn, while it has any."""
    shares = []
    for worker in range(num_workers):
        share = list(range(worker, length, num_workers))
        if batch_size is None:
            shares.append(share)
            continue
        batches = [share[i : i + batch_size] for i in range(0, len(share), batch_size)]
        shares.append([b for b in batches if len(b) == batch_size or not drop_last])
    rows = itertools.zip_longest(*shares)
    return [batch for row in rows for batch in row if batch is not None]


@pytest.mark.parametrize(("batch_size", "drop_last"), [(1, False), (3, False), (3, True), (None, False)])
@pytest.mark.parametrize("num_workers", [2, *(pytest.param(n, marks=pytest.mark.more) for n in (1, 3))])
def test_an_iterable_comes_in_turn(num_workers: int, batch_size: int | None, drop_last: bool) -> None:
    """One batch of each worker's share after the other, as in torch; a share that has ended is passed over."""
    for length in (0, 1, 22):
        loader = ours(Streamed(length), batch_size=batch_size, drop_last=drop_last, num_workers=num_workers)
        found = [batch.tolist() if batch_size else batch for batch in loader]
        assert found == in_turn(length, num_workers, batch_size, drop_last)


class Uneven(tud.IterableDataset[Any]):
    """Has a share of very different length for each worker."""

    def __iter__(self) -> Iterator[Any]:
        worker = tud.get_worker_info().id
        yield from [worker] * [0, 9, 2][worker]


def test_shares_of_uneven_length() -> None:
    """The longest one is read to its end."""
    for persistent in (False, True):
        loader = ours(Uneven(), batch_size=None, num_workers=3, persistent_workers=persistent)
        for _ in range(2):
            assert list(loader) == [1, 2, 1, 2, *[1] * 7]


def test_torchs_own_order_for_several_workers() -> None:
    """The rule above is checked against torch itself, in a process of its own: it would fork this one."""
    code = (
        f"import sys; sys.path.insert(0, {str(HERE)!r})\n"
        "import torch.utils.data as tud, test_dataloader_iterables as t\n"
        "one = [b.tolist() for b in tud.DataLoader(t.Streamed(22), batch_size=3, num_workers=3)]\n"
        "two = list(tud.DataLoader(t.Uneven(), batch_size=None, num_workers=3))\n"
        "print(one == t.in_turn(22, 3, 3, False), two == [1, 2, 1, 2, *[1] * 7])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=False)

    assert done.stdout.split() == ["True", "True"], done.stderr


class Whole(tud.IterableDataset[int]):
    """Yields everything in each worker."""

    def __init__(self, first: int = 0) -> None:
        self.first = first

    def __iter__(self) -> Iterator[int]:
        yield from range(self.first, 20)


def test_an_iterable_that_everybody_reads_whole_is_an_error() -> None:
    """Torch would deliver every sample twice and say nothing."""
    for num_workers in (0, 1):
        batches = list(ours(Whole(), batch_size=4, num_workers=num_workers))
        assert [i for batch in batches for i in batch.tolist()] == list(range(20))
    with pytest.raises(af.DuplicateData, match="get_worker_info"):
        list(ours(Whole(), batch_size=4, num_workers=2))


def test_an_iterable_that_is_split_by_worker_init_fn_is_none() -> None:
    """The second way that torch's documentation shows."""

    class Range(tud.IterableDataset[int]):
        first, last = 0, 20

        def __iter__(self) -> Iterator[int]:
            return iter(range(self.first, self.last))

    def split(worker: int) -> None:
        dataset: Any = tud.get_worker_info().dataset
        dataset.first, dataset.last = 10 * worker, 10 * worker + 10

    loader = ours(Range(), batch_size=5, worker_init_fn=split, num_workers=2)

    assert [batch[0].item() for batch in loader] == [0, 10, 5, 15]


def test_shares_that_are_equal_by_their_nature_are_none() -> None:
    """A dataset that has asked for its share may still yield the same values as the others."""

    class Zeros(tud.IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            yield from itertools.repeat(0, 20 // tud.get_worker_info().num_workers)

    assert sum(len(batch) for batch in ours(Zeros(), batch_size=5, num_workers=2)) == 20


RANK = """
import sys
import warnings
import torch, torch.distributed as dist
sys.path.insert(0, {here!r})
import antifreeze as af
from beside_torch import Streamed

if __name__ == "__main__":
    rank = int(sys.argv[1])
    dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
    datasets = Streamed(24), Streamed(8), Streamed(16 - 8 * rank)
    loaders = [af.DataLoader(dataset, batch_size=4, num_workers=2, timeout=60) for dataset in datasets]
    for _ in range(4):
        print([len(list(loader)) for loader in loaders], end=" ")
    dist.barrier()
"""


def test_every_rank_gets_as_many_batches_in_every_epoch(tmp_path: Path) -> None:
    """Whoever makes uneven ranks even must not touch those that are."""
    script = tmp_path / "rank.py"
    script.write_text(RANK.format(here=str(HERE)))
    ranks = [
        subprocess.Popen([sys.executable, script, str(rank), tmp_path / "store"], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        found = [rank.communicate(timeout=PATIENCE_S)[0].strip() for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait(PATIENCE_S)

    assert found == [" ".join(["[6, 2, 4]"] * 4)] * 2


class Mortal(tud.IterableDataset[Any]):
    """Kills its worker once, at one sample of the second share.

    With ``prefetch_factor=1`` a worker begins a batch only when the one before it has come back.
    """

    def __init__(self, folder: Path, *, random: bool = False) -> None:
        self.folder, self.random = folder, random

    def __iter__(self) -> Iterator[Any]:
        worker: Any = tud.get_worker_info()
        salt = os.urandom(8) if self.random else b""
        for i in range(worker.id, 40, worker.num_workers):
            if i == 21 and once(self.folder / "died"):
                die()
            yield i, salt


def test_an_iterable_goes_on_where_its_worker_was_killed(tmp_path: Path) -> None:
    """Nothing is lost, nothing comes twice, the order stays."""
    for number, batch_size in enumerate((3, None)):
        folder = tmp_path / str(number)
        folder.mkdir()
        loader = ours(Mortal(folder), batch_size=batch_size, num_workers=2, prefetch_factor=1)
        found = [batch[0].tolist() if batch_size else batch[0] for batch in loader]

        assert found == in_turn(40, 2, batch_size, drop_last=False)
        assert len(loader.report(io.StringIO()).restarts) == 1


def test_an_iterable_that_cannot_be_repeated_is_an_error(tmp_path: Path) -> None:
    """It cannot be told which of its samples are still to come; to guess would lose some or repeat them."""
    with pytest.raises(af.NotRepeatable):
        list(ours(Mortal(tmp_path, random=True), batch_size=3, num_workers=2, prefetch_factor=1))


class Resumable(Mortal):
    """Has a state, counts what it has made in a file, and cannot be repeated without the state."""

    next_one = 0

    def state_dict(self) -> dict[str, Any]:
        return {"next": self.next_one}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.next_one = state["next"]

    def __iter__(self) -> Iterator[Any]:
        worker: Any = tud.get_worker_info()
        first, self.next_one = self.next_one, 0
        salt = os.urandom(8)
        for i in range(first, 20):
            value = i * worker.num_workers + worker.id
            if value == 21 and once(self.folder / "died"):
                die()
            with (self.folder / f"made-{worker.id}").open("a") as file:
                file.write(f"{value}\n")
            self.next_one = i + 1
            yield value, salt
        self.next_one = 0


@pytest.mark.parametrize("batch_size", [1, 3, None])
def test_an_iterable_with_a_state_goes_on_from_it(tmp_path: Path, batch_size: int | None) -> None:
    """Without making again what was delivered, but for the last batch, and epoch after epoch."""
    options: dict[str, Any] = {"batch_size": batch_size, "prefetch_factor": 1, "persistent_workers": True}
    loader = ours(Resumable(tmp_path), num_workers=2, **options)
    for _ in range(2):
        found = [batch[0].tolist() if batch_size else batch[0] for batch in loader]
        assert found == in_turn(40, 2, batch_size, drop_last=False)

    made = [int(line) for line in (tmp_path / "made-1").read_text().split()]
    last = batch_size or 1
    assert all(made.count(value) == 2 for value in range(1, 21 - 4 * last, 2))


def test_an_iterator_with_a_state_goes_on_from_it(tmp_path: Path) -> None:
    """The state may belong to what ``iter(dataset)`` returns."""

    class Counter:
        def __init__(self) -> None:
            self.worker: Any = tud.get_worker_info()
            self.i, self.salt = 0, os.urandom(8)

        def __iter__(self) -> Iterator[Any]:
            return self

        def __next__(self) -> Any:
            value = self.i * self.worker.num_workers + self.worker.id
            if value >= 40:
                raise StopIteration
            if value == 21 and once(tmp_path / "died"):
                die()
            self.i += 1
            return value, self.salt

        def state_dict(self) -> Any:
            return {"i": self.i}

        def load_state_dict(self, state: Any) -> None:
            self.i = state["i"]

    class Counted(tud.IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return Counter()

    found = [batch[0].tolist() for batch in ours(Counted(), batch_size=3, num_workers=2, prefetch_factor=1)]

    assert found == in_turn(40, 2, 3, drop_last=False)


class Buffered(tud.IterableDataset[int]):
    """Shuffles in a buffer that is not part of its state, as those of Hugging Face do; dies in mid-epoch, once."""

    def __init__(self, folder: Path, wrong: str = "") -> None:
        self.folder, self.next_one, self.has_begun, self.wrong = folder, 0, False, wrong

    def state_dict(self) -> dict[str, Any]:
        if self.wrong == "at first" and not self.has_begun:
            raise RuntimeError("nothing was read yet")
        return {"next": self.next_one}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.wrong == "to load":
            raise IndexError("list index out of range")
        self.next_one = state["next"]

    def __iter__(self) -> Iterator[int]:
        worker: Any = tud.get_worker_info()
        self.has_begun = True
        chance, buffer = random.Random(worker.id), []  # noqa: S311  no secret
        for i in range(self.next_one, 30):
            if i == 22 and worker.id and once(self.folder / "died"):
                die()
            buffer.append(i * worker.num_workers + worker.id)
            self.next_one = i + 1
            if len(buffer) > 8:
                yield buffer.pop(chance.randrange(9))
        chance.shuffle(buffer)
        self.next_one = 0
        yield from buffer


@pytest.mark.parametrize("wrong", ["", "at first", "to load"])
@pytest.mark.parametrize("batch_size", [1, 4])
def test_a_state_that_does_not_lead_on_is_not_trusted(tmp_path: Path, batch_size: int, wrong: str) -> None:
    """A worker that goes on from it would lose what was in the buffer. The share is made again from its beginning."""
    (tmp_path / "died").write_text("")
    whole = [batch.tolist() for batch in ours(Buffered(tmp_path), batch_size=batch_size, num_workers=2)]
    assert sorted(itertools.chain(*whole)) == list(range(60))

    (tmp_path / "died").unlink()
    loader = ours(Buffered(tmp_path, wrong), batch_size=batch_size, num_workers=2, prefetch_factor=1)
    assert [batch.tolist() for batch in loader] == whole
    assert len(loader.report(io.StringIO()).restarts) == 1


@pytest.mark.parametrize("cut", [1, 2, 9, 15])
def test_a_run_that_is_resumed_does_not_trust_such_a_state(tmp_path: Path, cut: int) -> None:
    (tmp_path / "died").write_text("")
    whole = [batch.tolist() for batch in ours(Buffered(tmp_path), batch_size=4, num_workers=2)]
    before, after = (ours(Buffered(tmp_path), batch_size=4, num_workers=2) for _ in range(2))
    first = [batch.tolist() for batch in itertools.islice(before, cut)]
    after.load_state_dict(json.loads(json.dumps(before.state_dict())))

    assert first + [batch.tolist() for batch in after] == whole


def test_a_state_that_wants_to_be_told_more_is_none(tmp_path: Path) -> None:
    """That of litData's dataset is for its own loader only."""

    class Curious(Mortal):
        def state_dict(self, num_samples_yielded: int, num_workers: int) -> Any:
            raise AssertionError

        def load_state_dict(self, state: Any) -> None:
            raise AssertionError

    found = [batch[0].tolist() for batch in ours(Curious(tmp_path), batch_size=3, num_workers=2, prefetch_factor=1)]

    assert found == in_turn(40, 2, 3, drop_last=False)


def test_an_iterable_that_fails_in_its_second_epoch() -> None:
    """The first one is whole, and the error names what failed."""

    class Fails(tud.IterableDataset[int]):
        epochs = 0

        def __iter__(self) -> Iterator[int]:
            self.epochs += 1
            if self.epochs > 1:
                raise ValueError("no second time")
            info = tud.get_worker_info()
            return iter(range(info.id, 10, info.num_workers))

    loader = ours(Fails(), batch_size=2, num_workers=2, persistent_workers=True)
    assert len(list(loader)) == 6
    with pytest.raises(ValueError, match="no second time") as caught:
        list(loader)
    assert "iter(dataset)" in str(caught.value)


class Understated(Streamed):
    """Gives more than it says."""

    def __len__(self) -> int:
        return 4


def warnings_of(loader: Any, *, asks: bool = True) -> list[str]:
    """Return the warnings of an epoch, each with the number of the batch that it came with."""
    assert not asks or len(loader) >= 0
    found = []
    batches = iter(loader)
    for number in itertools.count(1):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if next(batches, None) is None:
                break
        found += [f"{number}: {warning.category.__name__}: {warning.message}" for warning in caught]
        assert all(warning.filename == __file__ for warning in caught)
    return found


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("batch_size", [1, 2, None])
def test_a_dataset_that_gives_more_than_its_length_is_warned_of(batch_size: int | None, num_workers: int) -> None:
    """At each batch too many, if somebody has asked for the length. Batches are compared with samples, as in torch."""
    expected = warnings_of(tud.DataLoader(Understated(7), batch_size=batch_size))
    found = warnings_of(ours(Understated(7), num_workers, batch_size=batch_size))
    start, end = "Length of IterableDataset <", "samples have been fetched."
    assert len(found) == len(expected) == (0 if batch_size == 2 else 3)
    for one, other in zip(found, expected, strict=True):
        assert (one.split(":")[:2], start in one, end in one) == (other.split(":")[:2], True, True)
        assert one.split(" but ")[1].split(".")[0] == other.split(" but ")[1].split(".")[0]
        assert ("For multiprocessing data-loading, this" in one) is (num_workers > 0)
    assert warnings_of(ours(Understated(7), num_workers, batch_size=batch_size), asks=False) == []


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_warning_about_the_length_can_be_an_error(num_workers: int) -> None:
    """It is raised by ``next()``, in the loop's own thread; who asks on gets the batch after that, as in torch."""
    loader = ours(Understated(6), num_workers, batch_size=None)
    assert len(loader) == 4
    batches = iter(loader)
    first = list(itertools.islice(batches, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            with pytest.raises(UserWarning, match="was reported to be 4"):
                next(batches)
        assert next(batches, None) is None
    assert first == in_turn(6, max(1, num_workers), None, False)[:4]
