"""Manifests that lie: an error that names what contradicts what, or exactly the rows of the files."""

from __future__ import annotations

import json
import random
import re
import zlib
from array import array
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import antifreeze as af
from antifreeze.core import Manifest
from antifreeze.storage import MANIFEST_NAME, read_manifest, write_manifest

Change = Callable[[Manifest], Manifest]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three files of three row groups of ten rows, indexed."""
    for file in range(3):
        n = np.arange(30) + 30 * file
        table = pa.table({"n": n, "text": [f"row {i}" for i in n], "ids": [[i, i] for i in n]})
        pq.write_table(table, tmp_path / f"{file}.parquet", row_group_size=10)
    af.index_parquet_dataset(tmp_path)
    return tmp_path


def rows(folder: Path, threads: int, **options: Any) -> list[int]:
    """Return the numbers of all rows, after a look at the rest of them."""
    dataset = af.StreamingDataset(folder, format="numpy", **options)
    loader = af.StreamingDataLoader(dataset, batch_size=7, num_workers=threads, memory_limit="64MB", timeout=60)
    found: list[int] = []
    for batch in loader:
        numbers = batch["n"].tolist()
        assert list(batch["text"]) == [f"row {i}" for i in numbers]
        assert [list(ids) for ids in batch["ids"]] == [[i, i] for i in numbers]
        found += numbers
    return sorted(found)


def with_rows(fragment: int, num_rows: int) -> Change:
    def change(manifest: Manifest) -> Manifest:
        rows = array("q", manifest.fragment_rows)
        rows[fragment] = num_rows
        return replace(manifest, fragment_rows=rows)

    return change


def exchanged(fewer: int, more: int) -> Change:
    return lambda manifest: with_rows(fewer, 9)(with_rows(more, 11)(manifest))


def without(*fragments: int) -> Change:
    def change(manifest: Manifest) -> Manifest:
        kept = [i for i in range(manifest.num_fragments) if i not in fragments]
        parts = ("fragment_file", "fragment_group", "fragment_rows")
        return replace(manifest, **{name: array("q", [getattr(manifest, name)[i] for i in kept]) for name in parts})

    return change


def with_type(column: str, kind: pa.DataType) -> Change:
    def change(manifest: Manifest) -> Manifest:
        schema = pa.ipc.read_schema(pa.py_buffer(manifest.schema))
        place = schema.get_field_index(column)
        return replace(manifest, schema=schema.set(place, pa.field(column, kind)).serialize().to_pybytes())

    return change


LIES: dict[str, tuple[Change, str]] = {
    "fewer rows": (with_rows(4, 3), "expected 23 rows in total, got 30"),
    "more rows": (with_rows(4, 11), "expected 31 rows in total, got 30"),
    "far more rows": (with_rows(4, 2**40), "expected 1,099,511,627,796 rows in total"),
    "other rows": (exchanged(3, 4), "row group 0: expected 9 rows, got 10"),
    "impossible rows": (with_rows(4, 2**62), "it claims 4,611,686,018,427,387,"),
    "a fragment is missing": (without(4), "expected 20 rows in total, got 30"),
    "a file is missing": (without(3, 4, 5), "has no rows of .*1.parquet, and its footer says 30"),
    "nothing is left": (without(*range(9)), "has no rows of .*0.parquet, and its footer says 30"),
    "another type": (with_type("n", pa.int32()), 'column "n": expected int32, got int64'),
    "a list of one length": (with_type("ids", pa.list_(pa.int64(), 2)), 'column "ids": expected fixed_size_list'),
}


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("lie", LIES)
def test_a_manifest_that_contradicts_the_files_is_refused(folder: Path, lie: str, threads: int, shuffle: bool) -> None:
    """Too few rows would lose data without a word."""
    change, message = LIES[lie]
    place = str(folder / MANIFEST_NAME)
    write_manifest(change(read_manifest(place)), place)

    with pytest.raises(af.ManifestError, match=message) as caught:
        rows(folder, threads, shuffle=shuffle)

    assert "run index_parquet_dataset again" in caught.value.hint


@pytest.mark.parametrize("nbytes", [0, 1, 10**6, 2**62])
@pytest.mark.parametrize("values", [0, 1, 10**6, 2**62])
def test_sizes_that_are_wrong_change_no_row(folder: Path, nbytes: int, values: int) -> None:
    """They are estimates, and only decide how much is read at a time."""
    place = str(folder / MANIFEST_NAME)
    manifest = read_manifest(place)
    columns = tuple(replace(column, nbytes=nbytes, values=values) for column in manifest.columns)
    write_manifest(replace(manifest, columns=columns), place)

    assert rows(folder, 2, shuffle=True) == list(range(90))


HOSTILE: list[Any] = [None, True, -1, 2**63, 10**400, 1.5, "x", "\0", "../x", [], {}, [[]], [None], "9" * 5000]


def mutated(payload: Any, chance: random.Random) -> Any:
    """Replace something in a payload by something hostile."""
    if isinstance(payload, dict) and payload:
        key = chance.choice(list(payload))
        if chance.random() < 0.1:
            return {name: value for name, value in payload.items() if name != key}
        return payload | {key: mutated(payload[key], chance)}
    if isinstance(payload, list) and payload and chance.random() < 0.8:
        place = chance.randrange(len(payload))
        kind = chance.randrange(3)
        if kind == 0:
            return payload[:place] + payload[place + 1 :]
        if kind == 1:
            return [*payload[:place], payload[place], *payload[place:]]
        return [*payload[:place], mutated(payload[place], chance), *payload[place + 1 :]]
    if type(payload) is int and chance.random() < 0.5:
        return payload + chance.choice((-1, 1, 10, 2**31, 2**40))
    return chance.choice(HOSTILE)


def write_payload(place: Path, payload: bytes) -> None:
    """Write a manifest with a checksum that fits."""
    place.write_bytes(b'{"antifreeze_manifest":1,"crc32":"%08x","payload":' % zlib.crc32(payload) + payload + b"}\n")


def check_mutants(folder: Path, seeds: range) -> None:
    place = folder / MANIFEST_NAME
    found = re.search(rb'"payload":(.*)\}\n$', place.read_bytes(), re.DOTALL)
    assert found
    original = json.loads(found[1])
    refused = 0
    for seed in seeds:
        chance = random.Random(seed)  # noqa: S311
        write_payload(place, json.dumps(mutated(original, chance)).encode())
        try:
            assert rows(folder, 0) == list(range(90)), seed
        except (af.ManifestError, af.SourceChanged):
            refused += 1
        except af.InputError as error:  # columns that are not there
            refused += "column" in str(error)
    assert refused > len(seeds) // 2


def test_a_changed_manifest_is_refused_or_changes_nothing(folder: Path) -> None:
    """Whatever is changed in it, with a checksum that fits."""
    check_mutants(folder, range(400))


@pytest.mark.soak
def test_a_changed_manifest_is_refused_or_changes_nothing_for_long(folder: Path) -> None:
    """Ten thousand of them."""
    check_mutants(folder, range(1000, 11_000))


def test_a_deep_manifest_is_refused(folder: Path) -> None:
    """Nesting is bounded."""
    write_payload(folder / MANIFEST_NAME, b"[" * 200_000 + b"]" * 200_000)

    with pytest.raises(af.ManifestError, match="does not parse"):
        af.StreamingDataset(folder)
