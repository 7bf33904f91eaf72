"""Arguments of the loaders, checked where they are given; what is refused, and what to do instead."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from antifreeze.core import ConfigError
from antifreeze.core import arguments as check
from antifreeze.datasets import RowDataset, check_overrides, parse_limit

_DATALOADER = "antifreeze.DataLoader(dataset, {argument}=...) reads row by row, in the order that it gives"
_PROFILE = "loader.report() says where the time goes; py-spy or torch.profiler show it line by line"
_MADE = "give it to StreamingDataset"

INSTEAD = {
    "filters": check.SUBSET_HINT,
    "columns": _MADE,
    "transform": _MADE,
    "format": _MADE,
    "pad": _MADE,
    "fill_null": _MADE,
    "subset": _MADE,
    "weights": "mix datasets with CombinedStreamingDataset(datasets, weights=...)",
    "drop_uneven_inputs": "leave it out: every rank has the same number of batches",
    "snapshot_every_n_steps": "leave it out: state_dict() is exact after every batch",
    "uneven_ranks": "leave it out: every rank has the same number of batches",
}


def refuse(**asked: Any) -> None:
    """Raise ConfigError for arguments of torch's and litData's loaders that mean something else here, or nothing."""
    for argument in ("sampler", "batch_sampler"):
        if asked[argument] is not None:
            raise ConfigError(
                f"StreamingDataLoader has no {argument}: it reads whole pieces of files, in its own order",
                hint=f"shuffle=True; dataset.subset([...]) for certain rows, in this order; af.subsample or "
                f"CombinedStreamingDataset(..., weights=...) for a mixture; or {_DATALOADER.format(argument=argument)}",
                argument=argument,
            )
    if asked["generator"] is not None:
        raise ConfigError(
            "StreamingDataLoader has no generator: the order depends on the seed and the epoch alone",
            hint="pass seed=..., an integer",
            argument="generator",
        )
    if asked["batch_size"] is None:
        raise ConfigError(
            "batch_size=None is not supported: a StreamingDataLoader delivers batches",
            hint="for single rows, iterate over the dataset, or use antifreeze.DataLoader(dataset, batch_size=None)",
            argument="batch_size",
        )
    for argument in ("profile_batches", "profile_cprofile"):
        check.unused(argument, asked[argument], "profiles are not written", _PROFILE)


def checked_dataset(dataset: Any) -> RowDataset:
    """Return a dataset that a StreamingDataLoader can read, or raise what to do with another one."""
    if not isinstance(dataset, RowDataset):
        raise ConfigError(
            f"dataset is a {type(dataset).__name__}: expected a StreamingDataset, or several in one",
            hint=_way_for(dataset),
            argument="dataset",
        )
    check_overrides(dataset)
    dataset.row_code()  # raises what is wrong with its transforms
    return dataset


def _way_for(dataset: Any) -> str:
    if isinstance(dataset, str | os.PathLike):
        return f"give it antifreeze.StreamingDataset({os.fspath(dataset)!r})"
    if isinstance(dataset, type):
        return "make one: it is a class"
    items = list(dataset) if isinstance(dataset, list | tuple) else []
    if items and all(isinstance(item, RowDataset) for item in items):
        return "put them together: antifreeze.CombinedStreamingDataset(datasets), or ParallelStreamingDataset(datasets)"
    if items and all(isinstance(item, str | os.PathLike) for item in items):
        return "for Parquet files, give it antifreeze.StreamingDataset(paths); else use antifreeze.DataLoader"
    if hasattr(dataset, "__getitem__") or isinstance(dataset, Iterable):
        return "use antifreeze.DataLoader(dataset, ...): it takes every dataset that torch's DataLoader takes"
    return "wrap your files in antifreeze.StreamingDataset(path)"


# -- arguments of both loaders --------------------------------------------------------------------------------------


def split_on_error(on_error: object) -> tuple[str, Callable[[Any], Any] | None]:
    """Return what workers do about a failing sample, and the user's function if that decides."""
    if callable(on_error):
        return "raise", on_error
    if on_error not in ("raise", "skip"):
        raise ConfigError(
            f"on_error={on_error!r} is not known",
            hint='it is "raise", "skip", or a function that takes the error and returns one of these',
            argument="on_error",
        )
    return str(on_error), None


def checked_interval(steps: object) -> int | None:
    """Return ``snapshot_every_n_steps`` if it is a number of steps, or None as torchdata takes it."""
    if steps is None or (isinstance(steps, int) and not isinstance(steps, bool) and steps >= 1):
        return steps
    raise ConfigError(
        f"invalid snapshot_every_n_steps: expected an integer >= 1, got {steps!r}",
        hint="leave it out: state_dict() is exact at every step",
        argument="snapshot_every_n_steps",
    )


def default_memory_limit(limit: int | str | None, num_workers: int) -> int:
    """Return how much memory a worker may have before it is taken for leaking."""
    if limit is not None:
        return parse_limit(limit, "worker_memory_limit")
    return parse_limit(None) * 4 // max(1, num_workers)  # half of what there is, for all of them


def checked_limits(stall_limit: float | None) -> float | None:
    """Return how long a worker may stall."""
    number = isinstance(stall_limit, int | float) and not isinstance(stall_limit, bool)
    if stall_limit is not None and not (number and 0 < stall_limit < float("inf")):
        raise ConfigError(
            f"stall_limit={stall_limit!r} is not a number of seconds above 0",
            hint="leave it out for a limit that adapts to how long samples take",
            argument="stall_limit",
        )
    return stall_limit
