"""Several datasets mixed into one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from antifreeze.core import ConfigError, SchemaMismatch
from antifreeze.core import arguments as check
from antifreeze.datasets._composite import CompositeDataset, CompositeRows
from antifreeze.datasets._delivery import Delivery
from antifreeze.datasets._reading import ReadOptions
from antifreeze.datasets._row_source import ReadRequest, RowDataset, RowSource
from antifreeze.datasets._transforms import make_transform
from antifreeze.datasets._user_code import UserCode, mixed_code
from antifreeze.decode import Block, Blocks, CombinedBlocks, StridedBlocks, mixed, one_after_the_other
from antifreeze.plan import Batchwise, Mix, Weights

_BATCHING_METHODS = ("stratified", "per_stream")


class CombinedStreamingDataset(CompositeDataset):
    """Rows of several datasets, mixed.

    Args:
        datasets: Datasets with the same columns.
        seed: Determines the order, together with the epoch.
        weights: How often each dataset is drawn from: one number for each, or a function that is called with the number
            of a step and returns these numbers. By default in proportion to the lengths, so that all datasets last
            until the end.
        iterate_over_all: True if an epoch has all rows of all datasets, each once: an exhausted dataset drops out.
            False if the epoch ends when the first dataset is exhausted.
        batching_method: ``"stratified"`` for rows of all datasets in every batch, or ``"per_stream"`` for batches with
            rows of one dataset. Rows too few for a batch come at the end; only there can a batch mix two datasets.
        force_override_state_dict: True if a loader resumes from a state that does not match, with a warning, as
            ``load_state_dict(state, strict=False)`` does.
        temperature: Without weights, a dataset of n rows has the weight ``n ** (1 / temperature)``. 1 is in proportion;
            larger values favor small datasets.
        shuffle: True to shuffle the rows of each dataset; by default if one of them shuffles.
        transform: Function of one row, applied after the transform of its dataset; or of a whole batch if marked with
            ``antifreeze.batched``; or a list of functions that are applied in turn.
        drop_last: True if a loader without a ``drop_last`` argument drops an incomplete last batch.

    Raises:
        ConfigError: If an argument has a wrong value.
        SchemaMismatch: If the datasets differ in their columns.

    Example:
        ```python
        import antifreeze as af

        many = af.StreamingDataset("data/train", columns=["ids"], shuffle=True)
        few = many.subset(slice(0, 100))
        mixed = af.CombinedStreamingDataset([many, few], weights=[0.8, 0.2], iterate_over_all=False)
        for batch in af.StreamingDataLoader(mixed, batch_size=32):
            print(batch["ids"].shape)
        ```
    """

    @check.explained("CombinedStreamingDataset")
    def __init__(
        self,
        datasets: Sequence[RowDataset],
        seed: int = 42,
        weights: Sequence[float] | Callable[[int], Sequence[float]] | None = None,
        iterate_over_all: bool = True,
        batching_method: str = "stratified",
        force_override_state_dict: bool = False,
        *,
        temperature: float = 1.0,
        shuffle: bool | None = None,
        transform: Callable[[Any], Any] | Sequence[Callable[[Any], Any]] | None = None,
        drop_last: bool = False,
    ) -> None:
        super().__init__(
            datasets,
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
            force_override_state_dict=force_override_state_dict,
            transform=transform,
        )
        self.iterate_over_all = check.flag("iterate_over_all", iterate_over_all)
        if batching_method not in _BATCHING_METHODS:
            hint = f"it is one of {', '.join(_BATCHING_METHODS)}"
            raise ConfigError(
                f"batching_method={batching_method!r} is not known", hint=hint, argument="batching_method"
            )
        self.batching_method = batching_method
        self.row_code()  # raises now what is wrong with transforms
        parts = [dataset.row_source for dataset in self.datasets]
        _check_columns(parts)
        if not isinstance(temperature, (int, float)) or not temperature > 0:
            raise ConfigError(f"temperature={temperature!r} is not above 0", hint="1 is none", argument="temperature")
        if weights is None:
            weights = [part.num_rows(1, 1) ** (1 / temperature) for part in parts]
        self.weights = weights if callable(weights) else checked(weights, len(parts))

    @property
    def row_source(self) -> MixedRows:
        return MixedRows(
            self.datasets,
            self.weights,
            iterate_over_all=self.iterate_over_all,
            is_per_stream=self.batching_method == "per_stream",
        )

    def row_code(self, first_leaf: int = 0) -> UserCode:
        mixed = mixed_code(*self._codes(first_leaf))
        return mixed.then(make_transform(self.transform, self), "CombinedStreamingDataset")


def _check_columns(parts: Sequence[RowSource]) -> None:
    first = parts[0].column_types()
    for number, part in enumerate(parts[1:], 1):
        if (found := part.column_types()) != first:
            names = [f"{name} ({kind})" for name, kind in set(first.items()) ^ set(found.items())]
            raise SchemaMismatch(
                f"datasets 0 and {number} cannot be mixed: they differ in {', '.join(sorted(names))}",
                hint="choose the same columns of both with columns=, in the same types",
                column=names[0].split(" ")[0],
            )


class MixedRows(CompositeRows):
    """The ``RowSource`` of a mixture."""

    continues = False

    def __init__(
        self,
        datasets: Sequence[RowDataset],
        weights: Sequence[float] | Callable[[int], Sequence[float]],
        *,
        iterate_over_all: bool,
        is_per_stream: bool,
    ) -> None:
        super().__init__(datasets)
        self._weights, self._iterate_over_all, self._is_per_stream = weights, iterate_over_all, is_per_stream

    @property
    def delivery(self) -> Delivery:
        """How rows become batches: all parts have the same columns."""
        return self.parts[0].delivery

    def column_types(self) -> dict[str, str]:
        return self.parts[0].column_types()

    def num_rows(self, lanes: int, global_batch: int) -> int:
        return self._mix(lanes, global_batch).num_rows

    def _mix(self, lanes: int, global_batch: int, *, seed: int = 0, epoch: int = 0) -> Mix:
        weights, sizes = self._weights, self.sizes(lanes, global_batch)
        per_stream = self._is_per_stream
        groups, left = divmod(global_batch, lanes)
        if per_stream and left:
            raise ConfigError(
                f"batches of {global_batch} rows over all ranks cannot be of one dataset: {lanes} lanes do not divide "
                "them",
                hint="leave lanes out",
                argument="lanes",
            )
        samples = global_batch if per_stream else lanes  # in a unit of the mixture: a batch, or a group
        share: Weights = weights
        if callable(weights):
            share = lambda unit: checked(weights(unit * samples // global_batch), len(sizes))  # noqa: E731
        if per_stream:
            return Batchwise(
                sizes, lanes, share, groups=groups, all_of_them=self._iterate_over_all, seed=seed, epoch=epoch
            )
        return Mix(sizes, lanes, share, all_of_them=self._iterate_over_all)

    def num_fragments(self) -> int:
        """Return how many row groups the part with the fewest has; 0 for batches per stream.

        Only then does the default number of lanes divide every batch.
        """
        return 0 if self._is_per_stream else super().num_fragments()

    def facts(self) -> dict[str, Any]:
        """Return what tells this mixture from others."""
        facts = super().facts()
        weights = None if callable(self._weights) else list(self._weights)
        # The batching method, if it is not the default: a position means other rows then.
        told = [facts, weights, self._iterate_over_all, *["per_stream"] * self._is_per_stream]
        return {"rows": facts["rows"], "data": hashlib.blake2b(json.dumps(told).encode(), digest_size=8).hexdigest()}

    def blocks(self, reading: ReadRequest, position: int, options: ReadOptions) -> Blocks:
        lanes, count = reading.lanes, len(reading.lanes.numbers)
        mix = self._mix(lanes.total, reading.global_batch, seed=reading.seed, epoch=reading.epoch)
        block = min(position // count // mix.block_groups, mix.num_blocks) if count else 0
        first = min(block * mix.block_groups, mix.num_groups)
        taken = mix.taken(first)
        sources = [
            part.blocks(of_part, number * count, options.shared(len(self.parts)))
            for part, of_part, number in zip(self.parts, self.readings(reading), taken, strict=True)
        ]
        groups = mixed(
            sources, mix, lambda b: mix.sources(b, lanes, seed=reading.seed, epoch=reading.epoch), first_block=block
        )
        blocks = one_after_the_other(iter([lambda: groups, lambda: self._tail(mix, reading, options)]))
        skip = position - first * count
        return StridedBlocks(blocks, skip=skip) if skip else blocks

    def _tail(self, mix: Mix, reading: ReadRequest, options: ReadOptions) -> Blocks:
        """Return the rows that are too few for a group or a batch, one dataset after the other."""
        if not isinstance(mix, Batchwise):  # less than one row for each lane
            first, lanes = mix.num_groups * mix.lanes, reading.lanes
            mine = [row for number, row in enumerate(mix.tail, first) if number % lanes.total in lanes.numbers]
            return CombinedBlocks([], (self._row(reading, *row) for row in mine))
        starts, before = [], mix.num_groups * mix.lanes
        for part, of_part, size in zip(self.parts, self.readings(reading), mix.tail_sizes, strict=True):
            row = part.num_rows(mix.lanes, reading.global_batch) - size
            # Its rows have other numbers in the mixture than in the dataset, and so belong to other lanes.
            lanes = of_part.lanes._replace(first=(of_part.lanes.first - before + row) % of_part.lanes.step)
            starts.append(partial(part.blocks, of_part._replace(lanes=lanes), lanes.position(row), options))
            before += size
        return one_after_the_other(start for start, size in zip(starts, mix.tail_sizes, strict=True) if size)

    def _row(self, reading: ReadRequest, part: int, row: int) -> Block:
        return self.parts[part].sample(self.readings(reading)[part], row)

    def _found(self, reading: ReadRequest, sample: int) -> tuple[int, int]:
        """Return the dataset and the number in its epoch that a sample of the mixture has."""
        lanes = reading.lanes.total
        mix = self._mix(lanes, reading.global_batch, seed=reading.seed, epoch=reading.epoch)
        group, lane = divmod(sample, lanes)
        if group >= mix.num_groups:
            return mix.tail[sample - mix.num_groups * lanes]
        block, at = divmod(group, mix.block_groups)
        picks = mix.picks(block, lane, seed=reading.seed, epoch=reading.epoch)
        dataset = int(picks[at])
        row = mix.taken(block * mix.block_groups)[dataset] + int((picks[:at] == dataset).sum())
        return dataset, row * lanes + lane

    def sample(self, reading: ReadRequest, sample: int) -> Block:
        return self._row(reading, *self._found(reading, sample))

    def sample_name(self, reading: ReadRequest, sample: int) -> str:
        part, row = self._found(reading, sample)
        return self.parts[part].sample_name(self.readings(reading)[part], row)


def checked(weights: Any, number: int) -> list[float]:
    """Return the weights as numbers, or raise what is wrong with them."""
    try:
        found = [float(weight) for weight in weights]
    except (TypeError, ValueError):
        found = []
    if len(found) != number or not all(0 <= weight < float("inf") for weight in found) or not any(found):
        raise ConfigError(
            f"weights={weights!r:.200} are not {number} numbers of at least 0, one above it",
            hint="give one weight for each dataset",
            argument="weights",
        )
    return found
