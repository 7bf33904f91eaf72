"""Damaged Parquet files: the same rows, or an error that names the file; never a crash, a hang or a bare error.

Other rows are accepted in two cases only, because the file is then consistent with itself and nothing can tell:
values of a page without a checksum were changed, and the page still decompresses; or a column has another name.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from attacks import mutants

PROGRAM = Path(mutants.__file__)
SEED = 20261118
BOUND_S = 300.0


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten files of ten kinds."""
    folder = tmp_path_factory.mktemp("bases")
    mutants.write_bases(folder)
    return folder


def run(bases: Path, first: int, count: int, threads: int) -> list[dict[str, Any]]:
    """Read some mutants in another process, which must not crash."""
    command = [sys.executable, str(PROGRAM), *map(str, (bases, SEED, first, count, threads))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND_S, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, f"exit code {done.returncode} at {lines[-1:]}\n{done.stderr[-2000:]}"
    found = [line for line in lines if "kind" in line]
    assert len(found) == count
    return found


def is_explained(line: dict[str, Any]) -> bool:
    """Whether other rows could not have been noticed."""
    if line["kind"] == "renamed":
        return True
    return bool(line["kind"] == "other" and line["hits_values"] and line["base"] != "checksums")


def check(found: list[dict[str, Any]]) -> None:
    bad = [line for line in found if line["kind"] not in ("same", "typed") and not is_explained(line)]

    assert bad == []
    kinds = Counter(line["kind"] for line in found)
    assert kinds["typed"] > len(found) // 2, kinds  # otherwise the damage did no harm, and this test shows nothing


@pytest.mark.parametrize(("first", "count", "threads"), [(0, 400, 0), (400, 200, 2), (600, 20, -1)])
def test_damage_is_named_or_changes_nothing(bases: Path, first: int, count: int, threads: int) -> None:
    """In the calling thread, in decoder threads, and with worker processes behind them."""
    check(run(bases, first, count, threads))


@pytest.mark.soak
@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("first", range(10_000, 20_000, 1000))
def test_damage_is_named_or_changes_nothing_for_long(bases: Path, first: int, threads: int) -> None:
    """Twenty thousand mutants."""
    check(run(bases, first, 1000, threads))


@pytest.mark.soak
@pytest.mark.parametrize("first", range(50_000, 50_500, 100))
def test_damage_is_named_with_worker_processes_for_long(bases: Path, first: int) -> None:
    """Fewer: each starts processes."""
    check(run(bases, first, 100, -2))
