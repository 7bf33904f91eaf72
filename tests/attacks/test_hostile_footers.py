"""Footers that lie, bomb or are merely damaged: facts or a named error, in time and memory that follow their bytes."""

from __future__ import annotations

import io
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from antifreeze import AntifreezeError, CorruptFile
from antifreeze.formats import _chunks, read_footer
from antifreeze.formats._chunks import ChunkField, FooterIndex

BASES: dict[str, Any] = {
    "flat": (pa.table({"x": range(50), "y": [0.5] * 50, "s": ["text", None] * 25}), 20),
    "lists": (pa.table({"ids": [[1, 2], [], [3]] * 20, "deep": [[["a"], []]] * 60}), 25),
    "nested": (pa.table({"a": [{"b": 1, "c": {"d": "q", "e": [1.5]}}] * 40}), 40),
    "wide": (pa.table({f"column_{i:03}": ["a", "b"] for i in range(300)}), 1),
    "mixed": (pa.table({f"c{i}": [i, None] if i % 2 else ["s" * (i % 80), "t"] for i in range(280)}), 2),
    "many groups": (pa.table({"x": range(300), "s": ["a"] * 300}), 1),
}


def file_of(footer: bytes) -> bytes:
    return b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1"


def footer_of(data: bytes) -> bytes:
    return data[-8 - int.from_bytes(data[-8:-4], "little") : -8]


def base(name: str) -> bytes:
    table, rows = BASES[name]
    buffer = io.BytesIO()
    pq.write_table(table, buffer, row_group_size=rows)
    return footer_of(buffer.getvalue())


FOOTERS = {name: base(name) for name in BASES}


def mutant(seed: int) -> tuple[str, bytes]:
    """Return a footer with some bytes changed, removed, doubled or made large."""
    chance = random.Random(seed)  # noqa: S311
    name = chance.choice(list(FOOTERS))
    data = bytearray(FOOTERS[name])
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data))
        kind = chance.randrange(5)
        if kind == 0:
            data[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            data[at] = chance.choice((0x00, 0x15, 0x16, 0x19, 0x1C, 0x7F, 0x80, 0xFC, 0xFF))
        elif kind == 2:
            del data[at : at + chance.randint(1, 40)]
        elif kind == 3:
            data[at:at] = data[at : at + chance.randint(1, 40)]
        else:
            data[at : at + 1] = b"\xff" * chance.randint(1, 9) + b"\x7f"
    return name, bytes(data)


def facts_of(footer: bytes) -> Any:
    """Return all that a walk finds, or that it refuses."""
    try:
        index = FooterIndex(footer, 0)
        groups = [index.read(group) for group in range(len(index.group_rows))]
        facts = [(group.num_rows, *(group.numbers(field).tolist() for field in ChunkField)) for group in groups]
    except ValueError:
        return None
    assert [group.num_rows for group in groups] == index.group_rows.tolist()
    return index.num_rows, index.group_start, facts


class Never:
    """A pattern that matches nothing."""

    @staticmethod
    def match(*_: object) -> None:
        return None


def check_mutant(seed: int, path: Path) -> bool:
    """Check one, and return whether it was refused."""
    _, footer = mutant(seed)
    fast = facts_of(footer)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_chunks, "_any_chunk", Never)
        assert facts_of(footer) == fast, seed
    path.write_bytes(file_of(footer))
    began_s = time.monotonic()
    found: Any
    try:
        found = read_footer(str(path))
    except AntifreezeError as error:
        found = error
    assert time.monotonic() - began_s < 10, seed
    if isinstance(found, AntifreezeError):
        assert str(path) in str(found), seed
        return True
    assert fast is not None, seed
    assert list(found.group_rows) == [group[0] for group in fast[2]], seed
    assert all(0 <= number < 2**63 for number in (*found.nbytes, *found.values)), seed
    return False


@pytest.mark.parametrize("part", range(10))
def test_a_damaged_footer_gives_facts_or_a_named_error(part: int, tmp_path: Path) -> None:
    """With patterns and without, the same ones."""
    refused = sum(check_mutant(seed, tmp_path / "m.parquet") for seed in range(40 * part, 40 * part + 40))

    # Otherwise the mutants are too tame, or everything is refused.
    assert 0 < refused < 40


@pytest.mark.soak
def test_many_damaged_footers(tmp_path: Path) -> None:
    for seed in range(100_000, 120_000):
        check_mutant(seed, tmp_path / "m.parquet")


# -- bombs -----------------------------------------------------------------------------------------------------------

SCHEMA = b"\x15\x04\x19\x2c" + b"\x48\x01s\x15\x02\x00" + b"\x15\x02\x25\x00\x18\x01x\x00" + b"\x16\x02"
GOOD_CHUNK = b"\x26\x00\x1c\x15\x02\x19\x15\x00\x19\x18\x01x\x15\x00\x16\x02\x16\x10\x16\x10\x26\x08\x00\x00"


def varint(number: int) -> bytes:
    out = b""
    while number > 0x7F:
        out, number = out + bytes([number & 0x7F | 0x80]), number >> 7
    return out + bytes([number])


def list_of(items: bytes, claimed: int) -> bytes:
    return b"\x19\xfc" + varint(claimed) + items


def group(chunks: bytes, claimed: int) -> bytes:
    return list_of(chunks, claimed) + b"\x16\x02\x16\x02\x00"


def footer(groups: bytes, claimed: int, num_rows: int = 1) -> bytes:
    return SCHEMA[:-1] + varint(2 * num_rows) + list_of(groups, claimed) + b"\x00"


def bombs(scale: int) -> dict[str, bytes]:
    """Return footers of about 3 MB times scale."""
    many = 100_000 * scale
    nested = b"\x1c" * many + b"\x00" * many
    return {
        "chunks that are empty": footer(group(b"\x26\x00\x00" * many, many), 1),
        "groups that are empty": footer(b"\x00" * many, many),
        "groups without chunks": footer(b"\x19\x0c\x16\x02\x16\x00\x00" * many, many),
        "groups with a chunk": footer(group(GOOD_CHUNK, 1) * many, many, many),
        "one group with many chunks": footer(group(GOOD_CHUNK * many, many), 1),
        "a claim of chunks": footer(group(GOOD_CHUNK, 2**31 - 1), 1),
        "a claim of groups": footer(group(GOOD_CHUNK, 1), 2**40),
        "a claim of columns": b"\x15\x04\x19\xfc" + varint(2**31 - 1) + b"\x00" * many,
        "a long name": b"\x15\x04\x19\x1c\x48" + varint(2**40) + b"x" * many,
        "structs in structs": SCHEMA[:-2] + nested + b"\x00",
        "lists in lists": SCHEMA[:-2] + b"\x19" + b"\x19" * many + b"\x00" * many,
        "long statistics": footer(group(GOOD_CHUNK[:-2] + b"\x3c\x18" + varint(many) + b"x" * many + b"\0\0\0", 1), 1),
        "many fields": SCHEMA + b"\x15\x02" * many + b"\x00",
        "zeros": b"\x00" * 8 * many,
        "ones": b"\xff" * 8 * many,
    }


BOMBED = """
import sys, time
from pathlib import Path
import pyarrow.parquet
from antifreeze import AntifreezeError
from antifreeze.formats import read_footer
def peak_kb():
    # Not ru_maxrss, which begins with the peak of the process that has started this one.
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
before = peak_kb()
for path in sys.argv[1:]:
    began_s = time.monotonic()
    try:
        outcome = len(read_footer(path).group_rows)
    except AntifreezeError as error:
        outcome = type(error).__name__
    grown_mb = (peak_kb() - before) // 1024
    print(outcome, time.monotonic() - began_s, grown_mb)
"""
DELIVERED = {"groups with a chunk": "500000", "long statistics": "1"}


def test_bombs_cost_what_their_bytes_cost(tmp_path: Path) -> None:
    """Whatever they claim. Arrow alone takes half a gigabyte for the first."""
    paths = []
    for number, (name, data) in enumerate(bombs(5).items()):
        paths.append(tmp_path / f"{number} {name}")
        paths[-1].write_bytes(file_of(data))
    words = [sys.executable, "-c", BOMBED, *map(str, paths)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=110, check=False)
    rows = [line.split() for line in done.stdout.splitlines()]

    assert len(rows) == len(paths), done
    for path, (outcome, took_s, grown_mb) in zip(paths, rows, strict=True):
        name = path.name.partition(" ")[2]
        assert outcome == DELIVERED.get(name, "CorruptFile"), name
        assert float(took_s) < 50, name
        assert int(grown_mb) < 200, name


def test_a_million_row_groups_take_linear_time(tmp_path: Path) -> None:
    """Five times as many: five times as long, and on a busy machine not twenty."""

    def taken_s(count: int) -> float:
        path = tmp_path / "g.parquet"
        path.write_bytes(file_of(footer(group(GOOD_CHUNK, 1) * count, count, count)))
        began_s = time.perf_counter()
        assert len(read_footer(str(path)).group_rows) == count
        return time.perf_counter() - began_s

    small = min(taken_s(20_000) for _ in range(3))

    assert taken_s(100_000) < 20 * small


def test_a_sparse_footer_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    with path.open("wb") as file:
        file.truncate(3 << 30)
        file.seek(0, 2)
        file.write((3 << 30).to_bytes(4, "little") + b"PAR1")
    began_s = time.monotonic()

    with pytest.raises(
        CorruptFile, match=r"a\.parquet has a footer of 3,221,225,480 bytes, expected at most"
    ) as caught:
        read_footer(str(path))
    assert time.monotonic() - began_s < 5
    assert caught.value.hint


def test_a_wide_file_opens_about_as_fast_as_with_arrow(tmp_path: Path) -> None:
    """It took 600 times as long. The bar is 2 for 10,000 columns, measured; this one holds on a busy machine."""
    path = tmp_path / "wide.parquet"
    pq.write_table(pa.table({f"column_{i:04}": ["a"] * 10 for i in range(2000)}), path, row_group_size=1)

    def taken_s(call: Any) -> float:
        began_s = time.perf_counter()
        call(str(path))
        return time.perf_counter() - began_s

    arrow_s = min(taken_s(pq.ParquetFile) for _ in range(5))
    ours_s = min(taken_s(read_footer) for _ in range(5))

    assert ours_s < 6 * arrow_s
