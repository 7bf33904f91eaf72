"""Which row of which dataset a row is, as a column that goes with it through shuffling and mixing.

Only user code that must know asks for it: a class that overrides ``__getitem__``, or datasets that are mixed and make
their rows in different ways. A dataset that is made of others numbers its leaves, the datasets in it, from left to
right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from antifreeze.core import Manifest
from antifreeze.datasets._read_spec import ReadSpec
from antifreeze.decode import Arrays, ArrowRows, Decoded
from antifreeze.formats import PieceLocation
from antifreeze.plan import Int64Array

TRACKS = "\0tracks"
"""The name of the column. No writer of Parquet puts a zero byte in one."""
_ROW_BITS = 48  # no file claims more rows than this, see ``formats``


def leaf_and_row(track: int) -> tuple[int, int]:
    """Return which leaf a track is of, and the number of the row in that leaf's source."""
    return track >> _ROW_BITS, track & (1 << _ROW_BITS) - 1


def tracked_block(block: Any, leaf: int, rows: Int64Array) -> Any:
    """Return a block with the tracks of its rows, whose numbers in the source are given."""
    tracks = (leaf << _ROW_BITS) + rows.astype(np.int64)
    if isinstance(block, ArrowRows):
        return ArrowRows(block.table.append_column(TRACKS, pa.array(tracks)))
    return Arrays({**block.columns, TRACKS: tracks}, block.num_rows, block.nbytes + tracks.nbytes)


def tracked_read_spec(spec: ReadSpec, manifest: Manifest, leaf: int) -> ReadSpec:
    """Return a read spec whose blocks have tracks."""
    to_block, first_rows = spec.decoding.to_block, _first_rows_of_files(manifest)

    def to_tracked(batch: Any, file: int, where: PieceLocation) -> Decoded:
        first, number = first_rows[file] + where.file_row, batch.num_rows
        found: Decoded = tracked_block(to_block(batch, file, where), leaf, np.arange(first, first + number))
        return found

    return replace(spec, decoding=replace(spec.decoding, to_block=to_tracked))


def _first_rows_of_files(manifest: Manifest) -> Sequence[int]:
    rows = np.bincount(manifest.fragment_file, weights=manifest.fragment_rows, minlength=len(manifest.files))
    found: list[int] = (np.cumsum(rows) - rows).astype(np.int64).tolist()
    return found
