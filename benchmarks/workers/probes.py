"""What is not a rate: memory that workers share, the time to cure a fault, the CPU that supervision takes."""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

from workers.cases import CASES
from workers.one import make_loader, take

RATE_PER_S = 1_000
_STEPS, _TRIES = 10, 3_000


# -- memory ------------------------------------------------------------------------------------------------------------


def memory(loader: str, what: str, options: argparse.Namespace) -> dict[str, Any]:
    """PSS of the workers, and of what stands between them and the trainer, after a whole pass over the array."""
    del options
    import torch

    from measure import descendants, pss_nbytes

    torch.zeros(1)
    case = CASES["big"]
    dataset = case.make()
    before_mb = pss_nbytes("self") / 1e6
    iterator = iter(make_loader(loader, dataset, num_workers=int(what), **case.options))
    # All but the end, where workers may leave.
    for _ in range(len(dataset) // case.options["batch_size"] - 50):
        next(iterator)
    names = {pid: Path(f"/proc/{pid}/comm").read_text().strip() for pid in descendants()}
    sizes = [(names[pid], pss_nbytes(pid) / 1e6) for pid in names]
    return {
        "below_mb": sum(size for _, size in sizes),
        "each": sizes,
        "array_below_mb": sum(mapped_nbytes(pid, "antifreeze-dataset") for pid in names) / 1e6,
        "trainer_before_mb": before_mb,
        "trainer_mb": pss_nbytes("self") / 1e6,
        "array_mb": dataset.nbytes / 1e6,
    }


def mapped_nbytes(pid: int, name: str) -> int:
    """PSS of the mappings of one process whose name holds this."""
    total, counts = 0, False
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
            if "-" in line.partition(" ")[0]:
                counts = name in line
            elif counts and line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total


# -- faults ------------------------------------------------------------------------------------------------------------


def our_workers() -> dict[str, int]:
    """Our worker processes that are not on their way out, by name."""
    from measure import descendants

    found = {}
    for pid in descendants():
        with contextlib.suppress(OSError):
            name, state = (Path(f"/proc/{pid}/{file}").read_text() for file in ("comm", "stat"))
            if name.startswith("af-worker") and state.rpartition(")")[2].split()[0] not in "TZX":
                found[name.strip()] = pid
    return found


def cure(loader: str, what: str, options: argparse.Namespace) -> dict[str, Any]:
    """The longest wait for a batch after a worker was killed or stopped, again and again."""
    logging.getLogger("antifreeze").setLevel(logging.ERROR)
    case = CASES["cure"]
    more = {"stall_limit": 2.0} if what == "stop" else {}
    made = make_loader(loader, case.make(), num_workers=2, max_restarts=10_000, **more, **case.options)
    iterator = iter(made)
    take(iterator, 1.0)
    gaps, undisturbed = [], []
    for number in range(options.faults):
        undisturbed.append(longest_wait_s(iterator, 1.0))
        os.kill(our_workers()[f"af-worker-{number % 2}"], signal.SIGKILL if what == "kill" else signal.SIGSTOP)
        gaps.append(longest_wait_s(iterator, 1.0 if what == "kill" else 3.5))
    # Who was not noticed was not replaced.
    replaced = len(made.report(io.StringIO()).restarts)
    return {"gaps_s": gaps, "undisturbed_s": undisturbed, "replaced": replaced}


def longest_wait_s(iterator: Any, seconds: float) -> float:
    """The longest wait for a batch within some seconds."""
    perf_counter = time.perf_counter
    longest_s, before_s = 0.0, perf_counter()
    stop_s = before_s + seconds
    while before_s < stop_s:
        next(iterator)
        now_s = perf_counter()
        longest_s, before_s = max(longest_s, now_s - before_s), now_s
    return longest_s


# -- supervision -------------------------------------------------------------------------------------------------------


def watch(loader: str, what: str, options: argparse.Namespace) -> dict[str, Any]:
    """CPU seconds a second of everything that is there only to notice faults, at 1,000 batches a second.

    supervisor: its thread, less the batches that it takes in and the tasks that it gives out while the trainer sleeps:
    somebody has to do that. look: `PoolEpoch.check` in the trainer's thread, with the clock around it. fork server: its
    process.
    notes: what workers write down about themselves, as the difference between batches with and without a board.
    """
    from antifreeze.pool import _pool, _pool_epoch

    batch_size = int(what)
    iterator = iter(make_loader(loader, CASES["steady"].make(), num_workers=2, batch_size=batch_size))
    take(iterator, 1.0)
    paced(iterator, 1.0)
    supervisor = next(thread for thread in threading.enumerate() if thread.name == "antifreeze-supervisor")
    looking, work = Clock(supervisor, of_it=False), Clock(supervisor, of_it=True)
    looking.attach(_pool_epoch.PoolEpoch, "check")
    for owner, name in ((_pool.Pool, "receive"), (_pool_epoch.PoolEpoch, "assign")):
        work.attach(owner, name)
    places = {
        "keeper": f"/proc/self/task/{supervisor.native_id}/schedstat",
        "nursery": f"/proc/{nursery_pid()}/schedstat",
    }
    before = {name: ran_s(place) for name, place in places.items()}
    began_s = time.perf_counter()
    count = paced(iterator, options.seconds)
    wall_s = time.perf_counter() - began_s
    spent = {name: ran_s(place) - before[name] for name, place in places.items()}
    return {
        "batches_per_s": count / wall_s,
        "keeper": (spent["keeper"] - work.spent_s) / wall_s,
        "keeper_with_batches": spent["keeper"] / wall_s,
        "look": looking.spent_s / wall_s,
        "nursery": spent["nursery"] / wall_s,
        "notes": notes_s(batch_size) * RATE_PER_S,
    }


class Clock:
    """The CPU seconds of some methods, in one thread or in all others."""

    def __init__(self, thread: threading.Thread, *, of_it: bool) -> None:
        self._thread, self._of_it = thread, of_it
        self._running = False
        self.spent_s = 0.0

    def attach(self, owner: Any, name: str) -> None:
        method = getattr(owner, name)

        def timed(*arguments: Any) -> Any:
            # One method may call another: only the outermost counts.
            if self._running or (threading.current_thread() is self._thread) != self._of_it:
                return method(*arguments)
            self._running, began_s = True, time.thread_time()
            try:
                return method(*arguments)
            finally:
                self.spent_s += time.thread_time() - began_s
                self._running = False

        setattr(owner, name, timed)


def paced(iterator: Any, seconds: float) -> int:
    """Take batches at a fixed rate."""
    began_s = time.perf_counter()
    for count in range(int(seconds * RATE_PER_S)):
        left_s = began_s + count / RATE_PER_S - time.perf_counter()
        if left_s > 0:
            time.sleep(left_s)
        next(iterator)
    return int(seconds * RATE_PER_S)


def ran_s(place: str) -> float:
    """How long a thread or a process with one thread has run."""
    return int(Path(place).read_text().split()[0]) / 1e9


def nursery_pid() -> int:
    from measure import descendants

    return next(pid for pid in descendants() if Path(f"/proc/{pid}/comm").read_text().strip() == "af-forkserver")


def notes_s(batch_size: int) -> float:
    """Seconds a batch that a worker spends on writing down what it does: the least of many, in this process."""
    from antifreeze.ipc import HEARTBEAT_NBYTES, HeartbeatWriter, Stage, create, map_bytes
    from antifreeze.worker import MapProgram, Task, TaskContext

    fd = create("bench-board", HEARTBEAT_NBYTES)
    board = HeartbeatWriter(map_bytes(fd, HEARTBEAT_NBYTES))
    os.close(fd)
    program = MapProgram(CASES["steady"].make(), None, batched=True, worker_init_fn=None)
    indices = list(range(batch_size))

    def make(context: Any) -> float:
        began_s = time.thread_time()
        for step in range(_STEPS):
            context.clear(step)
            program.make(Task(epoch=0, step=step, seed=1, what=indices), context)
            context.at(Stage.PACK)
        return (time.thread_time() - began_s) / _STEPS

    desks = [TaskContext(each, slot=0, num_workers=1, on_error="raise") for each in (board, None)]
    least = [min(times) for times in zip(*([make(context) for context in desks] for _ in range(_TRIES)), strict=True)]
    return least[0] - least[1]
