"""A stream of fragments: the same rows, in whatever parts and whatever order they are asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antifreeze import CorruptFile, StreamingDataset
from antifreeze.decode import Decoding, StreamReader, ThreadProgress

GROUP_ROWS, NUM_GROUPS = 100, 3


@pytest.fixture(scope="module")
def decoding(tmp_path_factory: pytest.TempPathFactory) -> Decoding:
    """Three row groups whose values follow from their place, decoded seven rows at a time."""
    path = tmp_path_factory.mktemp("stream")
    numbers = np.arange(GROUP_ROWS * NUM_GROUPS)
    table = pa.table({"n": numbers, "text": [f"text {n}".encode() * (n % 5) for n in numbers]})
    pq.write_table(table, path / "a.parquet", row_group_size=GROUP_ROWS)
    return decoding_of(path)


def decoding_of(path: Path) -> Decoding:
    from dataclasses import replace

    dataset: Any = StreamingDataset(path, format="numpy")
    dataset.row_source.look(30.0)
    made: Decoding = replace(dataset.row_source.spec.decoding, piece_rows=7)
    return made


def numbers_of(blocks: Any) -> list[int]:
    """Return the numbers of the rows, after a look at their texts."""
    found: list[int] = []
    for block in blocks:
        numbers = block.columns["n"].tolist()
        assert block.columns["text"].tolist() == [f"text {n}".encode() * (n % 5) for n in numbers]
        found += numbers
    return found


reads = st.lists(st.tuples(st.integers(0, NUM_GROUPS - 1), st.integers(0, GROUP_ROWS), st.integers(0, 40)))


@given(reads)
def test_rows_are_the_same_whatever_was_read_before(decoding: Decoding, reads: list[tuple[int, int, int]]) -> None:
    """Going on, going back, another fragment."""
    reader, note = StreamReader(decoding), ThreadProgress("test")
    for fragment, start, count in reads:
        rows = range(start, min(start + count, GROUP_ROWS))
        assert numbers_of(reader.read(fragment, rows, note)) == [fragment * GROUP_ROWS + row for row in rows]
    reader.close()


@given(st.integers(1, 40))
def test_a_fragment_can_be_read_to_its_end_in_parts(decoding: Decoding, step: int) -> None:
    """As a shuffled epoch does, a part in each round."""
    reader, note = StreamReader(decoding), ThreadProgress("test")
    found: list[int] = []
    for start in range(0, GROUP_ROWS, step):
        found += numbers_of(reader.read(1, range(start, min(start + step, GROUP_ROWS)), note))
    reader.close()

    assert found == list(range(GROUP_ROWS, 2 * GROUP_ROWS))


def test_damage_is_raised_when_its_turn_comes(tmp_path: Path) -> None:
    """Rows before it are delivered first, unless a page header is damaged: they are checked first."""
    values = [np.random.default_rng(n).bytes(2000) for n in range(400)]
    pq.write_table(
        pa.table({"n": range(400), "v": values}),
        tmp_path / "a.parquet",
        data_page_size=20_000,
        write_batch_size=10,
        use_dictionary=False,
    )
    raw = bytearray((tmp_path / "a.parquet").read_bytes())
    decoding = decoding_of(tmp_path)
    stat = (tmp_path / "a.parquet").stat()
    middle = raw.find(values[200])
    raw[middle - 4 : middle + 8] = b"\xff" * 12  # the length of a value
    (tmp_path / "a.parquet").write_bytes(raw)
    import os

    os.utime(tmp_path / "a.parquet", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    reader, note = StreamReader(decoding), ThreadProgress("test")

    first = [n for block in reader.read(0, range(150), note) for n in block.columns["n"].tolist()]

    assert first == list(range(150))
    with pytest.raises(CorruptFile):
        for _ in reader.read(0, range(150, 400), note):
            pass
    reader.close()
