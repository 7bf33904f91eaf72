"""Finds the job to inspect: by process id, by name, or the one training job of this user."""

from __future__ import annotations

import os
from pathlib import Path

from antifreeze.core import PROC, natural, one_line, read_proc_file, redact_command, stat_of
from antifreeze.diagnosis import state_of
from antifreeze.doctor._terminal import closest
from antifreeze.doctor.job._observe import command_of
from antifreeze.doctor.job._wait_channels import link_of

_MAX_DIGITS = 10
_MAX_SHOWN_DIGITS = 30
_TORCH_LIBRARIES = ("libtorch", "libcudart", "antifreeze")


class NotFound(Exception):
    """There is no such job, or more than one: the message lists them. ``hint`` says what to do."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def find_job(wanted: str | None, *, proc: Path = PROC) -> int:
    """Return the process id of the job's first process."""
    if wanted is not None and wanted.removeprefix("-").isdecimal():
        pid = natural(wanted)
        if pid is None or len(wanted) > _MAX_DIGITS or not state_of(pid, proc=proc):
            raise NotFound(f"there is no process {wanted[:_MAX_SHOWN_DIGITS]}")
        return pid
    mine = _python_processes(proc)
    if wanted is not None:
        found = [pid for pid, command in mine.items() if any(wanted in word for word in command)]
        what = f"Python process with {one_line(repr(wanted))} in its command line"
    else:
        maps = {pid: read_proc_file(proc / str(pid) / "maps") for pid in mine}
        found = [pid for pid, text in maps.items() if any(library in text for library in _TORCH_LIBRARIES)]
        what = "Python process of this user that has torch loaded"
    # Workers have the same command line and libraries as the job that they belong to.
    tops = [pid for pid in found if not _ancestors(pid, proc) & set(found)]
    if len(tops) == 1:
        return tops[0]
    if not tops:
        raise NotFound(f"no job found: there is no {what}", _hint(wanted))
    rows = "".join(f"\n  {pid}  {one_line(' '.join(redact_command(mine[pid])), 100)}" for pid in tops[:20])
    raise NotFound(f"found {len(tops)} jobs; pass the process id of one:{rows}")


def _hint(wanted: str | None) -> str:
    """Return what to do about a name that no job has."""
    if wanted is None:
        return "pass the process id of the job"
    if command := closest(wanted, ("check", "report", "run")):
        return f"did you mean `antifreeze doctor {command}`?"
    if wanted.endswith(".py") and Path(wanted).is_file():
        return f"to check a script before it runs, use `antifreeze doctor check {one_line(wanted)}`"
    if wanted[:1].isdecimal():
        return f"a process id has digits only; {wanted!r} was searched for in command lines"
    return "pass the process id of the job"


def _python_processes(proc: Path) -> dict[int, tuple[str, ...]]:
    """Return the Python processes of this user, except this one and its ancestors."""
    us = _ancestors(os.getpid(), proc) | {os.getpid()}
    found = {}
    for pid in sorted(pid for entry in proc.iterdir() if (pid := natural(entry.name)) is not None):
        home = proc / str(pid)
        try:
            is_mine = home.stat().st_uid == os.getuid()
        except OSError:  # it has exited
            continue
        if not is_mine or pid in us or state_of(pid, proc=proc) in ("D", "Z", "X", ""):
            continue
        command = command_of(pid, proc=proc)
        if "python" in Path(command[0]).name or "python" in link_of(home / "exe").rpartition("/")[2]:
            found[pid] = command
    return found


def _ancestors(pid: int, proc: Path) -> set[int]:
    found: set[int] = set()
    while pid > 1 and (stat := stat_of(pid, proc=proc)) is not None and stat.parent not in found:
        pid = stat.parent  # seen before only if the id was reused meanwhile
        found.add(pid)
    return found
