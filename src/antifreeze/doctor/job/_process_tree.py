"""The processes of a job, read from ``/proc``."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
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
from antifreeze.diagnosis import read_proc, rss_of
from antifreeze.doctor._cgroup import memory_of
from antifreeze.doctor.job._observation import Machine, Process, Thread
from antifreeze.doctor.job._wait_channels import FileTarget, Wait, libraries_of, place_of, wait_of

_SIGCHLD_BIT = 1 << 16
_MAX_PROCESSES = 512
_MAX_THREADS = 64
_TAIL_NBYTES = 64 * 1024
_SHM_EXHAUSTED = ("No space left", "unable to allocate shared memory", "unable to mmap")
_RANK_VARIABLES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "LOCAL_RANK")
_RISKY_STATES = ("D", "Z", "X", "")
"""A process that waits for a dead disk may hold the lock that reading its command line and maps needs."""


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
        program=_link(home / "exe").rpartition("/")[2],
        command=redact_command(command_of(pid, proc=proc)) if safe else (),
        folder=_link(home / "cwd"),
        state=fields[0],
        cpu_s=_seconds(fields[11:13]),
        read_bytes=_number(moved.get("rchar", "")),
        written_bytes=_number(moved.get("wchar", "")),
        rss_nbytes=rss_of(pid, proc=proc),
        files=sum(1 for _ in _entries(home / "fd")),
        max_files=_max_files(read_proc_file(home / "limits")),
        ignores_sigchld=bool(_mask(status.get("SigIgn", "")) & _SIGCHLD_BIT),
        rank=_rank(home) if safe else None,
        threads=tuple(_threads(pid, closely and safe, proc)),
    )


def command_of(pid: int, *, proc: Path = PROC) -> tuple[str, ...]:
    """Return the command line of a process."""
    return tuple(read_proc_file(proc / str(pid) / "cmdline").rstrip("\0").split("\0"))


def read_machine(pid: int, *, proc: Path = PROC) -> Machine:
    """Return the machine as a job sees it: /dev/shm, its control group, and its last error."""
    folder = proc / str(pid) / "root/dev/shm"
    ours = tuple(f"torch_{member}_" for member in tree(pid, proc=proc))
    try:
        shm = shutil.disk_usage(folder)
    except OSError:
        shm = None
    last_error = _last_error(proc / str(pid) / "fd" / "2")
    return Machine(
        shm_nbytes=shm.total if shm else 0,
        shm_free_nbytes=shm.free if shm else 0,
        shm_failed=sum(1 for name in _entries(folder) if name.startswith(ours) and _is_empty(folder / name)),
        group=memory_of(pid, root=proc.parent),
        last_error=last_error,
        is_shm_exhausted=_is_shm_exhausted(last_error),
    )


def _last_error(stderr: Path) -> str:
    """Return how the last traceback of a queue's feeder thread ended, if stderr of a process is a file."""
    try:
        handle = open_regular(stderr)
        try:
            size = os.fstat(handle).st_size
            text = os.pread(handle, _TAIL_NBYTES, max(0, size - _TAIL_NBYTES)).decode("utf-8", "replace")
        finally:
            os.close(handle)
    except OSError:
        return ""
    lines = text.rpartition("in _feed")[2].splitlines() if "in _feed" in text else []
    return one_line(next((line for line in lines[1:] if line and not line.startswith(" ")), ""))


def _is_shm_exhausted(error: str) -> bool:
    """True if an error of torch says that shared memory is full: it has no type that would."""
    return any(phrase in error for phrase in _SHM_EXHAUSTED)


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
            path=place.path,
            mount=place.mount,
            sectors=place.sectors,
            wakes=seen.wakes,
            cpu_s=_seconds(fields[11:13]),
            idle_s=max(0.0, now_s - ran_s) if now_s and ran_s else None,
            limit_s=wait.limit_s,
            shared=wait.shared,
            owner=wait.owner,
            libraries=wait.libraries,
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
    line = next((line for line in limits.splitlines() if line.startswith("Max open files")), "")
    return _number(line.removeprefix("Max open files").split()[0]) if line else 0


def _entries(folder: Path) -> Iterator[str]:
    try:
        yield from (entry.name for entry in folder.iterdir())
    except OSError:  # it has exited, or belongs to another user
        return


def _is_empty(path: Path) -> bool:
    try:
        return path.stat().st_size == 0
    except OSError:
        return False


def _link(path: Path) -> str:
    try:
        return os.fsencode(path.readlink()).decode("utf-8", "replace")
    except OSError:
        return ""


def _number(text: str) -> int:
    return natural(text) or 0


def _seconds(ticks: list[str]) -> float:
    return sum(map(_number, ticks)) / os.sysconf("SC_CLK_TCK")


def _mask(text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:
        return 0
