"""The dataset: rows of Parquet files, by number, in order, or shuffled."""

from __future__ import annotations

import hashlib
import threading
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import numpy as np

from antifreeze.core import ConfigError
from antifreeze.core import arguments as check
from antifreeze.core.arguments import SUBSET_HINT
from antifreeze.datasets._cached import Made, made_once
from antifreeze.datasets._delivery import Delivery, Row, check_format, make_delivery
from antifreeze.datasets._iterate import rows_of_epoch
from antifreeze.datasets._parquet_loader import ParquetLoader
from antifreeze.datasets._read_spec import (
    Projection,
    ReadSpec,
    chosen_columns,
    column_types,
    expected_leaves,
    make_read_spec,
)
from antifreeze.datasets._reading import ReadOptions, RunShape, Selection, make_order, make_run_shape, read_blocks
from antifreeze.datasets._row_cache import RowCache
from antifreeze.datasets._row_code import Asked, Moment, RowCode, make_transform
from antifreeze.datasets._row_source import ReadRequest
from antifreeze.datasets._source import DataSource, InputDir, open_source
from antifreeze.datasets._tracks import tracked_block, tracked_read_spec
from antifreeze.datasets._user_code import UserCode, error_of, inline_context
from antifreeze.decode import Block, Blocks, ThreadProgress, bounded
from antifreeze.plan import Int64Array, Lanes, Order, locate, some_rows, view_of_rows
from antifreeze.worker import UserError

_LOADERS = "give it to StreamingDataLoader"
_INSTEAD = {
    "batch_size": _LOADERS,
    "num_workers": _LOADERS,
    "collate_fn": _LOADERS,
    "filters": SUBSET_HINT,
    "split": "name the files of the split, for example by a glob",
    "streaming": "leave it out: rows are always read as they are needed",
}
_at_hand = threading.local()
"""The row that a loader asks ``__getitem__`` of a subclass for: it was read already."""


class StreamingDataset:
    """Rows of Parquet files.

    A subclass may override ``transform`` or ``__getitem__``: a loader delivers what they return, and runs them where it
    runs a transform. ``super().__getitem__(index)`` gives the row as this class would, and costs nothing for the row
    that the loader asks for.

    Args:
        input_dir: a directory (searched recursively), a glob, a file, or a list of these.
        item_loader: a ``ParquetLoader``; of use for its ``columns`` only.
        shuffle: whether iteration, and a loader that does not say otherwise, shuffle the rows.
        drop_last: whether a loader that does not say otherwise leaves out a last batch that is not full.
        seed: what the order depends on, together with the epoch.
        subsample: a fraction of the rows, chosen by chance with ``seed``; above 1, rows are repeated.
        index_path: where the manifest is, if not in the directory.
        force_override_state_dict: whether a loader continues from a state that does not fit, with a warning, as
            ``load_state_dict(state, strict=False)`` does.
        transform: a function of one row (a dict), or of a whole batch if marked with ``antifreeze.batched``; or a list
            of functions, which are applied one after the other.
        columns: the columns to read; all of them by default. Others are not decoded, and files may differ in them.
        format: ``"torch"``, ``"numpy"`` or ``"arrow"``; the last two do not need torch.
        fill_null: a value for nulls, or one for each column as a dict. Without it, a null is an error.
        pad: a value that ragged lists are padded with, or one for each column as a dict. Without it, a ragged column is
            a list with one tensor for each row.
        ragged: list columns to be treated as ragged although all their rows seem to have one length.
        subset: the rows to take, as in the method of that name; all of them by default.
        hive: whether ``key=value`` folders are columns.
        cache_dir, max_cache_size, max_pre_download, storage_options, session_options, num_canonical_nodes,
            batch_decode, item_shuffle_window: accepted for code that comes from litData, and without effect: local
            files are read where they are, in pieces, and runs continue on any number of ranks.
        serializers, encryption, window_direct_io: refused unless they ask for nothing.
    """

    @check.explained("StreamingDataset", instead=_INSTEAD)
    def __init__(
        self,
        input_dir: InputDir,
        cache_dir: object = None,
        item_loader: ParquetLoader | None = None,
        shuffle: bool = False,
        drop_last: bool | None = None,
        seed: int = 42,
        serializers: object = None,
        max_cache_size: object = None,  # noqa: ARG002
        subsample: float = 1.0,
        encryption: object = None,
        storage_options: object = None,  # noqa: ARG002
        session_options: object = None,  # noqa: ARG002
        max_pre_download: object = None,  # noqa: ARG002
        index_path: str | None = None,
        force_override_state_dict: bool = False,
        transform: Callable[[Any], Any] | Sequence[Callable[[Any], Any]] | None = None,
        num_canonical_nodes: object = None,  # noqa: ARG002
        batch_decode: object = None,  # noqa: ARG002
        item_shuffle_window: object = None,  # noqa: ARG002
        window_direct_io: object = False,
        *,
        columns: Sequence[str] | None = None,
        format: str = "torch",  # noqa: A002  the name that users of other loaders expect
        fill_null: object = None,
        pad: object = None,
        ragged: Sequence[str] = (),
        subset: slice | range | Sequence[int] | None = None,
        hive: bool = False,
    ) -> None:
        if isinstance(cache_dir, (bool, int, float, list, tuple, set, dict)):
            hint = "give other arguments by name: columns=[...]"
            raise ConfigError(f"cache_dir={cache_dir!r:.200} is not a path", hint=hint, argument="cache_dir")
        check.unused("serializers", serializers, "Parquet has its own types", "convert values in transform=")
        check.unused("encryption", encryption, "files are read as they are", "decrypt values in transform=")
        check.unused("window_direct_io", window_direct_io, "files are read through the page cache", "leave it out")
        self.force_override_state_dict = check.flag("force_override_state_dict", force_override_state_dict)
        if transform is not None:  # else it is that of the class, if a subclass has one
            make_transform(transform)
            self.transform = transform
        check_format(format)
        if item_loader is not None and not isinstance(item_loader, ParquetLoader):
            raise ConfigError(
                f"item_loader is a {type(item_loader).__name__}; only antifreeze.ParquetLoader is known",
                hint="leave item_loader out",
                argument="item_loader",
            )
        if columns is None and item_loader is not None:
            columns = item_loader.columns
        self.shuffle = check.flag("shuffle", shuffle)
        self.drop_last = False if drop_last is None else check.flag("drop_last", drop_last)
        self.seed = check.integer("seed", seed)
        self.epoch = 0
        self._format, self._pad = format, pad
        hive = check.flag("hive", hive)
        self._source: DataSource = open_source(input_dir, hive=hive, index_path=index_path, columns=columns)
        self._columns = chosen_columns(self._source, columns)
        for name in ragged:
            chosen_columns(self._source, [name])
        self._wanted = Projection(columns=self._columns, format=format, fill_null=fill_null, ragged=tuple(ragged))
        make_delivery(format, expected_leaves(self._source, self._wanted), pad)  # raises now what is wrong with pad
        self._selection: Selection = None
        self._made = Made()
        if subset is not None:
            self._selection = self._selected(subset)
        if (rows := some_rows(self._size, check.amount("subsample", subsample), self.seed)) is not None:
            self._selection = self._selected(rows)

    transform: Any = None
    """A function of one row, or a list of such functions. A subclass may have a method of this name."""

    # -- what it is ------------------------------------------------------------------------------------------------

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of a row, in order."""
        return self._columns

    @property
    def format(self) -> str:
        """``"torch"``, ``"numpy"`` or ``"arrow"``."""
        return self._format

    @property
    def current_epoch(self) -> int:
        """The number of the epoch that is read, or was read last, from 1 on. Workers know it too."""
        return self._made.epoch + 1

    def __len__(self) -> int:
        return self._size

    @property
    def _size(self) -> int:
        return self._source.manifest.num_rows if self._selection is None else len(self._selection)

    def __repr__(self) -> str:
        files, groups = len(self._source.paths), self._source.manifest.num_fragments
        where = self._source.paths[0] if files == 1 else self._source.root
        counts = ", ".join(
            _counted(n, noun) for n, noun in ((self._size, "row"), (files, "file"), (groups, "row group"))
        )
        return f"{type(self).__name__}({where!r}, {counts}, columns {', '.join(self._columns)})"

    @made_once
    def _spec(self) -> ReadSpec:
        return make_read_spec(self._source, self._wanted, ThreadProgress("main thread"))

    def _look(self, limit_s: float | None, memory_limit: int | None = None) -> None:
        """Read the first rows and decide how to read all: in this thread, or bounded in how long nothing moves."""
        if "_spec" in self._made.values:
            return

        def make(note: ThreadProgress) -> ReadSpec:
            return make_read_spec(self._source, self._wanted, note, memory_limit)

        self._made.values["_spec"] = make(ThreadProgress("main thread")) if limit_s is None else bounded(make, limit_s)

    @made_once
    def _delivery(self) -> Delivery:
        return make_delivery(self._format, self._spec.leaves, self._pad)

    @made_once
    def _row_cache(self) -> RowCache:
        return RowCache(self._source.manifest, self._spec)

    # -- rows by number --------------------------------------------------------------------------------------------

    def __getitem__(self, index: int | slice) -> Any:
        """Return one row as a dict, or a list of rows for a slice."""
        if isinstance(index, slice):
            return self._get(np.arange(self._size)[index])
        i = check.integer("index", index)
        if not -self._size <= i < self._size:
            raise IndexError(f"row {i} of a dataset of {self._size} rows")
        dataset, number, make = _row_at_hand()
        if dataset is self and number == i:
            transform, row = make_transform(self.transform), make()
            return row if transform is None else transform.function(row)
        return self._get(np.array([i % self._size]))[0]

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
        code = UserCode(code=self._transform_code())
        try:
            return code.rows(
                self._delivery,
                batch,
                block.num_rows,
                inline_context(),
                Moment(self.seed, self._made.epoch, int(numbers[0])),
            )
        except UserError as caught:
            i = max(caught.position, 0)
            place = f"row {numbers[i]} of the dataset: {self._name(*self._row_position(rows[i]))}"
            raise error_of(caught, place, 0) from caught.error

    def _asked(self, number: int, make: Callable[[], Row]) -> Any:
        """Return what ``__getitem__`` of the user's class makes of a row that was read already."""
        before = _row_at_hand()
        _at_hand.row = (self, number, make)
        try:
            return self[number]
        finally:
            _at_hand.row = before

    def _number_of(self, row: int) -> int:
        """Return the number in this dataset of a row of the source; of several, the first."""
        if isinstance(self._selection, range):
            return row - self._selection.start
        if self._selection is None:
            return row
        rows, numbers = self._places
        return int(numbers[np.searchsorted(rows, row)])

    @made_once
    def _places(self) -> tuple[Int64Array, Int64Array]:
        selection = np.asarray(self._selection)
        numbers = np.argsort(selection, kind="stable")
        return selection[numbers], numbers

    def __iter__(self) -> Iterator[Row]:
        """Yield the rows one by one, in this thread; each full iteration of a shuffled dataset is a new epoch."""
        epoch, self.epoch = self.epoch, self.epoch + 1
        yield from rows_of_epoch(self, epoch)

    # -- parts of it -----------------------------------------------------------------------------------------------

    def subset(self, rows: slice | range | Sequence[int] | Int64Array) -> Self:
        """Return a dataset of some of the rows: a slice, or numbers in any order, as often as they are named.

        It is of the same class, and shares all attributes that a subclass may have.
        """
        selection = self._selected(rows)
        part = object.__new__(type(self))
        # Of object: a subclass may leave out in its own what cannot be pickled.
        state = object.__getstate__(self)
        attributes, slots = state if isinstance(state, tuple) else (state, {})
        for name, value in {**attributes, **slots}.items():
            object.__setattr__(part, name, value)
        part._selection, part._made = selection, Made()
        return part

    def _selected(self, rows: Any) -> Selection:
        size = self._size
        if isinstance(rows, slice):
            rows = range(*rows.indices(size))
        if isinstance(rows, range) and rows.step == 1 and 0 <= rows.start <= rows.stop <= size:
            whole = range(size) if self._selection is None else self._selection
            return whole[rows.start : rows.stop]
        numbers = np.asarray(rows)
        if numbers.dtype == bool and len(numbers) == size:
            numbers = np.flatnonzero(numbers)
        numbers = _check_numbers(numbers if numbers.size else np.empty(0, np.int64), size)
        found: Int64Array = numbers if self._selection is None else np.asarray(self._selection)[numbers]
        return found

    # -- what the loader needs -------------------------------------------------------------------------------------

    def _columns_of(self) -> dict[str, str]:
        return column_types(self._source, self._columns)

    def _transform_code(self) -> RowCode:
        return RowCode().then(make_transform(self.transform, self), type(self).__name__)

    def _code(self, first_leaf: int = 0) -> RowCode:  # noqa: ARG002
        code = self._transform_code()
        if type(self).__getitem__ is StreamingDataset.__getitem__:
            return code
        if code.whole is not None:
            raise ConfigError(
                f"{type(self).__name__} overrides __getitem__, which makes one row, and transforms whole batches",
                hint="give the transform without antifreeze.batched, or do not override __getitem__",
                argument="transform",
            )
        return RowCode(Asked(self))

    def _in_epoch(self, epoch: int) -> None:
        self._made.epoch = epoch

    def _num_rows(self, lanes: int, global_batch: int) -> int:  # noqa: ARG002
        return self._size

    def _num_shapes(self) -> int:
        return 1

    def _num_fragments(self) -> int:
        return self._source.manifest.num_fragments

    @property
    def _continues(self) -> bool:
        return False

    def _facts(self) -> dict[str, Any]:
        return {"rows": self._size, "data": self._fingerprint}

    @made_once
    def _fingerprint(self) -> str:
        """A number that changes with the rows; not with where they are stored, so that a run can move."""
        manifest, found = self._source.manifest, hashlib.blake2b(digest_size=8)
        for numbers in (manifest.fragment_rows, manifest.fragment_group, array("q", [f.size for f in manifest.files])):
            found.update(numbers.tobytes())
        selection = self._selection
        found.update(selection.tobytes() if isinstance(selection, np.ndarray) else repr(selection).encode())
        return found.hexdigest()

    def _shapes(self, lanes: int, memory_limit: int | None) -> tuple[RunShape, ...]:
        return (make_run_shape(self._spec, lanes, memory_limit),)

    def _order(self, reading: ReadRequest) -> Order:
        shuffled = (reading.seed, reading.epoch) if reading.shuffle else None
        return make_order(self._source.manifest, self._selection, reading.lanes, reading.shapes[0], shuffled)

    def _blocks(self, reading: ReadRequest, position: int, options: ReadOptions) -> Blocks:
        spec, leaf = self._spec, reading.first_leaf
        if leaf is not None:
            spec = tracked_read_spec(spec, self._source.manifest, leaf)
        return read_blocks(self._order(reading), spec, position, options)

    def _located(self, reading: ReadRequest, sample: int) -> tuple[int, int]:
        """Return the fragment and the row in it that has a number in the epoch."""
        number, lane = divmod(sample, reading.lanes.total)
        alone = reading._replace(lanes=Lanes(reading.lanes.total, lane, reading.lanes.total))
        return locate(self._order(alone), number)

    def _sample_name(self, reading: ReadRequest, sample: int) -> str:
        return self._name(*self._located(reading, sample))

    def _sample(self, reading: ReadRequest, sample: int) -> Block:
        fragment, row = self._located(reading, sample)
        rows = np.array([sum(self._source.manifest.fragment_rows[:fragment]) + row])
        block = self._row_cache.get(rows)
        return block if reading.first_leaf is None else tracked_block(block, reading.first_leaf, rows)

    def _row_position(self, number: int) -> tuple[int, int]:
        """Return the fragment and the row in it that has a number in the source."""
        view = view_of_rows(self._source.manifest.fragment_rows, np.array([number]))
        return view.locate(0, 0)

    def _name(self, fragment: int, row: int) -> str:
        """Return the location of a row of a fragment as text."""
        decoding = self._spec.decoding
        path = decoding.paths[decoding.fragment_file[fragment]]
        return f"{path}, row {decoding.first_rows[fragment] + row} of the file"


def _row_at_hand() -> tuple[StreamingDataset | None, int, Callable[[], Any]]:
    found: tuple[StreamingDataset | None, int, Callable[[], Any]] = getattr(_at_hand, "row", (None, -1, dict))
    return found


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
