"""Jobs that were never run: processes, threads and lines, put together as the doctor would have seen them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from antifreeze.diagnosis import Frame
from antifreeze.doctor.job._observation import Machine, Observation, Process, Snapshot, Stack, Thread

STANDARD = "/usr/lib/python3.11"
SITE = f"{STANDARD}/site-packages"
TORCH = f"{SITE}/torch"
OURS = f"{SITE}/antifreeze"
SCRIPT = "/home/me/train.py"
PYTHON = ("python", "train.py")
Later = Callable[[int, Process], Process | None]


def at(file: str, function: str, line: int = 7) -> Frame:
    """Return a line."""
    return Frame(file=file, line=line, function=function)


MAIN = (at(SCRIPT, "main", 90), at(SCRIPT, "<module>", 99))
POLL = (at(f"{STANDARD}/selectors.py", "select"), at(f"{STANDARD}/multiprocessing/connection.py", "wait"))
QUEUE = (*POLL, at(f"{STANDARD}/multiprocessing/queues.py", "get"))
_LOADER = f"{TORCH}/utils/data/dataloader.py"
GETS_DATA = (*QUEUE, at(_LOADER, "_try_get_data"), at(_LOADER, "_get_data"), at(_LOADER, "__next__"), *MAIN)
STARTS = (
    at(f"{STANDARD}/multiprocessing/popen_spawn_posix.py", "_launch"),
    at(f"{STANDARD}/multiprocessing/process.py", "start"),
    at(_LOADER, "__init__"),
    *MAIN,
)
ENDS = (
    at(f"{STANDARD}/multiprocessing/popen_fork.py", "poll"),
    at(f"{STANDARD}/multiprocessing/process.py", "join"),
    at(_LOADER, "_shutdown_workers"),
    *MAIN,
)
BARRIER = (at(f"{TORCH}/distributed/distributed_c10d.py", "barrier"), *MAIN)
REDUCE = (at(f"{TORCH}/distributed/distributed_c10d.py", "all_reduce"), *MAIN)
LAUNCHES = (
    at(f"{TORCH}/distributed/elastic/agent/server/api.py", "_invoke_run"),
    at(f"{TORCH}/distributed/run.py", "main"),
)
SPAWNS = (*POLL, at(f"{TORCH}/multiprocessing/spawn.py", "join"), *MAIN)
SPAWNED = (at(f"{TORCH}/multiprocessing/spawn.py", "_wrap"), at(f"{STANDARD}/multiprocessing/process.py", "_bootstrap"))
BORN = (
    at(f"{STANDARD}/multiprocessing/process.py", "run"),
    at(f"{STANDARD}/multiprocessing/process.py", "_bootstrap"),
    at(f"{STANDARD}/multiprocessing/popen_fork.py", "_launch"),
)
LOOP = (at(f"{TORCH}/utils/data/_utils/worker.py", "_worker_loop"), *BORN)
IDLE = (*QUEUE, *LOOP)
OUR_LOOP = (at(f"{OURS}/worker/_main.py", "serve"),)


def loads(*frames: Frame) -> tuple[Frame, ...]:
    """Return the lines of a worker that is in the dataset."""
    return (*frames, at(f"{TORCH}/utils/data/_utils/fetch.py", "fetch"), *LOOP)


LOADS = loads(at(SCRIPT, "__getitem__", 42))


def process(
    pid: int,
    frames: tuple[Frame, ...] = (),
    *,
    parent: int = 1,
    name: str = "python",
    state: str = "S",
    command: tuple[str, ...] = PYTHON,
    program: str = "python3.11",
    thread: dict[str, Any] | None = None,
    **more: Any,
) -> Process:
    """Return a process whose main thread stands there; in ``poll`` without a limit unless ``thread`` says otherwise."""
    said = {"syscall": "poll", "wchan": "poll_schedule_timeout", "state": state, **(thread or {})}
    stacks = (Stack(tid=pid, name="MainThread", frames=frames),) if frames else ()
    return Process(
        pid=pid,
        parent=parent,
        name=name,
        state=state,
        command=command,
        program=program,
        threads=(Thread(tid=pid, name=name, **said), *more.pop("others", ())),
        stacks=stacks,
        folder="/home/me",
        **more,
    )


def trainer(frames: tuple[Frame, ...] = GETS_DATA, pid: int = 100, **more: Any) -> Process:
    """Return a training process."""
    return process(pid, frames, **more)


def worker(frames: tuple[Frame, ...] = IDLE, pid: int = 101, parent: int = 100, **more: Any) -> Process:
    """Return a worker of torch's loader."""
    return process(pid, frames, parent=parent, name="pt_data_worker", **more)


def moving(*pids: int) -> Later:
    """Return how these processes go on from one look to the next: they compute."""

    def later(look: int, seen: Process) -> Process:
        return dataclasses.replace(seen, cpu_s=seen.cpu_s + look) if seen.pid in pids else seen

    return later


def watched(
    *processes: Process, looks: int = 4, every_s: float = 2.0, later: Later = lambda _, seen: seen, **more: Any
) -> Observation:
    """Return what would be seen of processes: nothing moves unless ``later`` says how."""
    snapshots = tuple(
        Snapshot(
            at_s=look * every_s, processes=tuple(now for seen in processes if (now := later(look, seen)) is not None)
        )
        for look in range(looks)
    )
    return Observation(root=processes[0].pid, snapshots=snapshots, **{"machine": BIG, **more})


BIG = Machine(shm_nbytes=8 << 30, shm_free_nbytes=8 << 30)
