"""The command: what it answers to, and with which exit code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import antifreeze
from antifreeze.doctor.command import USAGE, main


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["doctor", "--help"]])
def test_who_asks_for_help_gets_it(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """On the standard output, and it is no error."""
    assert main(arguments) == 0
    assert capsys.readouterr().out == USAGE + "\n"


@pytest.mark.parametrize("arguments", [[], ["check"], ["12"]])
def test_what_is_not_known_is_an_error(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """With the usage, where errors go."""
    assert main(arguments) == 2
    assert capsys.readouterr().err == USAGE + "\n"


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    """As the package says it."""
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"antifreeze {antifreeze.__version__}\n"


def test_a_script_is_checked_by_the_command(tmp_path: Path) -> None:
    """Started as users start it."""
    script = tmp_path / "train.py"
    script.write_text("from torch.utils.data import Dataset\n\nclass D(Dataset):\n    def __getitem__(self, i):\n")
    done = subprocess.run(
        [sys.executable, "-m", "antifreeze", "doctor", "check", str(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 2
    assert "train.py" in done.stderr
