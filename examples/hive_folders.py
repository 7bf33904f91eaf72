# /// script
# requires-python = ">=3.11"
# dependencies = ["antifreeze[torch]"]
# ///
"""Folders named key=value become columns: lang=en/year=2023/part-0.parquet."""

from __future__ import annotations

import argparse
import collections
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import antifreeze as af


def make_dataset(folder: Path, rows: int) -> None:
    for lang in ("de", "en"):
        for year in (2023, 2024):
            place = folder / f"lang={lang}" / f"year={year}"
            place.mkdir(parents=True)
            pq.write_table(pa.table({"x": np.arange(rows)}), place / "part-0.parquet")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000, help="rows in each of four files")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make_dataset(Path(folder), options.rows)

        dataset = af.StreamingDataset(folder, hive=True, shuffle=True)
        print("columns:", ", ".join(dataset.columns))
        loader = af.StreamingDataLoader(dataset, batch_size=100, num_workers=2)
        counts: collections.Counter[tuple[str, int]] = collections.Counter()
        for batch in loader:  # "x" and "year" are int64 tensors, "lang" is a list of str
            counts.update(zip(batch["lang"], batch["year"].tolist(), strict=True))
        for (lang, year), count in sorted(counts.items()):
            print(f"lang={lang} year={year}: {count:,} rows")

        # A glob takes some of the folders only.
        english = af.StreamingDataset(f"{folder}/lang=en/**/*.parquet", hive=True)
        print(f"English: {len(english):,} rows, the first is {english[0]}")
    assert set(counts.values()) == {options.rows}


if __name__ == "__main__":
    main()
