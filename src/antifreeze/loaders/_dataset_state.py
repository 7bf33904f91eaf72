"""The state of an iterable dataset itself, as part of a loader's state.

Where a shard is, its own state says (``share_states``). The dataset in the trainer has a state, too: workers begin with
copies of it. It is saved as ``dataset_state``, for shards of which nothing was delivered, and for other numbers of
workers. What it must be to begin the next epoch with depends on where the dataset is iterated:

- without workers, in the trainer: the state after the iteration;
- by workers that stay, in them: the state that all of them ended with. If they differ, it is not known which part of
  it belongs to a shard, so it cannot be given to other shards;
- by workers that last for one epoch: the state that the trainer has, as each epoch begins with a copy of that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed

from antifreeze.loaders._pad_ranks import take_part
from antifreeze.loaders._saved_state import Loaded, Place, ShardPosition
from antifreeze.loaders._torch_settings import TorchLoader, is_iterable, loading
from antifreeze.pool import ShardProgress, ShardTasks
from antifreeze.worker import ShardState, has_state, load_between, opened_state, sealed_state


def state_now(loader: TorchLoader) -> bytes | None:
    """Return the state of the trainer's dataset, if it is iterable and has one now."""
    if not is_iterable(loader) or not has_state(loader.dataset):
        return None
    dataset: Any = loader.dataset
    try:
        return sealed_state({"dataset": dataset.state_dict()})
    except Exception:  # noqa: BLE001  border: some have no state before their first sample
        return None


def next_place(loader: TorchLoader, place: Place, source: Any) -> Place:
    """Return where the epoch begins that follows the one of a source, if that has ended."""
    if not isinstance(source, ShardTasks) or not loader.num_workers or not loader.persistent_workers:
        return place
    return ShardPosition(tuple(_after(share) for share in source.place()))


def known_place(place: Place, source: Any) -> Place:
    """Return where an epoch is; if nothing was delivered, with the states that workers had before it."""
    if isinstance(place, ShardPosition) and place.is_beginning and isinstance(source, ShardTasks):
        return place._replace(shares=source.beginning())
    return place


def at_the_beginning(place: Place, now: bytes | None) -> dict[str, Any]:
    """Return what a loader's state says of its dataset where an epoch begins; ``now`` is the trainer's then."""
    if isinstance(place, ShardPosition) and any(share.stand is not None for share in place.shares):
        return _entry(_common([share.stand and share.stand.state for share in place.shares]))
    return _entry(now)


def within_an_epoch(loader: TorchLoader, place: Place, began_with: bytes | None) -> dict[str, Any]:
    """Return what a loader's state says of its dataset in an epoch that has not ended, or of which that was not seen.

    If the last batch of each shard was not full, its end is known though nobody has asked on.
    """
    if not isinstance(place, ShardPosition):
        return {}
    if place.is_beginning:
        return at_the_beginning(place, began_with)
    is_over = all(share.is_over for share in place.shares)
    if is_over and place.own is None and not take_part(torch.distributed):
        in_workers = loader.num_workers and loader.persistent_workers
        state = _common([share.end for share in place.shares]) if in_workers else state_now(loader)
        return {"ended": True} | _entry(state)
    is_here = not loader.num_workers and any(share.stand is not None for share in place.shares)
    return {} if is_here else _entry(began_with)


def load(loader: TorchLoader, loaded: Loaded) -> None:
    """Give the trainer's dataset the state that was saved.

    At once, not when the next epoch begins: a ``set_epoch()`` of the user's that comes after this must win.
    """
    state, place = loaded.state, loaded.place
    if not isinstance(place, ShardPosition) or "dataset_state" not in state or not has_state(loader.dataset):
        return
    if loader.num_workers == 0 and any(share.stand is not None for share in place.shares):
        return  # it gets the state of its shard
    with loading("the dataset"):
        load_between(loader.dataset, state["dataset_state"])
    loader.renew_workers()


def _entry(state: bytes | None) -> dict[str, Any]:
    return {} if state is None else {"dataset_state": opened_state(state)["dataset"]}


def _common(states: Sequence[bytes | None]) -> bytes | None:
    if len(set(states)) == 1:
        return states[0]
    try:  # the same values can be pickled in several ways
        opened = [opened_state(state) for state in states if state is not None]
        return states[0] if len(opened) == len(states) and all(state == opened[0] for state in opened) else None
    except Exception:  # noqa: BLE001  border: arrays are neither equal nor not
        return None


def _after(share: ShardProgress) -> ShardProgress:
    return ShardProgress() if share.end is None else ShardProgress(stand=ShardState(0, 0, share.end, is_end=True))
