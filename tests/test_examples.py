"""Every example runs, at a size that suits a test, and fits on a page."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"

RUNS: dict[str, list[list[str]]] = {
    "demo.py": [["--files=2", "--rows=600"]],
    "hive_folders.py": [["--rows=50"]],
    "litdata_issue_823.py": [
        ["--files=3", "--rows=100", "--all"],
        ["--files=3", "--rows=100", "--all", "--low-memory"],
        ["spawn", "--files=2", "--rows=100"],
        ["forkserver", "--files=2", "--rows=100", "--all"],
    ],
    "numpy_only.py": [["--rows=2000"]],
    "quickstart.py": [["--rows=400", "--epochs=1"]],
    "ragged_text.py": [["--rows=100"]],
    "subset_and_transform.py": [["--rows=600"]],
}

_CASES = [pytest.param(name, args, id=" ".join([name, *args])) for name, runs in RUNS.items() for args in runs]


def run(name: str, args: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), *args]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.parametrize(("name", "args"), _CASES)
def test_an_example_runs(name: str, args: list[str], tmp_path: Path) -> None:
    """As a user would start it: in another folder, with warnings as errors."""
    done = run(name, args, tmp_path)

    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_demo_proves_that_each_row_came_once(tmp_path: Path) -> None:
    """The proof is what the demo is for."""
    done = run("demo.py", ["--files=3", "--rows=500"], tmp_path)

    assert "OK: every row came exactly once" in done.stdout, done.stdout + done.stderr
    assert "1,500 rows: 1,500 came once, 0 are missing, 0 came twice" in done.stdout


def test_the_script_of_the_issue_compares_every_row(tmp_path: Path) -> None:
    """Data that is there already is used as it is, and stays."""
    data = tmp_path / "data"
    data.mkdir()
    for _ in range(2):
        done = run("litdata_issue_823.py", ["--files=2", "--rows=90", "--all", f"--data={data}"], tmp_path)
        assert "180 rows compared" in done.stdout, done.stdout + done.stderr

    assert sorted(file.name for file in data.glob("*.parquet")) == ["part-0.parquet", "part-1.parquet"]


def test_every_example_is_run() -> None:
    """A script that nobody runs is wrong after a while."""
    assert sorted(RUNS) == sorted(file.name for file in EXAMPLES.glob("*.py"))


@pytest.mark.parametrize("name", RUNS)
def test_an_example_says_what_it_needs(name: str) -> None:
    """The header is what ``uv run`` and ``pipx run`` read (PEP 723)."""
    lines = (EXAMPLES / name).read_text().splitlines()
    end = lines.index("# ///", 1)
    header = tomllib.loads("\n".join(line.removeprefix("# ") for line in lines[1:end]))

    assert lines[0] == "# /// script"
    assert header["requires-python"] == ">=3.11"
    assert any(need.startswith("antifreeze") for need in header["dependencies"])


@pytest.mark.parametrize("name", sorted(set(RUNS) - {"demo.py"}))
def test_an_example_fits_on_a_page(name: str) -> None:
    """Less than 80 lines. The demo is a show, and longer."""
    assert len((EXAMPLES / name).read_text().splitlines()) < 80
