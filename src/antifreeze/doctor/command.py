"""The command ``antifreeze``."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
from typing import TextIO

from antifreeze import __version__
from antifreeze.doctor._terminal import closest
from antifreeze.doctor.check import _check_command as check
from antifreeze.doctor.explain import main as explain
from antifreeze.doctor.job import _job_command as job

SYNOPSIS = """\
usage: antifreeze doctor [PID | NAME] [--json] [--native] [--keep FOLDER]
       antifreeze doctor run [--stall SECONDS] [--keep FOLDER] -- python train.py ...
       antifreeze doctor report FOLDER [--json]
       antifreeze doctor check [--json] [--all] [script.py ...]
       antifreeze explain [NAME]
       antifreeze --help | --version"""
USAGE = f"""\
{SYNOPSIS}

  doctor          explain why a running training job is stuck; without a PID or NAME, the one that has torch loaded
  doctor run      start a job, watch it, and explain each stall; the job is never stopped
  doctor report   the same, later and elsewhere, from what `--keep` or `doctor run` wrote
  doctor check    before training: find what on this machine and in these scripts will freeze a data loader
  explain         what a cause, an error or a finding means, and how to fix it; without a NAME, list all

Each command has --help.
Exit codes: 0 healthy or nothing found, 1 stuck or something found, 2 wrong usage or could not inspect the job,
3 slow; `doctor run` exits with the exit code of the job."""

COULD_NOT = 2
_BY_PIPE = 128 + signal.SIGPIPE
_BY_INTERRUPT = 128 + signal.SIGINT
_FULL = (errno.ENOSPC, errno.EDQUOT)
_HELP = ("--help", "-h")
_SUBCOMMANDS = {"check": check.main, "report": job.report, "run": job.run_job}


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit code, even if the reader of the output is gone.

    A shell reports a program that was ended by SIGPIPE or SIGINT as 128 plus the signal. Python turns both signals into
    exceptions, so the same codes are returned here, without a traceback.
    """
    given = sys.argv[1:] if arguments is None else arguments
    try:
        try:
            return _run(given)
        finally:
            _flush()
    except BrokenPipeError:
        _discard_output(sys.stdout, sys.stderr)
        return _BY_PIPE
    except KeyboardInterrupt:
        return _BY_INTERRUPT
    except OSError as error:
        if error.errno not in _FULL:
            raise
        _discard_output(sys.stdout)
        print(f"antifreeze: error: could not write the output: {error.strerror}", file=sys.stderr)
        return COULD_NOT


def _run(given: list[str]) -> int:
    if given[:1] in (["--version"], ["-V"]):
        print(f"antifreeze {__version__}")
        return 0
    if given[:1] in ([flag] for flag in _HELP) or (given[:1] == ["doctor"] and given[1:] in ([flag] for flag in _HELP)):
        print(USAGE)
        return 0
    if given[:1] == ["explain"]:
        return explain(given[1:])
    if given[:1] != ["doctor"]:
        return _refuse(given)
    command = _SUBCOMMANDS.get(given[1]) if len(given) > 1 else None
    return command(given[2:]) if command else job.inspect_job(given[1:])


def _meant(given: list[str]) -> str:
    """Return the command that was probably meant; nothing if none is close."""
    word = given[0] if given else ""
    if word.startswith("-"):
        return closest(word, ("--help", "--version"))
    if word in ("help", "version"):
        return f"--{word}"
    if word.isdecimal():
        return " ".join(["doctor", *given])
    if word.endswith(".py"):
        return " ".join(["doctor check", *given])
    if closest(word, ("doctor",)):
        return " ".join(["doctor", *given[1:]])
    if closest(word, ("explain",)):
        return " ".join(["explain", *given[1:]])
    subcommand = closest(word, _SUBCOMMANDS)
    return " ".join(["doctor", subcommand, *given[1:]]) if subcommand else ""


def _refuse(given: list[str]) -> int:
    if given:
        kind = "option" if given[0].startswith("-") else "command"
        problem = f"unknown {kind} {given[0]!r}: expected 'doctor' or 'explain'"
    else:
        problem = "missing command: expected 'doctor' or 'explain'"
    meant = _meant(given)
    hint = "use `antifreeze doctor PID` for a running job, `antifreeze doctor check` for a script"
    hint = f"did you mean `antifreeze {meant}`?" if meant else hint
    print(f"antifreeze: error: {problem}\nhint: {hint}\n\n{SYNOPSIS}", file=sys.stderr)
    return COULD_NOT


def _flush() -> None:
    """Flush the output while an error can still be handled: at exit Python would print it."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


def _discard_output(*streams: TextIO) -> None:
    """Discard what is still buffered, so that Python does not fail on it at exit."""
    for stream in streams:
        with contextlib.suppress(OSError, ValueError, AttributeError):  # it may be None, closed, or not a file
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


if __name__ == "__main__":
    sys.exit(main())
