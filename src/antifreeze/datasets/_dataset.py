"""The dataset: rows of Parquet files, by number, in order, or shuffled; and parts of it by chance."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import numpy as np

from antifreeze.core import ConfigError
from antifreeze.core import arguments as check
from antifreeze.core.arguments import SUBSET_HINT
from antifreeze.datasets._delivery import check_format, make_delivery
from antifreeze.datasets._file_rows import FileRows
from antifreeze.datasets._read_spec import Projection, chosen_columns, expected_leaves
from antifreeze.datasets._row_source import RowDataset
from antifreeze.datasets._source import InputDir, open_source
from antifreeze.datasets._transforms import Moment, make_transform
from antifreeze.datasets._user_code import Asked, UserCode, error_of, inline_context, row_at_hand, row_batch
from antifreeze.plan import Int64Array, RandomStream, permutation, some_rows

_LOADERS = "give it to StreamingDataLoader"
_INSTEAD = {
    "batch_size": _LOADERS,
    "num_workers": _LOADERS,
    "collate_fn": _LOADERS,
    "filters": SUBSET_HINT,
    "split": "name the files of the split, for example by a glob",
    "streaming": "leave it out: rows are always read as they are needed",
}


@dataclass(frozen=True, slots=True)
class ParquetLoader:
    """The item loader of litData, accepted so that code can be migrated by changing its imports.

    Rows are always decoded in small pieces, which is both the fastest way and the one that needs the least memory.
    """

    pre_load_chunk: bool = False
    """No effect."""
    low_memory: bool = True
    """No effect."""
    columns: Sequence[str] | None = None
    """Columns to read, unless the dataset has an argument ``columns``."""


class StreamingDataset(RowDataset):
    """Rows of Parquet files.

    Opening a dataset lists the files and reads their footers, or the manifest if there is one; no row is read. Give it
    to ``StreamingDataLoader`` for batches, or read single rows with ``dataset[i]``.

    A subclass may override ``transform`` or ``__getitem__``: a loader delivers what they return, and runs them where it
    runs a transform. ``super().__getitem__(index)`` returns the row as this class would, and costs nothing for the row
    that the loader requests.

    Args:
        input_dir: A directory (searched recursively), a glob, a file, or a list of these.
        cache_dir: Accepted for code written for litData; no effect: local files are read in place.
        item_loader: A ``ParquetLoader``; only its ``columns`` are used.
        shuffle: True if iteration, and a loader without a ``shuffle`` argument, shuffle the rows.
        drop_last: True if a loader without a ``drop_last`` argument drops an incomplete last batch.
        seed: Determines the order, together with the epoch.
        serializers: Accepted for code written for litData; must be empty.
        max_cache_size: Accepted for code written for litData; no effect.
        subsample: Fraction of the rows, chosen at random with ``seed``; above 1, rows are repeated.
        encryption: Accepted for code written for litData; must be empty.
        storage_options: Accepted for code written for litData; no effect.
        session_options: Accepted for code written for litData; no effect.
        max_pre_download: Accepted for code written for litData; no effect.
        index_path: Where the manifest is, if not in the directory.
        force_override_state_dict: True if a loader resumes from a state that does not match, with a warning, as
            ``load_state_dict(state, strict=False)`` does.
        transform: Function of one row (a dict), or of a whole batch if marked with ``antifreeze.batched``; or a list of
            functions that are applied in turn.
        num_canonical_nodes: Accepted for code written for litData; no effect: a run resumes on any number of ranks.
        batch_decode: Accepted for code written for litData; no effect.
        item_shuffle_window: Accepted for code written for litData; no effect.
        window_direct_io: Accepted for code written for litData; must be False.
        columns: Columns to read; by default all. Others are not decoded, and files may differ in them.
        format: ``"torch"``, ``"numpy"`` or ``"arrow"``; the last two do not need torch.
        fill_null: Value for nulls, or a dict with one for each column. Without it, a null is an error.
        pad: Value that ragged lists are padded with, or a dict with one for each column. Without it, a ragged column is
            a list with one tensor for each row.
        ragged: List columns to treat as ragged although all their rows seem to have one length.
        subset: Rows to select, as in the method of that name; by default all.
        hive: True if ``key=value`` folders are columns.

    Raises:
        ConfigError: If an argument has a wrong value.
        SourceNotFound: If there is no such directory or file, or nothing in it matches.
        UnknownColumn: If ``columns``, ``pad``, ``fill_null`` or ``ragged`` names a column that the data does not have.
        SchemaMismatch: If files differ in columns that are read.
        SourceChanged: If the files are not those of the manifest.
        ManifestError: If the manifest is damaged or of another version.
        CorruptFile: If a footer cannot be decoded.

    Example:
        ```python
        import antifreeze as af

        dataset = af.StreamingDataset("data/train", columns=["ids", "labels"], shuffle=True)
        print(len(dataset), dataset[0]["ids"].shape)
        ```
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
        super().__init__(
            shuffle=shuffle,
            seed=seed,
            drop_last=False if drop_last is None else drop_last,
            force_override_state_dict=force_override_state_dict,
            transform=transform,
        )
        check_format(format)
        if item_loader is not None and not isinstance(item_loader, ParquetLoader):
            raise ConfigError(
                f"item_loader is a {type(item_loader).__name__}; only antifreeze.ParquetLoader is known",
                hint="leave item_loader out",
                argument="item_loader",
            )
        if columns is None and item_loader is not None:
            columns = item_loader.columns
        source = open_source(input_dir, hive=check.flag("hive", hive), index_path=index_path, columns=columns)
        columns = chosen_columns(source, columns)
        for name in ragged:
            chosen_columns(source, [name])
        wanted = Projection(columns=columns, format=format, fill_null=fill_null, ragged=tuple(ragged))
        make_delivery(format, expected_leaves(source, wanted), pad)  # raises now what is wrong with pad
        rows = FileRows(source, wanted, pad)
        if subset is not None:
            rows = rows.select(subset)
        some = some_rows(len(rows), check.amount("subsample", subsample), self.seed)
        self._rows = rows if some is None else rows.select(some)

    # -- what it is ------------------------------------------------------------------------------------------------

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of a row, in order."""
        return self._rows.projection.columns

    @property
    def format(self) -> str:
        """``"torch"``, ``"numpy"`` or ``"arrow"``."""
        return self._rows.projection.format

    def __repr__(self) -> str:
        source = self._rows.source
        files, groups = len(source.paths), source.manifest.num_fragments
        where = source.paths[0] if files == 1 else source.root
        counts = ", ".join(
            _counted(n, noun) for n, noun in ((len(self._rows), "row"), (files, "file"), (groups, "row group"))
        )
        return f"{type(self).__name__}({where!r}, {counts}, columns {', '.join(self.columns)})"

    # -- rows by number --------------------------------------------------------------------------------------------

    def __getitem__(self, index: int | slice) -> Any:
        """Return one row as a dict, or a list of rows for a slice.

        Args:
            index: Row number from ``-len(dataset)`` to ``len(dataset) - 1``, or a slice.

        Returns:
            The row after the transform, or a list of such rows.

        Raises:
            IndexError: If there is no such row.
            UserCodeError: If the transform raised.
        """
        size = len(self._rows)
        if isinstance(index, slice):
            return self._get(np.arange(size)[index])
        i = check.integer("index", index)
        if not -size <= i < size:
            raise IndexError(f"row {i} of a dataset of {size} rows")
        make = row_at_hand(self, i)
        if make is not None:
            transform, row = make_transform(self.transform), make()
            return row if transform is None else transform(row)
        return self._get(np.array([i % size]))[0]

    def _get(self, numbers: Int64Array) -> list[Any]:
        """Return rows by their numbers in this dataset, each through the transform."""
        from antifreeze.worker import UserError

        if not len(numbers):
            return []
        block, moment = self._rows.take(numbers), Moment(self.seed, self._rows.epoch, int(numbers[0]))
        given = row_batch(self._rows.delivery, block, 0, block.num_rows, moment)
        try:
            return self._transform_code().rows(given, inline_context())
        except UserError as caught:
            number = int(numbers[max(caught.position, 0)])
            place = f"row {number} of the dataset: {self._rows.name_of(number)}"
            raise error_of(caught, place, 0) from caught.error

    # -- parts of it -----------------------------------------------------------------------------------------------

    def subset(self, rows: slice | range | Sequence[int] | Int64Array) -> Self:
        """Return a dataset with some of the rows.

        The result is of the same class, and shares all attributes that a subclass may have.

        Args:
            rows: A slice, a range, row numbers in any order (a number that occurs twice selects the row twice), or a
                mask with one bool for each row.

        Returns:
            A dataset that reads the same files.

        Raises:
            ConfigError: If ``rows`` are not integers.
            IndexError: If there is no such row.

        Example:
            ```python
            import antifreeze as af

            dataset = af.StreamingDataset("data/train")
            train, valid = dataset.subset(slice(0, 1500)), dataset.subset(slice(1500, None))
            ```
        """
        selected = self._rows.select(rows)
        part = object.__new__(type(self))
        # Of object: a subclass may leave out in its own what cannot be pickled.
        state = object.__getstate__(self)
        attributes, slots = state if isinstance(state, tuple) else (state, {})
        for name, value in {**attributes, **slots}.items():
            object.__setattr__(part, name, value)
        part._rows = selected
        return part

    # -- what a loader needs ---------------------------------------------------------------------------------------

    @property
    def row_source(self) -> FileRows:
        return self._rows

    def row_code(self, first_leaf: int = 0) -> UserCode:  # noqa: ARG002
        code = self._transform_code()
        if type(self).__getitem__ is StreamingDataset.__getitem__:
            return code
        if code.whole is not None:
            raise ConfigError(
                f"{type(self).__name__} overrides __getitem__, which makes one row, and transforms whole batches",
                hint="give the transform without antifreeze.batched, or do not override __getitem__",
                argument="transform",
            )
        return UserCode(Asked(self))

    def _transform_code(self) -> UserCode:
        return UserCode().then(make_transform(self.transform, self), type(self).__name__)


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


# -- parts by chance: for testing, or because all of it is too much --------------------------------------------------

Dataset = TypeVar("Dataset", bound=StreamingDataset)


@check.explained("train_test_split", renamed={"streaming_dataset": "dataset"})
def train_test_split(dataset: Dataset, splits: Sequence[float], seed: int = 42, shuffle: bool = True) -> list[Dataset]:
    """Split a dataset into datasets that share no row.

    Args:
        dataset: The dataset to split.
        splits: One fraction for each part, such as ``[0.9, 0.1]``; together at most 1.
        seed: Determines the random choice.
        shuffle: True to choose rows at random, which takes 8 bytes of memory for each row; False to give the first rows
            to the first part.

    Returns:
        One dataset for each fraction, of the same class.

    Raises:
        ConfigError: If ``dataset`` is not a ``StreamingDataset``, or ``splits`` are not such fractions.

    Example:
        ```python
        import antifreeze as af

        train, valid = af.train_test_split(af.StreamingDataset("data/train"), splits=[0.9, 0.1])
        ```
    """
    _check_dataset(dataset)
    fractions = _fractions(splits)
    ends = np.floor(np.cumsum([0.0, *fractions]) * len(dataset) + 1e-6).astype(int).tolist()
    if abs(sum(fractions) - 1) < 1e-9:
        ends[-1] = len(dataset)
    bounds = list(itertools.pairwise(ends))
    if not check.flag("shuffle", shuffle):
        return [dataset.subset(range(start, stop)) for start, stop in bounds]
    order = permutation(len(dataset), seed=check.integer("seed", seed), epoch=0, use=RandomStream.SPLIT)
    # In the order of the files, so that they are read from front to back; a loader can still shuffle them.
    return [dataset.subset(np.sort(order[start:stop])) for start, stop in bounds]


@check.explained("subsample")
def subsample(dataset: Dataset, amount: float, seed: int = 42) -> Dataset:
    """Return a dataset with some of the rows, chosen at random.

    Args:
        dataset: The dataset to choose from.
        amount: Fraction of the rows, such as 0.1; above 1, rows are repeated: 2.5 selects each row twice, and half of
            them once more.
        seed: Determines the random choice.

    Returns:
        A dataset of the same class.

    Raises:
        ConfigError: If ``dataset`` is not a ``StreamingDataset``, or ``amount`` is not a number >= 0.

    Example:
        ```python
        import antifreeze as af

        tenth = af.subsample(af.StreamingDataset("data/train"), 0.1)
        ```
    """
    _check_dataset(dataset)
    rows = some_rows(len(dataset), check.amount("amount", amount), check.integer("seed", seed))
    return dataset if rows is None else dataset.subset(rows)


def _check_dataset(dataset: object) -> None:
    if not isinstance(dataset, StreamingDataset):
        raise ConfigError(
            f"dataset is a {type(dataset).__name__}: expected a StreamingDataset",
            hint="take parts of each dataset before you put them together",
            argument="dataset",
        )


def _fractions(splits: object) -> list[float]:
    try:
        found = [float(s) for s in splits]  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        found = []
    if not found or not all(0 <= fraction <= 1 for fraction in found) or sum(found) > 1 + 1e-9:
        raise ConfigError(
            f"splits={splits!r:.200} are not fractions that add up to 1 at most",
            hint="such as splits=[0.9, 0.1]",
            argument="splits",
        )
    return found
