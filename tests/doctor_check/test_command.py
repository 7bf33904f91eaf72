"""The command: what it answers to, and with which exit code."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import antifreeze
from antifreeze.doctor.command import SYNOPSIS, USAGE, main


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["doctor", "--help"]])
def test_who_asks_for_help_gets_it(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """On the standard output, and it is no error."""
    assert main(arguments) == 0
    assert capsys.readouterr().out == USAGE + "\n"


@pytest.mark.parametrize(
    ("arguments", "problem", "hint"),
    [
        ([], "missing command: expected 'doctor' or 'explain'", "antifreeze doctor PID"),
        (["docter"], "unknown command 'docter'", "did you mean `antifreeze doctor`?"),
        (["Doctor", "check", "a.py"], "unknown command 'Doctor'", "did you mean `antifreeze doctor check a.py`?"),
        (["inspect"], "unknown command 'inspect': expected 'doctor' or 'explain'", "antifreeze doctor PID"),
        (["check", "a.py"], "unknown command 'check'", "did you mean `antifreeze doctor check a.py`?"),
        (["chekc", "a.py"], "unknown command 'chekc'", "did you mean `antifreeze doctor check a.py`?"),
        (["12"], "unknown command '12'", "did you mean `antifreeze doctor 12`?"),
        (["a.py"], "unknown command 'a.py'", "did you mean `antifreeze doctor check a.py`?"),
        (["--verison"], "unknown option '--verison'", "did you mean `antifreeze --version`?"),
        (["help"], "unknown command 'help'", "did you mean `antifreeze --help`?"),
    ],
)
def test_a_wrong_command_is_named_with_what_was_meant(
    arguments: list[str], problem: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the usage, where errors go."""
    assert main(arguments) == 2
    first, second, *rest = capsys.readouterr().err.splitlines()

    assert first.startswith(f"antifreeze: error: {problem}")
    assert second.startswith("hint: ")
    assert hint in second
    assert "\n".join(rest) == "\n" + SYNOPSIS


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["chekc"], "did you mean `antifreeze doctor check`?"),
        (["chekc", "a.py", "--json"], "did you mean `antifreeze doctor check a.py --json`?"),
        (["runn", "--", "python", "a.py"], "did you mean `antifreeze doctor run -- python a.py`?"),
        (["reprot", "folder"], "did you mean `antifreeze doctor report folder`?"),
        (["a.py", "b.py"], "did you mean `antifreeze doctor check a.py b.py`?"),
        (["here.py"], "antifreeze doctor check here.py"),
        (["12a345"], "a process id has digits only"),
    ],
)
def test_a_wrong_word_for_the_doctor_is_answered_with_what_was_meant(
    arguments: list[str], hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.py").touch()
    try:
        code = main(["doctor", *arguments])
    except SystemExit as exit_:
        code = exit_.code  # type: ignore[assignment]

    assert code == 2
    assert hint in capsys.readouterr().err


@pytest.mark.parametrize("pid", ["-5", "0", "9" * 5000])
def test_a_number_that_is_no_process_is_answered(pid: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", pid]) == 2
    assert "there is no process" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["--help"], ["doctor", "check", "--help"], ["doctor", "check"], ["--version"], []]
)
@pytest.mark.parametrize("stream", ["stdout", "stderr", "both"])
def test_a_closed_pipe_is_no_error(arguments: list[str], stream: str) -> None:
    """Nobody reads: it ends without a word, as programs do that SIGPIPE ends."""
    reader, writer = os.pipe()
    os.close(reader)
    closed = ("stdout", "stderr") if stream == "both" else (stream,)
    streams = {name: writer if name in closed else subprocess.PIPE for name in ("stdout", "stderr")}
    command = [sys.executable, "-X", "dev", "-m", "antifreeze", *arguments]
    done = subprocess.run(command, **streams, text=True, timeout=60, check=False)  # type: ignore[call-overload]
    os.close(writer)

    says_to = "stderr" if not arguments else "stdout"
    assert not done.stderr or (says_to == "stderr" and stream == "stdout")
    by_argparse = arguments[-1:] == ["--help"] and len(arguments) > 1  # which may swallow the error itself
    assert (done.returncode == 128 + signal.SIGPIPE) == (says_to in closed) or (by_argparse and done.returncode == 0)


def test_a_reader_that_leaves_early_is_no_error() -> None:
    """As in ``antifreeze doctor check bad.py | head -1``."""
    pattern = str(Path(__file__).parent / "patterns/bad_settings.py")
    command = [sys.executable, "-u", "-m", "antifreeze", "doctor", "check", "--all", pattern]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
        process.wait(60)

    assert process.returncode in (1, 128 + signal.SIGPIPE)  # what fits into the pipe is written before it closes


def test_a_full_disk_is_named() -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "antifreeze", "--help"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)

    assert done.returncode == 2
    assert done.stderr == "antifreeze: error: could not write the output: No space left on device\n"


def test_a_stream_that_is_not_open_is_no_error() -> None:
    """As in ``antifreeze doctor check >&-``."""
    command = f"{shlex.quote(sys.executable)} -m antifreeze doctor check >&-"
    done = subprocess.run(["/bin/sh", "-c", command], stderr=subprocess.PIPE, text=True, timeout=60, check=False)

    assert done.stderr == ""
    assert done.returncode in (0, 1)


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
