# /// script
# requires-python = ">=3.11"
# dependencies = ["antifreeze[torch]"]
# ///
"""Texts of different lengths: as a list of tensors, or padded to one tensor."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import antifreeze as af

WORDS = ["a", "file", "holds", "rows", "of", "words", "and", "each", "row", "has", "its", "own", "length"]
PAD = -1


def make_dataset(folder: Path, rows: int) -> None:
    rng = np.random.default_rng(0)
    ids = [rng.integers(0, len(WORDS), size=rng.integers(1, 12)).astype(np.int32) for _ in range(rows)]
    texts = [" ".join(WORDS[i] for i in row) for row in ids]
    pq.write_table(pa.table({"ids": ids, "text": texts}), folder / "texts.parquet")


def words_of(ids: list[int]) -> str:
    return " ".join(WORDS[i] for i in ids)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make_dataset(Path(folder), options.rows)

        # Without pad=, a ragged column is a list with one tensor for each row.
        dataset = af.StreamingDataset(folder)
        batch = next(iter(af.StreamingDataLoader(dataset, batch_size=4)))
        print("lengths of four rows:", [len(ids) for ids in batch["ids"]])

        # With pad=, it is one tensor, as wide as the longest row of this batch.
        dataset = af.StreamingDataset(folder, pad={"ids": PAD}, shuffle=True)
        tokens = places = 0
        for batch in af.StreamingDataLoader(dataset, batch_size=32, num_workers=2):
            mask = batch["ids"] != PAD
            tokens, places = tokens + int(mask.sum()), places + mask.numel()
            for ids, keep, text in zip(batch["ids"], mask, batch["text"], strict=True):
                assert words_of(ids[keep].tolist()) == text
        print(f"padded: {len(dataset):,} texts, {tokens:,} tokens in {places:,} places; all spell their text")
        print("last batch:", tuple(batch["ids"].shape), batch["ids"].dtype)


if __name__ == "__main__":
    main()
