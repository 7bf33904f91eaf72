"""What a StreamingDataLoader does not take, though other loaders do: each error says what to do instead."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from antifreeze.core import ConfigError
from antifreeze.core import arguments as check
from antifreeze.datasets import CompositeDataset, RowDataset, StreamingDataset, check_overrides

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
    if not isinstance(dataset, StreamingDataset | CompositeDataset):
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
    if items and all(isinstance(item, StreamingDataset | CompositeDataset) for item in items):
        return "put them together: antifreeze.CombinedStreamingDataset(datasets), or ParallelStreamingDataset(datasets)"
    if items and all(isinstance(item, str | os.PathLike) for item in items):
        return "for Parquet files, give it antifreeze.StreamingDataset(paths); else use antifreeze.DataLoader"
    if hasattr(dataset, "__getitem__") or isinstance(dataset, Iterable):
        return "use antifreeze.DataLoader(dataset, ...): it takes every dataset that torch's DataLoader takes"
    return "wrap your files in antifreeze.StreamingDataset(path)"
