"""Makes the benchmark's Parquet data once and keeps it.

Workload A, the seed data: 8 files of 50,000 rows (1,024 token ids, a label, a score, a tag), one row group per
file, snappy and dictionary as `pq.write_table` writes by default. Workload B: 5,000,000 rows of two numbers.

    python benchmarks/data.py                      # both workloads, Parquet only
    python benchmarks/data.py --formats mds lance  # also converted for peers that need their own format
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

HERE = Path(__file__).resolve().parent
DEFAULT_ROOT = HERE / "data"
NUM_FILES = 8
ROWS_PER_FILE = 50_000
ROWS_B = 5_000_000
IDS_PER_ROW = 1024
VOCABULARY = 32_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Where the data of one size lies. Nothing is made before `folder` asks for it."""

    root: Path = DEFAULT_ROOT
    rows_per_file: int = ROWS_PER_FILE

    @property
    def rows_b(self) -> int:
        """Rows of workload B: scaled like the files of workload A."""
        return ROWS_B * self.rows_per_file // ROWS_PER_FILE

    def rows(self, workload: str) -> int:
        """All rows of the workload's Parquet files."""
        return NUM_FILES * self.rows_per_file if workload == "A" else self.rows_b

    def folder(self, workload: str, form: str = "parquet") -> Path:
        """The folder that holds the workload in that format, made if it is not there yet."""
        target = self.root / f"{workload}-{self.rows(workload)}-{form}"
        if target.exists():
            return target
        # Made beside and renamed at the end: a folder with the right name is always complete.
        partial = target.with_name(target.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        began_s = time.perf_counter()
        if form != "parquet":
            import convert

            what = convert.convert(self.folder(workload), partial, form)
        elif workload == "A":
            what = write_seed(partial, self.rows_per_file)
        else:
            what = write_two_numbers(partial, self.rows_b)
        partial.rename(target)
        print(f"made {target.name}: {what}, {time.perf_counter() - began_s:.1f} s", file=sys.stderr, flush=True)
        return target


def write_seed(folder: Path, rows_per_file: int) -> str:
    """Workload A."""
    generator = np.random.default_rng(0)
    for number in range(NUM_FILES):
        ids = generator.integers(0, VOCABULARY, size=rows_per_file * IDS_PER_ROW, dtype=np.int32)
        # Arrow lists are offsets into one flat array; a list of Python lists would take minutes and gigabytes.
        offsets = np.arange(0, len(ids) + 1, IDS_PER_ROW, dtype=np.int32)
        table = pa.table(
            {
                "ids": pa.ListArray.from_arrays(offsets, pa.array(ids)),
                "labels": generator.integers(0, 2, size=rows_per_file, dtype=np.int64),
                "score": generator.random(rows_per_file, dtype=np.float32),
                "tag": [f"tag_{row}" for row in range(rows_per_file)],
            }
        )
        pq.write_table(table, folder / f"part-{number}.parquet")
    return f"{NUM_FILES} files of {rows_per_file:,} rows"


def write_two_numbers(folder: Path, rows: int) -> str:
    """Workload B."""
    generator = np.random.default_rng(0)
    x = generator.random(rows, dtype=np.float32)
    y = generator.integers(0, 1000, rows, dtype=np.int64)
    pq.write_table(pa.table({"x": x, "y": y}), folder / "part-0.parquet")
    return f"{rows:,} rows of two numbers"


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that every command of the benchmark has for its data."""
    parser.add_argument("--data", type=Path, default=DEFAULT_ROOT, help="folder of the data (made once)")
    parser.add_argument("--rows-per-file", type=int, default=ROWS_PER_FILE, help="rows per file of workload A")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--workload", default="A,B")
    parser.add_argument("--formats", nargs="*", default=["parquet"])
    options = parser.parse_args()
    data = Data(root=options.data, rows_per_file=options.rows_per_file)
    for workload in options.workload.split(","):
        for form in options.formats:
            print(data.folder(workload, form))


if __name__ == "__main__":
    main()
