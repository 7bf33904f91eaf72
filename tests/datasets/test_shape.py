"""How much of a dataset is open and shuffled at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import antifreeze as af
from antifreeze.datasets import make_run_shape


@pytest.mark.parametrize(
    ("value_nbytes", "streams"),
    [(100, 16), (4_000, 16), (13_000, 5), (100_000, 4)],
    ids=["words", "pages of 4 MB", "images", "large images"],
)
def test_large_pages_of_texts_and_images_leave_fewer_row_groups_open(
    tmp_path: Path, value_nbytes: int, streams: int
) -> None:
    """An open row group holds a page, of 1,024 rows if Arrow has written it. The order is the same on every machine."""
    values = [b"x" * value_nbytes] * 1_200
    pq.write_table(pa.table({"image": values}), tmp_path / "a.parquet", use_dictionary=False, row_group_size=1_200)
    dataset: Any = af.StreamingDataset(tmp_path)
    dataset.row_source.look(30.0)

    assert make_run_shape(dataset.row_source.spec, 1, None).streams == streams
    limited = make_run_shape(dataset.row_source.spec, 1, 256 << 20).streams
    assert 1 <= limited <= 16
    assert limited * min(1_024, len(values)) * value_nbytes <= 128 << 20
