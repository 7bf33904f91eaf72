"""Memory is bounded by ``memory_limit``, whatever a file claims or holds: a batch, or a typed error."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import antifreeze as af
from attacks import bombs
from attacks.parquet_bytes import rewrite_page_header

PROGRAM = Path(bombs.__file__)
LIMIT_MB = 64
ALLOWED_MB = LIMIT_MB + 300
BOUND_S = 240.0

# What must come of each, in order and shuffled.
EXPECTED = {
    "dictionary": ("rows", "TooLarge"),
    "short_first": ("rows", "rows"),
    "value": ("TooLarge", "TooLarge"),
    "list": ("TooLarge", "TooLarge"),
    "long_lists": ("rows", "rows"),
    "nested": ("TooLarge", "TooLarge"),
    "wide": ("TooLarge", "TooLarge"),
    "deep": ("rows", "rows"),
    "groups": ("rows", "rows"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All bombs."""
    folder = tmp_path_factory.mktemp("bombs")
    for name, write in bombs.BOMBS.items():
        write(folder / f"{name}.parquet")
    return folder


def read(path: Path, *how: object) -> dict[str, Any]:
    """Read a file in another process and return what came of it."""
    command = [sys.executable, str(PROGRAM), str(path), str(LIMIT_MB), *map(str, how)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND_S, check=False)
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr[-2000:]}"
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found["peak_mb"] < ALLOWED_MB, found
    return found


def check(folder: Path, name: str, threads: int, order: str, code: str, format_: str) -> None:
    found = read(folder / f"{name}.parquet", threads, order, code, format_)
    expected = EXPECTED[name][order == "shuffle"]

    assert found["what"].startswith(expected), found
    assert found["rows"] > 0 or expected != "rows"
    if expected == "TooLarge":
        assert all(part in found["what"] for part in (str(folder / name), "row group 0", "memory_limit=64 MB", "hint"))


@pytest.mark.parametrize("order", ["order", "shuffle"])
@pytest.mark.parametrize("name", bombs.BOMBS)
def test_a_bomb_is_read_or_refused_within_the_limit(folder: Path, name: str, order: str) -> None:
    """With two threads, the most common case."""
    check(folder, name, 2, order, "plain", "numpy")


@pytest.mark.soak
@pytest.mark.parametrize("code", ["plain", "transform"])
@pytest.mark.parametrize("format_", ["numpy", "arrow"])
@pytest.mark.parametrize("threads", [0, 1, 8])
@pytest.mark.parametrize("order", ["order", "shuffle"])
@pytest.mark.parametrize("name", bombs.BOMBS)
def test_a_bomb_is_read_or_refused_however_it_is_read(
    folder: Path, name: str, order: str, threads: int, format_: str, code: str
) -> None:
    """All other numbers of threads, formats, and worker processes."""
    check(folder, name, threads, order, code, format_)


@pytest.mark.parametrize("order", ["order", "shuffle"])
@pytest.mark.parametrize(
    ("field", "what"), [(2, "may take 2,1"), (3, "are left of the chunk")], ids=["uncompressed", "compressed"]
)
def test_a_page_header_is_not_believed(tmp_path: Path, field: int, what: str, order: str) -> None:
    """A page of some bytes that claims two gigabytes costs nothing."""
    path = tmp_path / "claims.parquet"
    pq.write_table(pa.table({"n": range(100)}), path, use_dictionary=False)
    rewrite_page_header(path, lambda header: header | {field: 2**31 - 1})

    found = read(path, 2, order, "plain", "numpy")

    assert what in found["what"]
    assert str(path) in found["what"]
    assert found["peak_mb"] < found["base_mb"] + 50


def test_rows_that_fit_one_by_one_but_not_as_a_batch_are_named(folder: Path) -> None:
    """What the user can do about it is another thing."""
    dataset = af.StreamingDataset(folder / "dictionary.parquet", format="numpy", columns=["text"])
    with pytest.raises(af.TooLarge, match=r"a batch of 256 rows does not fit in memory_limit=64 MB") as caught:
        list(af.StreamingDataLoader(dataset, batch_size=256, memory_limit="64MB"))

    assert "lower batch_size" in caught.value.hint
    assert isinstance(caught.value, MemoryError)


@pytest.mark.parametrize("threads", [0, 3])
@pytest.mark.parametrize("format_", ["numpy", "arrow"])
def test_a_window_that_is_too_heavy_has_the_same_order(
    tmp_path: Path, threads: int, format_: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is made in several passes, and nothing else changes."""
    from antifreeze.datasets import _reading

    path = tmp_path / "a.parquet"
    values = [f"{i:05} " * (1 + i % 400) for i in range(3000)]
    pq.write_table(pa.table({"text": values}), path, row_group_size=500)

    def read() -> list[str]:
        dataset = af.StreamingDataset(path, format=format_, shuffle=True)
        loader = af.StreamingDataLoader(dataset, batch_size=7, seed=3, num_workers=threads, memory_limit="512MB")
        batches = [batch["text"] for batch in loader]
        return [str(text) for batch in batches for text in batch]

    expected = read()
    made: list[int] = []
    begin_next = _passes().begin_next

    def counted(self: Any) -> None:
        made.append(self.low)
        begin_next(self)

    monkeypatch.setattr(_passes(), "begin_next", counted)
    monkeypatch.setattr(_reading, "_in_flight_nbytes", lambda limit: limit // 1500)

    assert read() == expected
    assert sorted(expected) == sorted(values)
    assert sum(low > 0 for low in made) > 3  # it was made in several passes indeed


def _passes() -> Any:
    from antifreeze.decode._block import Passes

    return Passes
