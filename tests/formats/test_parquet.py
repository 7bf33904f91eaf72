"""Parquet keeps the promises of a format, and verifies checksums where a file has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from antifreeze.core import CorruptFile, Format, ManifestError, ReadLimits
from antifreeze.formats import Parquet
from antifreeze.testing import FormatSuite

LIMITS = ReadLimits.of(256 << 20)


class TestParquet(FormatSuite):
    """The suite that every format must pass."""

    def format(self) -> Format:
        return Parquet()

    def write(self, path: Path, table: Any, group_rows: int) -> None:
        pq.write_table(table, path, row_group_size=group_rows)


def test_a_flipped_bit_is_noticed_where_the_file_has_checksums(tmp_path: Path) -> None:
    """Without this check, a flipped bit is a wrong number in a batch, and nobody ever knows."""
    path = tmp_path / "a.parquet"
    numbers = pa.table({"n": list(range(1000))})
    pq.write_table(numbers, path, compression="none", use_dictionary=False, write_page_checksum=True)
    content = bytearray(path.read_bytes())
    content[content.index((500).to_bytes(8, "little"))] ^= 1
    path.write_bytes(bytes(content))

    with pytest.raises(CorruptFile, match=r"a\.parquet, row group 0: the rows from 0 on cannot be decoded.*CRC"):
        list(Parquet().open(str(path), 0, ["n"], 1000, LIMITS).pieces())


def test_a_row_group_that_is_not_there_is_named(tmp_path: Path) -> None:
    """Such as one of a file that was replaced by a smaller one."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": [1]}), path)

    with pytest.raises(ManifestError, match=r"row group 3 of .*, which has 1 row groups"):
        Parquet().open(str(path), 3, ["n"], 10, LIMITS)
