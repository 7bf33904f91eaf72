"""A Parquet decode written by hand by someone who knows pyarrow: what the expert's loaders below share.

- Slices of about 4 MB (1,024 rows of the seed data): faster and smaller than whole row groups.
- Zero-copy: Arrow buffer -> NumPy -> torch, lists as one array [rows, length].
- Shuffled: files in random order, and rows scattered over a window of 16 slices while they are decoded, so
  shuffling costs one copy. Tried: indexing a decoded row group of 50,000 rows, 1.5 to 2.3 times the CPU per row.
- `bundles` yields many batches at once; a loader can hand over a bundle and cut it in the consumer.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

Batch = dict[str, Any]
Unit = tuple[str, tuple[int, ...] | None]

SLICE_NBYTES = 4 << 20
WINDOW_SLICES = 16

# Arrow's buffers are read-only; torch warns once for each process when it wraps one. Nobody writes here.
warnings.filterwarnings("ignore", message="The given NumPy array is not writable")


def units(data_dir: Path, lanes: int = 2) -> list[Unit]:
    """What two workers can share: files; of a single file, its row groups."""
    files = sorted(str(path) for path in data_dir.glob("*.parquet"))
    if len(files) >= lanes:
        return [(file, None) for file in files]
    return [(file, (group,)) for file in files for group in range(pq.ParquetFile(file).num_row_groups)]


def slice_rows(unit: Unit, batch_size: int) -> int:
    """Rows of one slice: whole batches, about `SLICE_NBYTES`."""
    metadata = pq.ParquetFile(unit[0]).metadata
    # The schema does not know how long the lists are; the values of the first row group do.
    group = metadata.row_group(0)
    values = sum(group.column(number).num_values for number in range(metadata.num_columns))
    row_nbytes = 4 * values / max(1, group.num_rows)
    rows = int(min(65_536, SLICE_NBYTES // max(1, row_nbytes)))
    return max(1, round(rows / batch_size)) * batch_size


def arrays(batch: pa.RecordBatch) -> dict[str, Any]:
    """Columns as NumPy without a copy; strings as a list."""
    result: dict[str, Any] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if pa.types.is_list(column.type) or pa.types.is_fixed_size_list(column.type):
            result[name] = column.flatten().to_numpy().reshape(len(column), -1)
        elif pa.types.is_string(column.type):
            result[name] = column.to_pylist()
        else:
            result[name] = column.to_numpy()
    return result


def tensors(columns: dict[str, Any]) -> Batch:
    """The same columns as torch tensors, sharing memory."""
    return {
        name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value for name, value in columns.items()
    }


def cut(columns: Batch, batch_size: int) -> list[Batch]:
    """Cut a bundle into batches: views, no copy. `split` is one call where slicing is one for each batch."""
    length = len(next(iter(columns.values())))
    if length <= batch_size:
        return [columns]
    parts: dict[str, Any] = {}
    for name, value in columns.items():
        if isinstance(value, torch.Tensor):
            parts[name] = value.split(batch_size)
        else:
            parts[name] = [value[start : start + batch_size] for start in range(0, length, batch_size)]
    return [dict(zip(parts, values, strict=True)) for values in zip(*parts.values(), strict=True)]


def read_slices(share: list[Unit], rows: int) -> Iterator[dict[str, Any]]:
    """Decode the share slice by slice."""
    for file, groups in share:
        for batch in pq.ParquetFile(file).iter_batches(rows, row_groups=groups, use_threads=False):
            yield arrays(batch)


def scatter(slices: Iterable[dict[str, Any]], rows: int, generator: np.random.Generator) -> Iterator[dict[str, Any]]:
    """Shuffle rows over a window of `WINDOW_SLICES` slices; yields slices of the window."""
    size = rows * WINDOW_SLICES
    window: dict[str, Any] = {}
    order, filled = generator.permutation(size), 0

    def ready() -> Iterator[dict[str, Any]]:
        # A window that was not filled (the last one) has holes: keep only the places taken, in their order.
        if filled < size:
            places = np.sort(order[:filled])
            for name, value in window.items():
                window[name] = [value[place] for place in places] if isinstance(value, list) else value[places]
        for start in range(0, filled, rows):
            yield {name: value[start : start + rows] for name, value in window.items()}

    for part in slices:
        length = len(next(iter(part.values())))
        if filled + length > size:
            yield from ready()
            window, order, filled = {}, generator.permutation(size), 0
        if not window:
            for name, value in part.items():
                if isinstance(value, list):
                    window[name] = [None] * size
                else:
                    window[name] = np.empty((size, *value.shape[1:]), value.dtype)
        places = order[filled : filled + length]
        for name, value in part.items():
            if isinstance(value, list):
                target = window[name]
                for place, item in zip(places.tolist(), value, strict=True):
                    target[place] = item
            else:
                window[name][places] = value
        filled += length
    if filled:
        yield from ready()


def bundles(share: list[Unit], batch_size: int, shuffle: bool, seed: int = 0) -> Iterator[Batch]:
    """Tensors of about `SLICE_NBYTES`, each a whole number of batches (but for the last of a file)."""
    if not share:
        return
    rows = slice_rows(share[0], batch_size)
    generator = np.random.default_rng(seed)
    if not shuffle:
        yield from map(tensors, read_slices(share, rows))
        return
    shuffled = [share[place] for place in generator.permutation(len(share))]
    yield from map(tensors, scatter(read_slices(shuffled, rows), rows, generator))
