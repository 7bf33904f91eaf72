"""Observes a job for a few seconds, from outside: its processes in ``/proc``, their stacks, and the machine.

The job is not stopped, and nothing is written into it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from antifreeze.core import (
    PROC,
    children_of,
    natural,
    one_line,
    open_regular,
    pairs_of,
    read_proc_file,
    redact_command,
    seconds,
)
from antifreeze.diagnosis import memory_groups, read_proc, rss_of
from antifreeze.doctor.job._observation import GroupMemory, Machine, Observation, Process, Snapshot, Thread
from antifreeze.doctor.job._thread_stacks import THREADS, own_stacks, own_threads, read_stacks
from antifreeze.doctor.job._wait_channels import FileTarget, Wait, libraries_of, link_of, place_of, wait_of

MIN_OBSERVATION_S, MAX_OBSERVATION_S = 3.0, 7.0
"""The observation takes as long as needed to be sure, between these."""
_SNAPSHOT_INTERVAL_S = 0.6
_NUM_THREADS = 4
_MAX_STACKS = 96
_SIGCHLD_BIT = 1 << 16
_MAX_PROCESSES = 512
_MAX_THREADS = 64
_TAIL_NBYTES = 64 * 1024
_SHM_EXHAUSTED = ("No space left", "unable to allocate shared memory", "unable to mmap")
_RANK_VARIABLES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "LOCAL_RANK")
_RISKY_STATES = ("D", "Z", "X", "")
"""A process that waits for a dead disk may hold the lock that reading its command line and maps needs."""
_UNLIMITED = 1 << 60
_LIMITS = ("memory.max", "memory.limit_in_bytes")
_USED = ("memory.current", "memory.usage_in_bytes")
_EVENTS = ("memory.events", "memory.oom_control")


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
            group = memory_of(root)
            group = dataclasses.replace(group, new_oom_kills=max(0, group.oom_kills - before))
            machine = dataclasses.replace(machine, group=group)
            seen = Observation(root=root, snapshots=tuple(snapshots), machine=machine, still_s=still_s)
            last_s, ended_s = ended_s, time.monotonic()
            # The next snapshot takes as long as the last one, and must end in time, too.
            is_late = ended_s - begin_s + (ended_s - last_s) >= MAX_OBSERVATION_S
            if found.at_s - snapshots[0].at_s >= MIN_OBSERVATION_S and (is_late or is_enough(seen)):
                return seen
            time.sleep(_SNAPSHOT_INTERVAL_S)


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


def tree(root: int, *, proc: Path = PROC) -> list[int]:
    """Return a process and all below it, parents before their children."""
    found = [root]
    for pid in found:
        found += [child for child in children_of(pid, proc=proc) if child not in found]
        if len(found) > _MAX_PROCESSES:
            break
    return found[:_MAX_PROCESSES]


def read_process(pid: int, *, closely: bool = True, proc: Path = PROC) -> Process | None:
    """Return what ``/proc`` says about a process, or None if it exited; ``closely``: with its main thread's wait."""
    home = proc / str(pid)
    fields = read_proc_file(home / "stat").rpartition(")")[2].split()
    if len(fields) < 15:
        return None
    status = pairs_of(read_proc_file(home / "status"))
    moved = pairs_of(read_proc_file(home / "io"))
    safe = fields[0] not in _RISKY_STATES
    return Process(
        pid=pid,
        parent=_number(fields[1]),
        name=read_proc_file(home / "comm").strip(),
        program=link_of(home / "exe").rpartition("/")[2],
        command=redact_command(command_of(pid, proc=proc)) if safe else (),
        folder=link_of(home / "cwd"),
        state=fields[0],
        cpu_s=_seconds(fields[11:13]),
        read_bytes=_number(moved.get("rchar", "")),
        written_bytes=_number(moved.get("wchar", "")),
        rss_nbytes=rss_of(pid, proc=proc),
        files=sum(1 for _ in _entries(home / "fd")),
        max_files=_max_files(read_proc_file(home / "limits")),
        ignores_sigchld=bool(_hexadecimal(status.get("SigIgn", "")) & _SIGCHLD_BIT),
        rank=_rank(home) if safe else None,
        threads=tuple(_threads(pid, closely and safe, proc)),
    )


def command_of(pid: int, *, proc: Path = PROC) -> tuple[str, ...]:
    """Return the command line of a process."""
    return tuple(read_proc_file(proc / str(pid) / "cmdline").rstrip("\0").split("\0"))


def read_machine(pid: int, *, proc: Path = PROC) -> Machine:
    """Return the machine as a job sees it: /dev/shm, its control group, and its last error."""
    folder = proc / str(pid) / "root/dev/shm"
    try:
        shm = shutil.disk_usage(folder)
    except OSError:
        shm = None
    last_error = _last_error(proc / str(pid) / "fd" / "2")
    return Machine(
        shm_nbytes=shm.total if shm else 0,
        shm_free_nbytes=shm.free if shm else 0,
        shm_failed=_count_empty(folder, tuple(f"torch_{member}_" for member in tree(pid, proc=proc))),
        group=memory_of(pid, root=proc.parent),
        last_error=last_error,
        # torch has no type of error that would say so.
        is_shm_exhausted=any(phrase in last_error for phrase in _SHM_EXHAUSTED),
    )


def _count_empty(folder: Path, prefixes: tuple[str, ...]) -> int:
    count = 0
    for name in _entries(folder):
        with contextlib.suppress(OSError):  # it was removed meanwhile
            count += name.startswith(prefixes) and (folder / name).stat().st_size == 0
    return count


def _last_error(stderr: Path) -> str:
    """Return how the last traceback of a queue's feeder thread ended, if stderr of a process is a file."""
    try:
        with os.fdopen(open_regular(stderr), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_NBYTES))
            text = file.read(_TAIL_NBYTES).decode("utf-8", "replace")
    except OSError:
        return ""
    lines = text.rpartition("in _feed")[2].splitlines() if "in _feed" in text else []
    return one_line(next((line for line in lines[1:] if line and not line.startswith(" ")), ""))


def _threads(pid: int, closely: bool, proc: Path) -> Iterator[Thread]:
    libraries = libraries_of(pid, proc=proc) if closely else ()
    now_s = _ran_s(proc / "thread-self" / "sched")
    names = (natural(entry) for entry in _entries(proc / str(pid) / "task"))
    tids = sorted(tid for tid in names if tid is not None)[:_MAX_THREADS]
    looks = {tid: read_proc(pid, tid, proc=proc) for tid in tids}
    # Reading its memory blocks while one of its threads waits inside the kernel to change the mappings.
    may_read = not any(seen.state == "D" for tid, seen in looks.items() if tid != pid)
    for tid in tids:
        home = proc / str(pid) / "task" / str(tid)
        seen = looks[tid]
        # The main thread is described in full; of the others it matters only whether they make progress.
        wait = wait_of(pid, seen, libraries, proc=proc) if closely and tid == pid else Wait()
        place = place_of(pid, seen, may_read=may_read, proc=proc) if tid == pid else FileTarget()
        ran_s = _ran_s(home / "sched")
        fields = read_proc_file(home / "stat").rpartition(")")[2].split()
        yield Thread(
            tid=tid,
            name=read_proc_file(home / "comm").strip(),
            state=seen.state,
            wchan=seen.wchan,
            syscall=seen.syscall,
            fd=seen.syscall_fd,
            target=seen.syscall_target.text,
            target_kind=seen.syscall_target.kind,
            wakes=seen.wakes,
            cpu_s=_seconds(fields[11:13]),
            idle_s=max(0.0, now_s - ran_s) if now_s and ran_s else None,
            **place._asdict(),
            **wait._asdict(),
        )


def _ran_s(path: Path) -> float:
    """Return when a thread last ran, by the clock of the scheduler; 0 where the kernel does not say."""
    if path.parent.name == "thread-self":
        time.sleep(0.002)  # so that this thread itself has just started to run
    ran = pairs_of(read_proc_file(path)).get("se.exec_start", "")
    return seconds(ran.removeprefix(":"), 0.0) / 1000


def _rank(home: Path) -> int | None:
    """Return the rank that the launcher assigned to a process. Nothing else of the environment is kept."""
    pairs = dict(word.partition("=")[::2] for word in read_proc_file(home / "environ").split("\0"))
    said = (natural(pairs.get(name, "")) for name in _RANK_VARIABLES)
    return next((rank for rank in said if rank is not None), None)


def _max_files(limits: str) -> int:
    words = limits.partition("Max open files")[2].split()
    return _number(words[0]) if words else 0


def _entries(folder: Path) -> Iterator[str]:
    try:
        yield from (entry.name for entry in folder.iterdir())
    except OSError:  # it has exited, or belongs to another user
        return


def _number(text: str) -> int:
    return natural(text) or 0


def _seconds(ticks: list[str]) -> float:
    return sum(map(_number, ticks)) / os.sysconf("SC_CLK_TCK")


def _hexadecimal(text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:
        return 0


def memory_of(pid: int, *, root: Path = Path("/")) -> GroupMemory:
    """Return the memory limits and use of a process's groups. What cannot be read is 0."""
    groups = memory_groups(pid, root=root)
    found = ((group, _first_number(group, _LIMITS)) for group in groups)
    limits = [(_used(group), limit) for group, limit in found if limit is not None and limit < _UNLIMITED]
    used_nbytes, limit_nbytes = max(limits, key=lambda row: row[0] / max(1, row[1]), default=(0, 0))
    read = ((group, _numbers(group / name)) for group in groups for name in _EVENTS)
    own, events = next(((group, events) for group, events in read if "oom_kill" in events), (None, {}))
    # The root group of a machine counts the kills of all jobs; that of a container has a limit.
    is_top = own is not None and own.parent not in groups and not limits
    return GroupMemory(
        limit_nbytes=limit_nbytes,
        used_nbytes=used_nbytes,
        oom_kills=0 if is_top else events.get("oom_kill", 0),
        waits=events.get("under_oom", 0) > 0,
    )


def _used(group: Path) -> int:
    stat = _numbers(group / "memory.stat")
    # Version 1 has numbers with those of the groups below under other names.
    cached = sum(stat.get(f"total_{name}", stat.get(name, 0)) for name in ("inactive_file", "active_file"))
    return max(0, (_first_number(group, _USED) or 0) - cached)


def _first_number(group: Path, names: Iterable[str]) -> int | None:
    numbers = (natural(read_proc_file(group / name)) for name in names)
    return next((number for number in numbers if number is not None), None)


def _numbers(path: Path) -> dict[str, int]:
    pairs = pairs_of(read_proc_file(path)).items()
    return {name: number for name, text in pairs if (number := natural(text)) is not None}
