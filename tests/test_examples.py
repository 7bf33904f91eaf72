"""Every example runs, at a size that suits a test, and fits on a page."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"

RUNS: dict[str, list[tuple[str, str]]] = {
    "accelerate_prepare.py": [("--rows=990", "990 rows, stopped at step 20 and resumed: each came once")],
    "bad_samples.py": [("--samples=120", "117 of 120 samples came")],
    "demo.py": [
        ("--files=3 --rows=500", "1,500 rows: 1,500 came once, 0 are missing, 0 came twice"),
        ("--files=2 --rows=800", "OK: two workers were lost, and nothing else"),
    ],
    "drop_in.py": [("--samples=300 --epochs=1", "the same batches, in the same order, as from torch's loader")],
    "fabric_resume.py": [("--samples=640", "640 samples on 2 ranks, stopped at step 10 and resumed: each came once")],
    "hive_folders.py": [("--rows=50", "lang=en year=2024: 50 rows")],
    "huggingface_trainer.py": [
        ("--samples=400", "400 samples, 2 epochs, stopped in the second and resumed: each came")
    ],
    "kill_a_worker.py": [("--samples=800", "800 samples: each came once, in the same order")],
    "lightning_ddp.py": [("--rows=80", "epoch 1: 320 rows on 2 ranks, each came once")],
    "lightning_fit.py": [("--rows=1000", "2,000 rows in 2 epochs: each came once")],
    "litdata_issue_823.py": [
        ("--files=3 --rows=100 --all", "300 rows compared"),
        ("spawn --files=2 --rows=100 --low-memory", "got batch 5"),
        ("forkserver --files=2 --rows=100 --all", "200 rows compared"),
    ],
    "numpy_only.py": [("--rows=2000", "torch was never imported")],
    "quickstart.py": [("--rows=400 --epochs=1", "epoch 0: loss")],
    "ragged_text.py": [("--rows=100", "100 texts")],
    "subset_and_transform.py": [("--rows=600", "the same noise with 2 workers and with none: True")],
}
"""For each script its arguments, and what it must print. `make test-more` runs it again, with further ones."""

FRAMEWORKS = {
    "accelerate_prepare.py",
    "fabric_resume.py",
    "huggingface_trainer.py",
    "lightning_ddp.py",
    "lightning_fit.py",
}
"""Those whose framework has warnings of its own."""

_CASES = [
    pytest.param(name, *run, id=f"{name} {run[0]}", marks=pytest.mark.more if number else ())
    for name, runs in RUNS.items()
    for number, run in enumerate(runs)
]


def run_example(name: str, arguments: str, folder: Path) -> str:
    """Run a script as a user would: in another folder. Warnings are errors, unless a framework is there."""
    warnings = "default" if name in FRAMEWORKS else "error"
    command = [sys.executable, "-W", warnings, str(EXAMPLES / name), *arguments.split()]
    environ = {name: value for name, value in os.environ.items() if name != "ANTIFREEZE_FORKSERVER_LINGER_S"}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(("name", "arguments", "printed"), _CASES)
def test_an_example_runs(name: str, arguments: str, printed: str, tmp_path: Path) -> None:
    """It prints what it is there to show, and leaves nothing behind."""
    assert printed in run_example(name, arguments, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_script_of_the_issue_uses_data_that_is_there(tmp_path: Path) -> None:
    """It takes minutes to make the full size; the second run, with another size, must not."""
    data = tmp_path / "data"
    data.mkdir()
    run_example("litdata_issue_823.py", f"--files=2 --rows=90 --data={data}", tmp_path)

    assert "180 rows compared" in run_example("litdata_issue_823.py", f"--files=2 --all --data={data}", tmp_path)


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
