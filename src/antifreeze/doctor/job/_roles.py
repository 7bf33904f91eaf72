"""The role of each process in a job, and what it is doing, by its Python lines. Pure."""

from __future__ import annotations

import enum
import itertools
from dataclasses import dataclass

from antifreeze.diagnosis import Frame, is_ours, is_standard, is_user
from antifreeze.doctor.job._observation import Process, Snapshot


class Doing(enum.Enum):
    """What a main thread is doing. The value completes a sentence about the process."""

    DATA = "waits for data from its workers"
    STARTS = "starts workers"
    ENDS = "waits for its workers to end"
    COLLECTIVE = "is in a collective with the other ranks"
    CHILDREN = "waits for processes that it started"
    IDLE = "waits for work"
    OWN = "runs the program's own code"
    UNKNOWN = "does something that is not visible"


_COLLECTIVE = ("/torch/distributed/distributed_c10d.py", "/torch/distributed/c10d_logger.py")
_BACKWARD = "/torch/autograd/graph.py"
_LOADER = "/torch/utils/data/dataloader.py"
_WORKER = "/torch/utils/data/_utils/worker.py"
_SHUTDOWN_FUNCTIONS = frozenset(
    {"_shutdown_workers", "_exit_function", "join", "_shutdown", "_wait_for_tstate_lock", "__del__"}
)
_SHUTDOWN_FILES = ("/multiprocessing/", "/threading.py", _LOADER)
_LAUNCHERS = (
    "/torch/multiprocessing/spawn.py",
    "/torch/distributed/elastic/",
    "/torch/distributed/run.py",
    "/torch/distributed/launcher/",
    "/accelerate/commands/",
    "/deepspeed/launcher/",
    "/lightning/fabric/strategies/launchers/",
    "/subprocess.py",
)
_HELPERS = ("multiprocessing.resource_tracker", "torch_shm_manager", "multiprocessing.forkserver")
_OURS_WAITING = (
    "/antifreeze/pool/",
    "/antifreeze/loaders/_epoch_run.py",
    "/antifreeze/decode/",
    "/antifreeze/datasets/_reading.py",
)


@dataclass(frozen=True, slots=True)
class Job:
    """A training process with its workers."""

    trainer: int
    workers: tuple[int, ...]
    rank: int | None


def has_frame(frames: tuple[Frame, ...], file: str, *functions: str) -> bool:
    """True if one of the frames is in this file, and in one of these functions if there are any."""
    return any(file in frame.file and (not functions or frame.function in functions) for frame in frames)


def doing(process: Process) -> Doing:
    """Return what the main thread of a process is doing."""
    frames = process.frames
    if not frames:
        return Doing.UNKNOWN
    called = tuple(itertools.takewhile(lambda frame: not is_user(frame), frames))  # by the user's innermost line
    if has_frame(frames, _WORKER, "_worker_loop") or is_our_worker(process):
        # One that waits for its next task called nothing but queues and channels.
        above = in_worker(frames)
        is_idle = all(is_standard(f) or is_ours(f) or "/torch/multiprocessing/" in f.file for f in above)
        return Doing.IDLE if above and is_idle else Doing.OWN
    if any(frame.file.endswith(_COLLECTIVE) for frame in called):
        return Doing.COLLECTIVE
    if has_frame(called, _BACKWARD) and process.rank is not None:  # where ranks exchange their gradients
        return Doing.COLLECTIVE
    if has_frame(called, _LOADER, "_try_get_data", "_get_data"):
        return Doing.DATA
    if any(part in frame.file for frame in called for part in _OURS_WAITING):
        return Doing.DATA
    if has_frame(called, "/multiprocessing/popen_") and has_frame(called, "/multiprocessing/process.py", "start"):
        return Doing.STARTS
    if any(f.function in _SHUTDOWN_FUNCTIONS and any(part in f.file for part in _SHUTDOWN_FILES) for f in called):
        return Doing.ENDS
    if has_frame(called, "/multiprocessing/pool.py") or has_frame(called, "/concurrent/futures/process.py"):
        return Doing.DATA
    nearest = next((frame.file for frame in called if not is_standard(frame) or "/subprocess.py" in frame.file), "")
    return Doing.CHILDREN if any(part in nearest for part in _LAUNCHERS) else Doing.OWN


def is_our_worker(process: Process) -> bool:
    """True if it is a worker of antifreeze."""
    return process.name.startswith("af-worker")


def is_worker(process: Process) -> bool:
    """True if it is a worker of a data loader, or another child that multiprocessing started."""
    if is_our_worker(process) or process.name.startswith("pt_data_worker"):
        return True
    if is_helper(process):
        return False
    return (
        has_frame(process.frames, _WORKER)
        or has_frame(process.frames, "/multiprocessing/process.py", "_bootstrap")
        or "--multiprocessing-fork" in process.command
    )


def is_helper(process: Process) -> bool:
    """True if it only serves the other processes: a resource tracker, a manager of shared memory, a fork server."""
    is_tracker = has_frame(process.frames, "/multiprocessing/resource_tracker.py")
    if is_tracker or process.name.startswith(("af-forkserver", "af-modules", "af-template")):
        return True
    words = " ".join(process.command)
    if not any(helper in words for helper in _HELPERS):
        return False
    # A fork of a fork server has the same command line.
    return not has_frame(process.frames, "/multiprocessing/forkserver.py", "_serve_one")


def was_forked(process: Process, parent: Process | None) -> bool:
    """True if it was forked from its parent, with everything that the parent had in use."""
    if process.frames:
        is_launched = has_frame(process.frames, "/multiprocessing/popen_fork.py", "_launch")
        return is_launched or has_frame(process.frames, "/multiprocessing/context.py", "_Popen")
    return parent is not None and bool(process.command) and process.command == parent.command and not is_helper(parent)


def find_jobs(snapshot: Snapshot) -> tuple[Job, ...]:
    """Return the training processes of a tree, each with its workers, in the order of their ranks."""
    # Until a process runs its program, it has the name and the memory of its parent.
    spawning = {process.pid for process in snapshot.processes if process.main.is_spawning}
    by_pid = {process.pid: process for process in snapshot.processes if process.parent not in spawning}
    started = tuple(by_pid.values())
    trainers = [p for p in started if p.is_python and not is_helper(p) and _is_rank(p, by_pid)]
    launchers = {p.parent for p in trainers} | {a for p in trainers for a in _ancestors(p, by_pid)}
    trainers = [p for p in trainers if p.pid not in launchers or not _is_launcher(p)]
    tops = {p.pid for p in trainers}
    owners = {p.pid: _trainer_of(p, by_pid, tops) for p in started}
    found = [Job(p.pid, tuple(pid for pid, owner in owners.items() if owner == p.pid), p.rank) for p in trainers]
    return tuple(sorted(found, key=lambda job: (job.rank is None, job.rank or 0, job.trainer)))


def _is_rank(process: Process, by_pid: dict[int, Process]) -> bool:
    """True if a process may be a trainer: it is not a worker, or it is one that has workers or ranks itself."""
    if not is_worker(process):
        parent = by_pid.get(process.parent)
        # Programs that a trainer runs for itself are not trainers; those that a launcher runs are, and other ranks.
        if parent is None or not parent.is_python or _is_launcher(parent):
            return True
        return process.rank not in (None, parent.rank) or doing(process) is Doing.COLLECTIVE
    if has_frame(process.frames, "/torch/multiprocessing/spawn.py"):
        return True
    return not has_frame(process.frames, _WORKER) and doing(process) in (Doing.DATA, Doing.COLLECTIVE)


def _is_launcher(process: Process) -> bool:
    return doing(process) in (Doing.CHILDREN, Doing.ENDS)


def _trainer_of(process: Process, by_pid: dict[int, Process], trainers: set[int]) -> int | None:
    """Return the trainer that a worker belongs to: the nearest one above it."""
    parent = by_pid.get(process.parent)
    # Where no Python lines are visible, a worker looks like a copy: older torch does not name its workers.
    is_blind = parent is not None and not parent.frames and not process.frames
    is_copy = is_blind and not is_helper(process) and was_forked(process, parent)
    if process.pid in trainers or not (is_worker(process) or is_copy):
        return None
    return next((pid for pid in _ancestors(process, by_pid) if pid in trainers), None)


def _ancestors(process: Process, by_pid: dict[int, Process]) -> list[int]:
    found = []
    parent = by_pid.get(process.parent)
    while parent is not None and parent.pid not in found:
        found.append(parent.pid)
        parent = by_pid.get(parent.parent)
    return found


def in_worker(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """Return the frames that the loop of a worker called."""
    for i, frame in enumerate(frames):
        is_ours_working = is_ours(frame) and "/antifreeze/worker/" in frame.file
        if is_ours_working or (_WORKER in frame.file and frame.function == "_worker_loop"):
            return frames[:i]
    return frames
