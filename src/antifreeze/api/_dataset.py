"""The dataset: rows of Parquet files, by number, in order, or shuffled."""

from __future__ import annotations

import functools
import hashlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from antifreeze.api import _arguments as check
from antifreeze.api._delivery import Delivery, Row, check_format, make_delivery
from antifreeze.api._iterate import rows_of_epoch
from antifreeze.api._parquet_loader import ParquetLoader
from antifreeze.api._readable import Reading
from antifreeze.api._user_code import UserCode, error_of, inline_desk
from antifreeze.child import UserError
from antifreeze.core import ConfigError
from antifreeze.loader import (
    InputDir,
    Means,
    Recipe,
    RowCache,
    Selection,
    Shape,
    Source,
    Wanted,
    chosen_columns,
    column_types,
    expected_leaves,
    make_order,
    make_recipe,
    make_shape,
    open_source,
    read_blocks,
)
from antifreeze.plan import Lanes, Longs, Order, locate, some_rows, view_of_rows
from antifreeze.workers import Block, Blocks, Note, bounded


class StreamingDataset:
    """Rows of Parquet files.

    Args:
        input_dir: a directory (searched recursively), a glob, a file, or a list of these.
        columns: the columns to read; all of them by default. Others are not decoded.
        shuffle: whether iteration, and a loader that does not say otherwise, shuffle the rows.
        seed: what the order depends on, together with the epoch.
        drop_last: whether a loader that does not say otherwise leaves out a last batch that is not full.
        transform: a function of one row (a dict), or of a whole batch if marked with ``antifreeze.batched``.
        format: ``"torch"``, ``"numpy"`` or ``"arrow"``; the last two do not need torch.
        fill_null: a value for nulls, or one for each column as a dict. Without it, a null is an error.
        pad: a value that ragged lists are padded with, or one for each column as a dict. Without it, a ragged column is
            a list with one tensor for each row.
        ragged: list columns to be treated as ragged although all their rows seem to have one length.
        subset: the rows to take, as in the method of that name; all of them by default.
        subsample: a fraction of these, chosen by chance with ``seed``; above 1, rows are repeated.
        hive: whether ``key=value`` folders are columns.
        index_path: where the manifest stands, if not in the directory.
        item_loader: a ``ParquetLoader``; of use for its ``columns`` only.
        cache_dir, max_cache_size, max_pre_download: accepted for code that comes from litData, and unused: local files
            are read where they are.
    """

    def __init__(
        self,
        input_dir: InputDir,
        *,
        columns: Sequence[str] | None = None,
        shuffle: bool = False,
        seed: int = 42,
        drop_last: bool | None = None,
        transform: Callable[[Any], Any] | None = None,
        format: str = "torch",  # noqa: A002  the name that users of other loaders expect
        fill_null: object = None,
        pad: object = None,
        ragged: Sequence[str] = (),
        subset: slice | range | Sequence[int] | None = None,
        subsample: float = 1.0,
        hive: bool = False,
        index_path: str | None = None,
        item_loader: ParquetLoader | None = None,
        cache_dir: object = None,  # noqa: ARG002
        max_cache_size: object = None,  # noqa: ARG002
        max_pre_download: object = None,  # noqa: ARG002
    ) -> None:
        check.function("transform", transform)
        check_format(format)
        if item_loader is not None and not isinstance(item_loader, ParquetLoader):
            raise ConfigError(
                f"item_loader is a {type(item_loader).__name__}; only antifreeze.ParquetLoader is known",
                hint="leave item_loader out",
                argument="item_loader",
            )
        if columns is None and item_loader is not None:
            columns = item_loader.columns
        self.shuffle, self.transform = check.flag("shuffle", shuffle), transform
        self.drop_last = False if drop_last is None else check.flag("drop_last", drop_last)
        self.seed = check.integer("seed", seed)
        self.epoch = 0
        self._format, self._pad = format, pad
        self._source: Source = open_source(input_dir, hive=check.flag("hive", hive), index_path=index_path)
        self._columns = chosen_columns(self._source, columns)
        for name in ragged:
            chosen_columns(self._source, [name])
        self._wanted = Wanted(columns=self._columns, format=format, fill_null=fill_null, ragged=tuple(ragged))
        make_delivery(format, expected_leaves(self._source, self._wanted), pad)  # raises now what is wrong with pad
        self._selection: Selection = None
        if subset is not None:
            self._selection = self.subset(subset)._selection
        if (rows := some_rows(len(self), check.amount("subsample", subsample), self.seed)) is not None:
            self._selection = self.subset(rows)._selection

    # -- what it is ------------------------------------------------------------------------------------------------

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of a row, in order."""
        return self._columns

    @property
    def format(self) -> str:
        """``"torch"``, ``"numpy"`` or ``"arrow"``."""
        return self._format

    def __len__(self) -> int:
        return self._source.manifest.num_rows if self._selection is None else len(self._selection)

    def __repr__(self) -> str:
        files, groups = len(self._source.paths), self._source.manifest.num_fragments
        where = self._source.paths[0] if files == 1 else self._source.root
        counts = ", ".join(
            _counted(n, noun) for n, noun in ((len(self), "row"), (files, "file"), (groups, "row group"))
        )
        return f"StreamingDataset({where!r}, {counts}, columns {', '.join(self._columns)})"

    def __getstate__(self) -> dict[str, Any]:
        derived = ("_recipe", "_delivery", "_row_cache", "_fingerprint")
        return {name: value for name, value in self.__dict__.items() if name not in derived}

    @functools.cached_property
    def _recipe(self) -> Recipe:
        return make_recipe(self._source, self._wanted, Note("main thread"))

    def _look(self, limit_s: float) -> None:
        """Have the recipe, which reads the first rows, within a limit on how long nothing may move."""
        if "_recipe" not in self.__dict__:
            self.__dict__["_recipe"] = bounded(lambda note: make_recipe(self._source, self._wanted, note), limit_s)

    @functools.cached_property
    def _delivery(self) -> Delivery:
        return make_delivery(self._format, self._recipe.leaves, self._pad)

    @functools.cached_property
    def _row_cache(self) -> RowCache:
        return RowCache(self._source.manifest, self._recipe)

    # -- rows by number --------------------------------------------------------------------------------------------

    def __getitem__(self, index: int | slice) -> Any:
        """Return one row as a dict, or a list of rows for a slice."""
        if isinstance(index, slice):
            return self._get(np.arange(len(self))[index])
        i = check.integer("index", index)
        if not -len(self) <= i < len(self):
            raise IndexError(f"row {i} of a dataset of {len(self)} rows")
        return self._get(np.array([i % len(self)]))[0]

    def _get(self, numbers: Any) -> list[Any]:
        """Return rows by their numbers in this dataset, each through the transform."""
        if not len(numbers):
            return []
        rows = numbers if self._selection is None else np.asarray(self._selection)[numbers]
        ascending = np.argsort(rows, kind="stable")
        block = self._row_cache.get(rows[ascending])
        back = np.empty_like(ascending)
        back[ascending] = np.arange(len(ascending))
        block = block.take(back)
        batch = self._delivery.batch(block, 0, block.num_rows)
        try:
            return UserCode(transform=self.transform).rows(self._delivery, batch, block.num_rows, inline_desk())
        except UserError as caught:
            i = max(caught.position, 0)
            place = f"row {numbers[i]} of the dataset: {self._name(*self._stands(rows[i]))}"
            raise error_of(caught, place, 0) from caught.error

    def __iter__(self) -> Iterator[Row]:
        """Yield the rows one by one, in this thread; each full iteration of a shuffled dataset is a new epoch."""
        epoch, self.epoch = self.epoch, self.epoch + 1
        yield from rows_of_epoch(self, epoch)

    # -- parts of it -----------------------------------------------------------------------------------------------

    def subset(self, rows: slice | range | Sequence[int] | Longs) -> StreamingDataset:
        """Return a dataset of some of the rows: a slice, or numbers in any order, as often as they are named."""
        part = object.__new__(StreamingDataset)
        part.__dict__.update(self.__getstate__())
        if isinstance(rows, slice):
            rows = range(*rows.indices(len(self)))
        if isinstance(rows, range) and rows.step == 1 and 0 <= rows.start <= rows.stop <= len(self):
            whole = range(len(self)) if self._selection is None else self._selection
            part._selection = whole[rows.start : rows.stop]
            return part
        numbers = np.asarray(rows)
        if numbers.dtype == bool and len(numbers) == len(self):
            numbers = np.flatnonzero(numbers)
        numbers = _check_numbers(numbers if numbers.size else np.empty(0, np.int64), len(self))
        part._selection = numbers if self._selection is None else np.asarray(self._selection)[numbers]
        return part

    # -- what the loader needs -------------------------------------------------------------------------------------

    def _columns_of(self) -> dict[str, str]:
        return column_types(self._source, self._columns)

    def _num_rows(self, lanes: int, global_batch: int) -> int:  # noqa: ARG002
        return len(self)

    def _num_shapes(self) -> int:
        return 1

    def _num_fragments(self) -> int:
        return self._source.manifest.num_fragments

    @property
    def _continues(self) -> bool:
        return False

    def _facts(self) -> dict[str, Any]:
        return {"rows": len(self), "data": self._fingerprint}

    @functools.cached_property
    def _fingerprint(self) -> str:
        """A number that changes with the rows; not with where they are stored, so that a run can move."""
        manifest, found = self._source.manifest, hashlib.blake2b(digest_size=8)
        for numbers in (manifest.fragment_rows, manifest.fragment_group, array("q", [f.size for f in manifest.files])):
            found.update(numbers.tobytes())
        selection = self._selection
        found.update(selection.tobytes() if isinstance(selection, np.ndarray) else repr(selection).encode())
        return found.hexdigest()

    def _shapes(self, lanes: int, memory_limit: int | None) -> tuple[Shape, ...]:
        return (make_shape(self._recipe, lanes, memory_limit),)

    def _order(self, reading: Reading) -> Order:
        shuffled = (reading.seed, reading.epoch) if reading.shuffle else None
        return make_order(self._source.manifest, self._selection, reading.lanes, reading.shapes[0], shuffled)

    def _blocks(self, reading: Reading, position: int, means: Means) -> Blocks:
        return read_blocks(self._order(reading), self._recipe, position, means)

    def _located(self, reading: Reading, sample: int) -> tuple[int, int]:
        """Return the fragment and the row in it that has a number in the epoch."""
        number, lane = divmod(sample, reading.lanes.total)
        alone = reading._replace(lanes=Lanes(reading.lanes.total, lane, reading.lanes.total))
        return locate(self._order(alone), number)

    def _sample_name(self, reading: Reading, sample: int) -> str:
        return self._name(*self._located(reading, sample))

    def _sample(self, reading: Reading, sample: int) -> Block:
        fragment, row = self._located(reading, sample)
        return self._row_cache.get(np.array([sum(self._source.manifest.fragment_rows[:fragment]) + row]))

    def _stands(self, number: int) -> tuple[int, int]:
        """Return the fragment and the row in it that has a number in the source."""
        view = view_of_rows(self._source.manifest.fragment_rows, np.array([number]))
        return view.locate(0, 0)

    def _name(self, fragment: int, row: int) -> str:
        """Return in words where a row of a fragment stands."""
        decoding = self._recipe.decoding
        path = decoding.paths[decoding.fragment_file[fragment]]
        return f"{path}, row {decoding.first_rows[fragment] + row} of the file"


def _check_numbers(numbers: Any, size: int) -> Any:
    if numbers.ndim != 1 or not np.issubdtype(numbers.dtype, np.integer):
        raise ConfigError(
            f"rows are of type {numbers.dtype} and shape {numbers.shape}, not a list of integers",
            hint="pass a slice, a range, a list of row numbers, or a mask with one bool for each row",
            argument="rows",
        )
    if len(numbers) and not (-size <= numbers.min() and numbers.max() < size):
        raise IndexError(f"rows from {numbers.min()} to {numbers.max()} of a dataset of {size} rows")
    return np.where(numbers < 0, numbers + size, numbers).astype(np.int64)


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
