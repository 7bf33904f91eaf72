"""The commands ``antifreeze doctor PID``, ``doctor run`` and ``doctor report FOLDER``, and ``antifreeze.diagnose``."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import NoReturn

from antifreeze.core import ConfigError, one_line
from antifreeze.doctor._terminal import Paper, closest, paper_of
from antifreeze.doctor.job._diagnosis import Diagnosis, Verdict
from antifreeze.doctor.job._find_job import NotFound, find_job
from antifreeze.doctor.job._fix import Fix, fixes_of
from antifreeze.doctor.job._job_report import CannotRead, as_text, as_values, keep, read
from antifreeze.doctor.job._observe import Gone, observe
from antifreeze.doctor.job._run import run, to_stderr
from antifreeze.doctor.job._thread_stacks import native_lines
from antifreeze.doctor.job._verdict import is_enough, judge

HEALTHY, STUCK, COULD_NOT, SLOW = 0, 1, 2, 3
CODES = {Verdict.HEALTHY: HEALTHY, Verdict.STUCK: STUCK, Verdict.SLOW: SLOW}
"""The exit codes."""
_FROM_FOLDER = (
    "This report, with its commands and diffs, was read from {folder}. "
    "Review a command or a diff before you run or apply it."
)
EPILOG = "Exit codes: 0 healthy, 1 stuck, 2 wrong usage or could not inspect the job, 3 slow."


def diagnose(pid: int | None = None) -> Diagnosis:
    """Inspect a training job for 3 to 7 seconds, and return what was found.

    Args:
        pid: Process id of the job; by default this process and everything that it started. Call it from another thread
            than the one that waits.

    Returns:
        The verdict, the processes that hold up the job, and why.

    Raises:
        ConfigError: If there is no such process.

    Example:
        ```python
        import antifreeze as af

        diagnosis = af.diagnose()
        print(diagnosis.verdict.value, diagnosis.summary)
        for suspect in diagnosis.suspects:
            print(suspect.name, suspect.cause.value, suspect.link)
        ```
    """
    wanted = os.getpid() if pid is None else pid
    if isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 1:
        raise ConfigError(f"invalid pid: expected a process id, got {pid!r}", argument="pid")
    try:
        return judge(observe(find_job(str(wanted)), is_enough))
    except (NotFound, Gone):
        raise ConfigError(
            f"there is no process {wanted}",
            hint="list running processes with `ps`; the job may have ended",
            argument="pid",
        ) from None


def inspect_job(arguments: list[str]) -> int:
    """Diagnose a running job and return the exit code."""
    parser = _look_parser()
    options, rest = parser.parse_known_args(arguments)
    if rest:
        _refuse_rest(parser, options.job or "", arguments, rest)
    try:
        pid = find_job(options.job)
        if sys.stderr.isatty() and not options.json:
            print(f"inspecting process {pid} for up to 7 seconds; it is not stopped ...", file=sys.stderr)
        seen = observe(pid, is_enough)
    except NotFound as error:
        print(f"antifreeze doctor: {error}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        return COULD_NOT
    except Gone:
        print("antifreeze doctor: the job has ended", file=sys.stderr)
        return COULD_NOT
    diagnosis = judge(seen)
    if options.native and diagnosis.suspects:
        diagnosis = diagnosis.with_lines(native_lines(diagnosis.suspects[0].pid))
    fixes = fixes_of(diagnosis, seen)
    if options.keep:
        try:
            kept = keep(Path(options.keep), seen, fixes, as_text(diagnosis, fixes, Paper()))
            if kept != Path(options.keep):
                print(f"antifreeze doctor: {options.keep} exists; kept in {kept}", file=sys.stderr)
        except OSError as error:
            print(f"antifreeze doctor: could not write to {one_line(options.keep)}: {error.strerror}", file=sys.stderr)
    return say(diagnosis, fixes, pid, as_json=options.json)


def _refuse_rest(parser: argparse.ArgumentParser, first: str, given: list[str], rest: list[str]) -> NoReturn:
    """Exit with the command that was probably meant by surplus arguments."""
    if command := closest(first, ("check", "report", "run")):
        meant = " ".join(command if word == first else word for word in given)
        parser.error(f"unknown command {first!r}\nhint: did you mean `antifreeze doctor {meant}`?")
    if first.endswith(".py"):
        parser.error(f"expected one PID or NAME\nhint: did you mean `antifreeze doctor check {' '.join(given)}`?")
    parser.error(f"unrecognized arguments: {' '.join(rest)}")


def report(arguments: list[str]) -> int:
    """Diagnose a job from its kept evidence, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="antifreeze doctor report",
        description="Explain a job from the evidence in a folder that `--keep` or `doctor run` wrote.",
        epilog=EPILOG,
    )
    parser.add_argument("folder")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    try:
        seen, fixes = read(Path(options.folder))
    except CannotRead as error:
        print(f"antifreeze doctor report: {one_line(error)}", file=sys.stderr)
        return COULD_NOT
    return say(judge(seen), fixes, seen.root, as_json=options.json, folder=options.folder)


def run_job(arguments: list[str]) -> int:
    """Start a job, watch it, and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="antifreeze doctor run",
        description="Start a job, watch it, and explain each stall. The job is never stopped.",
        epilog="The exit code is that of the job.",
    )
    parser.add_argument(
        "--stall",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="report a stall after this time without progress; default: 30",
    )
    parser.add_argument(
        "--keep",
        metavar="FOLDER",
        default="antifreeze-doctor",
        help="keep evidence in FOLDER-RANDOM, a new folder for each run; default: %(default)s",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the command to run")
    options = parser.parse_args(arguments)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        print("error: missing command. Usage: antifreeze doctor run -- python train.py", file=sys.stderr)
        return COULD_NOT
    if not options.stall >= 1:  # NaN is not less, either
        print(f"antifreeze doctor run: error: invalid --stall: expected >= 1 s, got {options.stall:g}", file=sys.stderr)
        return COULD_NOT
    return run(command, stall_s=options.stall, folder=Path(options.keep), say=to_stderr, paper=paper_of(sys.stderr))


def say(diagnosis: Diagnosis, fixes: tuple[Fix, ...], pid: int, *, as_json: bool, folder: str = "") -> int:
    """Print a diagnosis, and return its exit code. ``folder``: where it was read from, if it is not of this machine."""
    if as_json:
        source = {"folder": one_line(folder)} if folder else {}
        print(json.dumps(as_values(diagnosis, fixes, pid) | source, indent=2))
    else:
        paper = paper_of(sys.stdout)
        print(as_text(diagnosis, fixes, paper), end="")
        if folder:
            print("\n" + paper.wrap(_FROM_FOLDER.format(folder=folder)), end="")
    return CODES[diagnosis.verdict]


def _look_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="antifreeze doctor",
        description="Explain why a running training job is stuck, whichever loader it uses. The job is inspected from "
        "outside: nothing is stopped, and nothing is changed.",
        epilog=EPILOG,
    )
    parser.add_argument(
        "job",
        nargs="?",
        metavar="PID|NAME",
        help="process id, or a part of the command line; default: the job that has torch loaded",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--native",
        action="store_true",
        help="also print the native functions of the first suspect; stops it for a moment",
    )
    parser.add_argument(
        "--keep", metavar="FOLDER", help="keep the evidence in a new folder, for `antifreeze doctor report FOLDER`"
    )
    return parser
