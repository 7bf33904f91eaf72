"""The commands: what they answer to, and with which exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from doctor_children import child, in_call, until

from antifreeze.doctor.command import main

READY = "print('ready', flush=True)\n"
SLEEPS = f"import time\n{READY}time.sleep(10**6)"
COMPUTES = f"{READY}while True:\n    sum(range(1000))"
GONE = str(2**22 + 1)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for a moment only."""
    monkeypatch.setattr("antifreeze.doctor.job._observe.MIN_OBSERVATION_S", 0.5)
    monkeypatch.setattr("antifreeze.doctor.job._observe.MAX_OBSERVATION_S", 2.0)
    monkeypatch.setattr("antifreeze.doctor.job._observe._SNAPSHOT_INTERVAL_S", 0.2)


@pytest.mark.usefixtures("soon")
def test_a_healthy_job(capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code is 0."""
    with child(COMPUTES) as process:
        assert main(["doctor", str(process.pid)]) == 0

    said = capsys.readouterr()
    assert said.out.startswith("HEALTHY: The job is making progress.\n")
    assert said.err == ""


@pytest.mark.usefixtures("soon")
def test_a_stuck_job_and_what_is_kept_of_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The exit code is 1; the report says the same, later and elsewhere."""
    folder = str(tmp_path / "kept")
    with child(SLEEPS) as process:
        until(lambda: in_call(process.pid, "clock_nanosleep", "nanosleep"))
        assert main(["doctor", str(process.pid), "--keep", folder]) == 1
    first = capsys.readouterr().out

    assert first.startswith(f"STUCK: The training process ({process.pid}) sleeps, at <string>:3 in <module>.")
    assert "sleeping (likely)" in first
    assert "12 days of this sleep are left" in first
    assert "antifreeze explain sleeping" in first
    assert "\x1b" not in first
    assert main(["doctor", "report", folder]) == 1
    printed = capsys.readouterr().out
    assert printed.startswith(first)
    assert " ".join(printed.removeprefix(first).split()).startswith(
        "This report, with its commands and diffs, was read"
    )
    assert (tmp_path / "kept" / "diagnosis.txt").read_text() == first
    assert main(["doctor", "report", folder, "--json"]) == 1
    values = json.loads(capsys.readouterr().out)
    assert values["pid"] == process.pid
    assert values["verdict"] == "stuck"
    assert values["findings"][0]["cause"] == "sleeping"


@pytest.mark.usefixtures("soon")
def test_json_of_a_job_found_by_name(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Nothing but JSON is on the standard output."""
    script = tmp_path / "computes_for_ever.py"
    script.write_text(COMPUTES)
    command = [sys.executable, str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            assert main(["doctor", str(script), "--json"]) == 0
        finally:
            process.kill()

    assert json.loads(capsys.readouterr().out)["pid"] == process.pid


@pytest.mark.usefixtures("soon")
def test_a_folder_that_cannot_be_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The diagnosis is said all the same."""
    (tmp_path / "file").write_text("x")
    with child(COMPUTES) as process:
        assert main(["doctor", str(process.pid), "--keep", str(tmp_path / "file" / "folder")]) == 0

    said = capsys.readouterr()
    assert said.out.startswith("HEALTHY")
    assert "could not write to" in said.err


def test_a_job_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code is 2, and the standard output is empty."""
    assert main(["doctor", GONE]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == f"antifreeze doctor: there is no process {GONE}\n"


def test_a_job_that_ends_while_it_is_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    """It can be told from one that never was."""
    with child("print('ready', flush=True)") as process:
        until(lambda: Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z")
        assert main(["doctor", str(process.pid)]) == 2

    assert capsys.readouterr().err == "antifreeze doctor: the job has ended\n"


def test_a_name_that_nobody_has(capsys: pytest.CaptureFixture[str]) -> None:
    """It says what to give instead."""
    assert main(["doctor", "no-such-job-anywhere.py"]) == 2
    assert "hint: pass the process id of the job" in capsys.readouterr().err


def test_a_report_of_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """It says what to give instead."""
    assert main(["doctor", "report", str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "pass a folder that `--keep` or `doctor run` wrote" in said.err


@pytest.mark.parametrize("arguments", [["run"], ["run", "--stall", "5"], ["run", "--"], ["run", "--stall", "5", "--"]])
def test_nothing_to_run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """With an example."""
    assert main(["doctor", *arguments]) == 2
    assert "-- python train.py" in capsys.readouterr().err


@pytest.mark.parametrize("stall", ["0", "-3", "0.5", "nan"])
def test_too_short_a_stall(stall: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is run."""
    assert main(["doctor", "run", "--stall", stall, "--", "false"]) == 2
    assert "invalid --stall: expected >= 1 s, got" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["1", "2"],
        ["--jsno"],
        ["1", "--keep"],
        ["report"],
        ["report", "a", "b"],
        ["run", "--stall", "soon", "--", "true"],
        ["run", "--keep"],
    ],
)
def test_what_is_not_understood(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code is 2, with the usage."""
    with pytest.raises(SystemExit) as ended:
        main(["doctor", *arguments])

    assert ended.value.code == 2
    assert "usage: antifreeze doctor" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["run", "report", "check"])
def test_each_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With its exit codes."""
    with pytest.raises(SystemExit) as ended:
        main(["doctor", command, "--help"])

    assert ended.value.code == 0
    assert "xit code" in capsys.readouterr().out


def test_help_names_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    """They are documented where people look first."""
    assert main(["doctor", "--help"]) == 0
    said = capsys.readouterr().out
    words = " ".join(said.split())
    assert "0 healthy or nothing found, 1 stuck or something found, 2 wrong usage or could not inspect the job" in words
