"""Look at a job for some seconds, from outside. It is not stopped, and nothing is written into it."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from antifreeze.doctor._cgroup import GroupMemory, memory_of
from antifreeze.doctor.job._observation import Observation, Process, Snapshot
from antifreeze.doctor.job._process_tree import read_machine, read_process, tree
from antifreeze.doctor.job._thread_stacks import THREADS, own_stacks, own_threads, read_stacks

SHORT_S, LONG_S = 3.0, 7.0
"""How long is looked: as long as it takes to be sure, between these."""
_PAUSE_S = 0.6
_AT_ONCE = 4
_MOST_STACKS = 96


class Gone(Exception):
    """The job has ended."""


def observe(
    root: int, is_enough: Callable[[Observation], bool], *, still_s: float = 0.0, oom_kills: int | None = None
) -> Observation:
    """Return what was seen of a job and of everything that it has started.

    Between the first look and the last one are at least ``SHORT_S``: what moves is seen to move, however long a look
    takes on a busy machine. It ends then if that was enough, else after ``LONG_S``. ``oom_kills``: how many there had
    been when somebody began to watch it; now, if None.
    """
    begin_s = ended_s = time.monotonic()
    machine = read_machine(root)
    before = machine.group.oom_kills if oom_kills is None else oom_kills
    snapshots: list[Snapshot] = []
    with ThreadPoolExecutor(_AT_ONCE, THREADS) as pool:
        while True:
            found = snapshot(root, pool)
            if not found.processes or found.processes[0].pid != root or found.processes[0].state in ("Z", "X"):
                raise Gone
            snapshots.append(found)
            machine = dataclasses.replace(machine, group=_since(before, memory_of(root)))
            seen = Observation(root=root, snapshots=tuple(snapshots), machine=machine, still_s=still_s)
            last_s, ended_s = ended_s, time.monotonic()
            # The next look takes as long as the last one, and must end in time, too.
            is_late = ended_s - begin_s + (ended_s - last_s) >= LONG_S
            if found.at_s - snapshots[0].at_s >= SHORT_S and (is_late or is_enough(seen)):
                return seen
            time.sleep(_PAUSE_S)


def _since(oom_kills: int, group: GroupMemory) -> GroupMemory:
    return dataclasses.replace(group, new_oom_kills=max(0, group.oom_kills - oom_kills))


def snapshot(root: int, pool: ThreadPoolExecutor) -> Snapshot:
    """Look once. A job that has ended has no processes."""
    at_s = time.monotonic()
    found = [process for pid in tree(root) if (process := read_process(pid)) is not None]
    return Snapshot(
        at_s=at_s, processes=tuple(pool.map(_with_stacks, found, [i < _MOST_STACKS for i in range(len(found))]))
    )


def _with_stacks(process: Process, wanted: bool) -> Process:
    if not wanted or _is_silent(process) or not _is_python(process):
        return process
    if process.pid == os.getpid():
        return _without_us(process)
    stacks, error = read_stacks(process.pid)
    return dataclasses.replace(process, stacks=stacks, stacks_error=error)


def _is_silent(process: Process) -> bool:
    """True if a process has no stacks, or waits in such a way that reading its memory could last as long as it does."""
    if process.state != "D":
        return process.state in ("Z", "X")
    if any(thread.state == "D" for thread in process.threads if thread.tid != process.pid):
        return True
    main = process.main
    return not (main.path or main.gives_birth or main.starves)


def _without_us(process: Process) -> Process:
    """Return this process without what the doctor does in it: reading /proc would look like progress."""
    ours = own_threads() - {process.pid}
    threads = tuple(thread for thread in process.threads if thread.tid not in ours)
    cpu_s = sum(thread.cpu_s for thread in threads)
    stacks = own_stacks().stacks
    return dataclasses.replace(process, threads=threads, cpu_s=cpu_s, read_bytes=0, written_bytes=0, stacks=stacks)


def _is_python(process: Process) -> bool:
    return any("python" in word for word in (process.program, process.name, *process.command[:1]))
