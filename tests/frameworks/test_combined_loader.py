"""Lightning's ``CombinedLoader``, and whatever else holds a loader or its iterator, can be copied and pickled."""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import torch.utils.data as tud

import antifreeze as af

# Workers get the classes of this module by value, so they import neither it nor pytest.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = [
    pytest.mark.usefixtures("the_nursery_stays"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
]

PATIENCE_S = 100


@pytest.fixture(scope="module")
def combined_loader() -> Any:
    """Import it here only: with its 1,700 modules, the loaders of all other tests would start more slowly."""
    return pytest.importorskip("lightning.pytorch.utilities.combined_loader")


class Stream(tud.IterableDataset[int]):
    """Numbers of which each worker yields its own shard."""

    def __iter__(self) -> Iterator[int]:
        info = tud.get_worker_info()
        return iter(range(info.id, 40, info.num_workers)) if info is not None else iter(range(40))


def same(row: Any) -> Any:
    return row


LOADERS: dict[str, Callable[[Any], Any]] = {
    "no workers": lambda _: af.DataLoader(list(range(40)), batch_size=4, shuffle=True),
    "workers": lambda _: af.DataLoader(list(range(40)), batch_size=4, num_workers=2, timeout=PATIENCE_S),
    "workers that stay": lambda _: af.DataLoader(
        Stream(), batch_size=4, num_workers=2, persistent_workers=True, timeout=PATIENCE_S
    ),
    "streaming": lambda path: af.StreamingDataLoader(af.StreamingDataset(path), batch_size=31),
    "streaming, with workers that stay": lambda path: af.StreamingDataLoader(
        af.StreamingDataset(path, transform=same), batch_size=31, num_workers=2, persistent_workers=True
    ),
}
COPIERS: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda held: pickle.loads(pickle.dumps(held)),  # noqa: S301  our own
}
every_copier = pytest.mark.parametrize("copier", COPIERS.values(), ids=COPIERS)


@every_copier
@pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS)
def test_a_loader_and_what_holds_it_can_be_copied_while_it_is_iterated(
    combined_loader: Any, make: Any, copier: Any, shared_data: Any
) -> None:
    """The copy begins an epoch for itself; the iteration that is under way is not disturbed."""
    loader = make(shared_data.path)
    combined = combined_loader.CombinedLoader([loader])
    assert len(list(combined)) == 10
    batches = iter(loader)
    next(batches)
    next(iter(combined))
    for held in (loader, combined):
        assert len(list(copier(held))) == 10
    assert len(list(batches)) == 9


@every_copier
@pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS)
def test_an_iterator_cannot_be_used_in_two_places(make: Any, copier: Any, shared_data: Any) -> None:
    """Its copy says so when it is asked for a batch, and not before: what holds it can be copied."""
    loader = make(shared_data.path)
    batches = iter(loader)
    next(batches)
    again = copier(batches)
    assert iter(again) is again
    with pytest.raises(af.ConfigError, match="cannot be copied or pickled") as caught:
        next(again)
    assert "iter(loader)" in caught.value.hint
    assert len(list(batches)) == 9


def test_a_copied_combined_loader_is_asked_for_an_iterator_first(combined_loader: Any) -> None:
    """With torch's loader, too, the copy has no iterators."""
    combined = combined_loader.CombinedLoader({"a": LOADERS["no workers"](Path())}, mode="max_size_cycle")
    next(iter(combined))
    with pytest.raises(af.ConfigError, match="cannot be copied or pickled"):
        next(copy.deepcopy(combined))
