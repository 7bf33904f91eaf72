"""Observes a job for a few seconds, from outside. It is not stopped, and nothing is written into it."""

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

MIN_OBSERVATION_S, MAX_OBSERVATION_S = 3.0, 7.0
"""The observation takes as long as needed to be sure, between these."""
_SNAPSHOT_INTERVAL_S = 0.6
_NUM_THREADS = 4
_MAX_STACKS = 96


class Gone(Exception):
    """The job has ended."""


def observe(
    root: int, is_enough: Callable[[Observation], bool], *, still_s: float = 0.0, oom_kills: int | None = None
) -> Observation:
    """Return what was observed of a job and of everything that it started.

    The first and the last snapshot are at least ``MIN_OBSERVATION_S`` apart, however long a snapshot takes on a busy
    machine, so that progress is visible. The observation ends then if that is enough, else after
    ``MAX_OBSERVATION_S``. ``oom_kills``: their number when the job started to be watched; None: it is counted now.
    """
    begin_s = ended_s = time.monotonic()
    machine = read_machine(root)
    before = machine.group.oom_kills if oom_kills is None else oom_kills
    snapshots: list[Snapshot] = []
    with ThreadPoolExecutor(_NUM_THREADS, THREADS) as pool:
        while True:
            found = snapshot(root, pool)
            if not found.processes or found.processes[0].pid != root or found.processes[0].state in ("Z", "X"):
                raise Gone
            snapshots.append(found)
            machine = dataclasses.replace(machine, group=_since(before, memory_of(root)))
            seen = Observation(root=root, snapshots=tuple(snapshots), machine=machine, still_s=still_s)
            last_s, ended_s = ended_s, time.monotonic()
            # The next snapshot takes as long as the last one, and must end in time, too.
            is_late = ended_s - begin_s + (ended_s - last_s) >= MAX_OBSERVATION_S
            if found.at_s - snapshots[0].at_s >= MIN_OBSERVATION_S and (is_late or is_enough(seen)):
                return seen
            time.sleep(_SNAPSHOT_INTERVAL_S)


def _since(oom_kills: int, group: GroupMemory) -> GroupMemory:
    return dataclasses.replace(group, new_oom_kills=max(0, group.oom_kills - oom_kills))


def snapshot(root: int, pool: ThreadPoolExecutor) -> Snapshot:
    """Return the processes of a job now: none if it has ended."""
    at_s = time.monotonic()
    found = [process for pid in tree(root) if (process := read_process(pid)) is not None]
    return Snapshot(
        at_s=at_s, processes=tuple(pool.map(_with_stacks, found, [i < _MAX_STACKS for i in range(len(found))]))
    )


def _with_stacks(process: Process, wanted: bool) -> Process:
    if not wanted or _is_silent(process) or not process.is_python:
        return process
    if process.pid == os.getpid():
        return _without_doctor(process)
    stacks, error = read_stacks(process.pid)
    return dataclasses.replace(process, stacks=stacks, stacks_error=error)


def _is_silent(process: Process) -> bool:
    """True if a process has no stacks, or waits in a way that would block a reader of its memory as well."""
    if process.state != "D":
        return process.state in ("Z", "X")
    if any(thread.state == "D" for thread in process.threads if thread.tid != process.pid):
        return True
    main = process.main
    return not (main.path or main.is_spawning or main.is_out_of_memory)


def _without_doctor(process: Process) -> Process:
    """Return this process without what the doctor does in it: reading /proc would look like progress."""
    ours = own_threads() - {process.pid}
    threads = tuple(thread for thread in process.threads if thread.tid not in ours)
    cpu_s = sum(thread.cpu_s for thread in threads)
    stacks = own_stacks().stacks
    return dataclasses.replace(process, threads=threads, cpu_s=cpu_s, read_bytes=0, written_bytes=0, stacks=stacks)
