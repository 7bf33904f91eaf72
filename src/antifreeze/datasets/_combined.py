"""Several datasets mixed into one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from antifreeze.core import ConfigError, SchemaMismatch
from antifreeze.core import arguments as check
from antifreeze.datasets._composite import CompositeDataset, rows_of
from antifreeze.datasets._delivery import Delivery, Row
from antifreeze.datasets._iterate import rows_of_epoch
from antifreeze.datasets._reading import ReadOptions
from antifreeze.datasets._row_code import RowCode, make_transform, mixed_code
from antifreeze.datasets._row_source import ReadRequest, RowSource
from antifreeze.decode import Block, Blocks, StridedBlocks, mixed, one_after_the_other
from antifreeze.plan import Batchwise, Lanes, Mix, Weights

_BATCHING_METHODS = ("stratified", "per_stream")


class CombinedStreamingDataset(CompositeDataset):
    """Rows of several datasets, mixed.

    Args:
        datasets: datasets with the same columns.
        seed: what the order depends on, together with the epoch.
        weights: how often each of them is drawn from; a number for each, or a function that is called with the number
            of a step and returns these numbers. By default in proportion to their lengths, so that all of them last
            until the end.
        iterate_over_all: whether an epoch has all rows of all datasets, each once: one that is used up drops out. If
            not, the epoch ends when the first dataset is used up.
        temperature: without weights, a dataset of n rows has the weight ``n ** (1 / temperature)``. 1 is in proportion;
            more favours small ones.
        batching_method: ``"stratified"``, rows of all datasets in every batch; or ``"per_stream"``, a batch has rows of
            one dataset. Rows that are too few for a batch come at the end, and only there a batch may have rows of two.
        force_override_state_dict: whether a loader continues from a state that does not fit, with a warning, as
            ``load_state_dict(state, strict=False)`` does.
        shuffle: whether the rows of each dataset are shuffled; by default if one of them is to be.
        transform: a function of one row, after the transform of its dataset if that has one; or of a whole batch if
            marked with ``antifreeze.batched``. A list of functions is applied one after the other.
        drop_last: whether a loader that does not say otherwise leaves out a last batch that is not full.
    """

    @check.explained("CombinedStreamingDataset")
    def __init__(
        self,
        datasets: Sequence[RowSource],
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
        super().__init__(datasets, shuffle=shuffle, seed=seed, drop_last=drop_last)
        self.iterate_over_all = check.flag("iterate_over_all", iterate_over_all)
        self.force_override_state_dict = check.flag("force_override_state_dict", force_override_state_dict)
        if batching_method not in _BATCHING_METHODS:
            hint = f"it is one of {', '.join(_BATCHING_METHODS)}"
            raise ConfigError(
                f"batching_method={batching_method!r} is not known", hint=hint, argument="batching_method"
            )
        self.batching_method = batching_method
        if transform is not None:  # else it is that of the class, if a subclass has one
            self.transform = transform
        self._code()  # raises now what is wrong with transforms
        self._check_columns()
        sizes = self._sizes(1, 1)
        if not isinstance(temperature, (int, float)) or not temperature > 0:
            raise ConfigError(f"temperature={temperature!r} is not above 0", hint="1 is none", argument="temperature")
        if weights is None:
            weights = [size ** (1 / temperature) for size in sizes]
        self.weights = weights if callable(weights) else checked(weights, len(sizes))

    def _check_columns(self) -> None:
        first = self.datasets[0]._columns_of()
        for number, dataset in enumerate(self.datasets[1:], 1):
            if (found := dataset._columns_of()) != first:
                names = [f"{name} ({kind})" for name, kind in set(first.items()) ^ set(found.items())]
                raise SchemaMismatch(
                    f"datasets 0 and {number} cannot be mixed: they differ in {', '.join(sorted(names))}",
                    hint="choose the same columns of both with columns=, in the same types",
                    column=names[0].split(" ")[0],
                )

    # -- what the loader needs -------------------------------------------------------------------------------------

    @property
    def _delivery(self) -> Delivery:
        return self.datasets[0]._delivery

    def _code(self, first_leaf: int = 0) -> RowCode:
        mixed = mixed_code(*self._codes(first_leaf))
        return mixed.then(make_transform(self.transform, self), "CombinedStreamingDataset")

    def _columns_of(self) -> dict[str, str]:
        return self.datasets[0]._columns_of()

    def __len__(self) -> int:
        return self._num_rows(1, 1)

    def _num_rows(self, lanes: int, global_batch: int) -> int:
        return self._mix(lanes, global_batch).num_rows

    def _mix(self, lanes: int, global_batch: int, *, seed: int = 0, epoch: int = 0) -> Mix:
        weights, sizes = self.weights, self._sizes(lanes, global_batch)
        per_stream = self.batching_method == "per_stream"
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
                sizes, lanes, share, groups=groups, all_of_them=self.iterate_over_all, seed=seed, epoch=epoch
            )
        return Mix(sizes, lanes, share, all_of_them=self.iterate_over_all)

    @property
    def _own_batches(self) -> list[str]:
        """The batching method, if it is not the default: a position means other rows then."""
        return [] if self.batching_method == "stratified" else [self.batching_method]

    def _num_fragments(self) -> int:
        # Only then does the default number of lanes divide every batch.
        return super()._num_fragments() if not self._own_batches else 0

    def _facts(self) -> dict[str, Any]:
        facts = super()._facts()
        weights = None if callable(self.weights) else list(self.weights)
        told = json.dumps([facts, weights, self.iterate_over_all, *self._own_batches]).encode()
        return {"rows": facts["rows"], "data": hashlib.blake2b(told, digest_size=8).hexdigest()}

    def _blocks(self, reading: ReadRequest, position: int, options: ReadOptions) -> Blocks:
        lanes, count = reading.lanes, len(reading.lanes.numbers)
        mix = self._mix(lanes.total, reading.global_batch, seed=reading.seed, epoch=reading.epoch)
        block = min(position // count // mix.block_groups, mix.num_blocks) if count else 0
        first = min(block * mix.block_groups, mix.num_groups)
        taken = mix.taken(first)
        sources = [
            dataset._blocks(part, number * count, options.shared(len(self.datasets)))
            for dataset, part, number in zip(self.datasets, self._readings(reading), taken, strict=True)
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
            return rows_of([partial(self._row, reading, *row) for row in _tail_of(mix, reading.lanes)])
        starts, before = [], mix.num_groups * mix.lanes
        for dataset, part, size in zip(self.datasets, self._readings(reading), mix.tail_sizes, strict=True):
            row = dataset._num_rows(mix.lanes, reading.global_batch) - size
            # Its rows have other numbers in the mixture than in the dataset, and so belong to other lanes.
            lanes = part.lanes._replace(first=(part.lanes.first - before + row) % part.lanes.step)
            starts.append(partial(dataset._blocks, part._replace(lanes=lanes), lanes.position(row), options))
            before += size
        return one_after_the_other(start for start, size in zip(starts, mix.tail_sizes, strict=True) if size)

    def _row(self, reading: ReadRequest, dataset: int, row: int) -> Block:
        return self.datasets[dataset]._sample(self._readings(reading)[dataset], row)

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

    def _sample(self, reading: ReadRequest, sample: int) -> Block:
        return self._row(reading, *self._found(reading, sample))

    def _sample_name(self, reading: ReadRequest, sample: int) -> str:
        dataset, row = self._found(reading, sample)
        return self.datasets[dataset]._sample_name(self._readings(reading)[dataset], row)

    def __iter__(self) -> Iterator[Row]:
        """Yield the rows one by one, in this thread; each full iteration is a new epoch."""
        epoch, self.epoch = self.epoch, self.epoch + 1
        yield from rows_of_epoch(self, epoch)

    def __repr__(self) -> str:
        return f"CombinedStreamingDataset({', '.join(map(repr, self.datasets))})"


def _tail_of(mix: Mix, lanes: Lanes) -> list[tuple[int, int]]:
    first = mix.num_groups * mix.lanes
    return [row for number, row in enumerate(mix.tail, first) if number % lanes.total in lanes.numbers]


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
