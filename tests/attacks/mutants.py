"""Reads damaged copies of Parquet files and says for each what came of it: run as a program, one JSON line a mutant.

python mutants.py FOLDER SEED FIRST COUNT THREADS

A crash of the interpreter ends the program, so it runs in a process of its own, and says which mutant is next.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import antifreeze as af

NUM_ROWS = 300


def table(kind: str) -> pa.Table:
    """Return the rows of a base file."""
    rng = np.random.default_rng(7)
    n = np.arange(NUM_ROWS)
    texts = [f"text {i % 17} " * (i % 5) for i in range(NUM_ROWS)]
    if kind == "lists":
        return pa.table({"n": n, "ids": [list(range(i % 7)) for i in range(NUM_ROWS)], "fixed": [[i, -i] for i in n]})
    if kind == "nested":
        structs = [{"a": i, "b": {"c": texts[i], "d": [i] * (i % 3)}} for i in range(NUM_ROWS)]
        return pa.table({"n": n, "s": structs})
    if kind == "wide":
        return pa.table({f"column_{i}": rng.integers(0, 1000, NUM_ROWS) for i in range(60)})
    return pa.table({"n": n, "x": rng.random(NUM_ROWS), "text": texts, "flag": n % 3 == 0})


WRITERS: dict[str, tuple[str, dict[str, Any]]] = {
    "flat": ("flat", {"use_dictionary": False, "compression": "none"}),
    "lists": ("lists", {"compression": "snappy"}),
    "dictionary": ("flat", {"use_dictionary": True, "compression": "zstd"}),
    "nested": ("nested", {"compression": "gzip"}),
    "page_index": ("flat", {"write_page_index": True}),
    "v2_pages": ("lists", {"data_page_version": "2.0", "compression": "zstd"}),
    "checksums": ("lists", {"write_page_checksum": True}),
    "wide": ("wide", {}),
    "many_groups": ("flat", {"row_group_size": 7}),
    "many_pages": ("lists", {"data_page_size": 200, "write_batch_size": 10, "row_group_size": 100}),
}


def write_bases(folder: Path) -> None:
    """Write all base files."""
    for name, (kind, options) in WRITERS.items():
        pq.write_table(table(kind), folder / f"{name}.parquet", **options)


def mutated(data: bytes, chance: random.Random) -> tuple[bytes, bool]:
    """Return a damaged copy, and whether values were hit: half of the damage is in the footer, where it does most."""
    out, hits_values = bytearray(data), False
    footer = len(data) - int.from_bytes(data[-8:-4], "little") - 8
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        at = chance.randrange(footer, len(out)) if chance.random() < 0.5 else chance.randrange(len(out))
        hits_values |= at < footer
        kind = chance.randrange(7)
        if kind == 0:
            out[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            out[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
        elif kind == 2:
            out[at] = chance.randrange(256)
        elif kind == 3:
            size = chance.randrange(1, 9)
            out[at : at + size] = chance.randbytes(size)
        elif kind == 4:
            source, size = chance.randrange(len(out)), chance.randrange(1, 65)
            out[at : at + size] = out[source : source + size]
        elif kind == 5:
            out[at : at + chance.randrange(1, 5)] = b""
        else:
            out[at:at] = chance.randbytes(chance.randrange(1, 5))
    return bytes(out), hits_values


def same(batch: Any) -> Any:
    """User code, so that rows go through worker processes."""
    return batch


def rows_of(path: Path, threads: int, **options: Any) -> list[Any]:
    """Return all rows that a loader delivers. A negative number of threads is one of worker processes."""
    if threads < 0:
        options["transform"], threads = af.batched(same), -threads
    dataset = af.StreamingDataset(path, format="numpy", fill_null=0, **options)
    loader = af.StreamingDataLoader(dataset, batch_size=64, num_workers=threads, timeout=60, memory_limit="64MB")
    return [plain(batch) for batch in loader]


def plain(value: Any) -> Any:
    """Return something that can be compared."""
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist()) if value.dtype.hasobject else (str(value.dtype), value.shape, value.tobytes())
    return [plain(part) for part in value] if isinstance(value, (list, tuple)) else value


def outcome(read: Callable[[], Any], expected: Any, path: Path) -> dict[str, Any]:
    """Return what came of reading a file: the same rows, other rows, a typed error, or something worse."""
    try:
        found = read()
    except af.AntifreezeError as error:
        names_it = str(path) in str(error) or getattr(error, "file", None) == str(path)
        return {"kind": "typed" if names_it else "unnamed", "error": type(error).__name__, "text": str(error)[:300]}
    except Exception as error:  # noqa: BLE001 - that is what is looked for
        return {"kind": "bare", "error": type(error).__name__, "text": str(error)[:300]}
    if found == expected:
        return {"kind": "same"}
    return {"kind": "renamed" if found and list(found[0]) != list(expected[0]) else "other"}


def main(folder: Path, seed: int, first: int, count: int, threads: int) -> None:
    """Read mutants until done."""
    warnings.simplefilter("ignore")
    names = list(WRITERS)
    bases = {name: (folder / f"{name}.parquet").read_bytes() for name in names}
    expected = {name: rows_of(folder / f"{name}.parquet", 0) for name in names}
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "mutant.parquet"
        for number in range(first, first + count):
            name, chance = names[number % len(names)], random.Random(f"{seed} {number}")  # noqa: S311
            damaged, hits_values = mutated(bases[name], chance)
            path.write_bytes(damaged)
            print(json.dumps({"next": number}), flush=True)
            found = outcome(lambda: rows_of(path, threads), expected[name], path)
            print(json.dumps({"number": number, "base": name, "hits_values": hits_values, **found}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:6]))
