"""The trainer's handle of one worker process: its channel, its heartbeat, its assigned tasks."""

from __future__ import annotations

import enum
import os
import time
from dataclasses import dataclass, field
from typing import Any

from antifreeze.diagnosis import Finding
from antifreeze.forkserver import Spawn, kill_group
from antifreeze.ipc import (
    HEARTBEAT_NBYTES,
    Channel,
    Heartbeat,
    HeartbeatReader,
    Inbox,
    Outbox,
    create,
    dump,
    map_bytes,
    pack,
    pair,
)
from antifreeze.pool._process_watch import read_stacks
from antifreeze.pool._servers import streams, tokens
from antifreeze.worker import MAX_FDS, Start, Task, Tasks


class WorkerState(enum.Enum):
    """State of a worker: REQUESTED -> LOADING -> READY, and from each of them -> GONE."""

    REQUESTED = "requested, not spawned yet"
    LOADING = "spawned, loading the dataset"
    READY = "making batches"
    GONE = "its channel was closed, or it was killed"


@dataclass(slots=True, eq=False)
class WorkerHandle:
    """A worker. Guarded by its pool's lock."""

    slot: int
    token: int
    channel: Channel
    board: HeartbeatReader
    stacks: int
    state: WorkerState = WorkerState.REQUESTED
    pid: int = 0
    inbox: Inbox = field(default_factory=Inbox)
    outbox: Outbox = field(default_factory=Outbox)
    finding: Finding | None = None
    """Why the supervisor killed it, if it did."""
    exited_early: bool = False
    """Whether it was lost before it was ready."""
    sample: str | None = None
    """The sample it was processing when it was lost, named then: the batch may be done when the exit is explained."""
    asked_s: float = 0.0
    """When it was last sent a task, or was spawned."""

    @property
    def record(self) -> Heartbeat:
        """The worker's current heartbeat."""
        return self.board.read()

    @property
    def name(self) -> str:
        """Name of the worker in messages."""
        return f"worker {self.slot} (pid {self.pid})" if self.pid else f"worker {self.slot}"

    def packed(self, task: Task, what: Any) -> Task:
        """Return the task with ``what`` packed into shared memory."""
        packed = pack(*dump(what, by_value=True), self.outbox)
        self.outbox.sent(packed.pieces)
        return task._replace(what=packed)

    def send(self, tasks: list[Task]) -> None:
        """Send tasks, and return the shared memory that is no longer in use."""
        self.asked_s = time.monotonic()
        updates = self.outbox.drain_updates()
        while len(updates.fds) > MAX_FDS:  # more than one message can carry
            some, updates.opened = updates.opened[:MAX_FDS], updates.opened[MAX_FDS:]
            fds, updates.fds = updates.fds[:MAX_FDS], updates.fds[MAX_FDS:]
            self.channel.send_nowait(Tasks([], [], some, []), fds)
        self.channel.send_nowait(Tasks(tasks, self.inbox.take_done(), updates.opened, updates.dropped), updates.fds)

    def read_stacks(self) -> str:
        """Return the output of faulthandler."""
        return read_stacks(self.stacks)

    def kill(self, why: Finding) -> None:
        """Kill its process group. The loss is noticed when its channel closes."""
        self.finding = why
        if self.pid:
            kill_group(self.pid)

    def close(self) -> None:
        """Release its resources. Batches that it has sent stay readable. May be called twice."""
        self.state = WorkerState.GONE
        self.channel.close()
        if self.stacks >= 0:
            os.close(self.stacks)
            self.stacks = -1


def make_worker(slot: int, start: Start, payload_fds: list[int]) -> tuple[WorkerHandle, Spawn, list[int]]:
    """Return a handle, the request to spawn its process, and the descriptors to send along."""
    fds: list[int] = []
    ours, theirs = pair()
    try:
        fds.append(theirs.detach())
        board = create("antifreeze-board", HEARTBEAT_NBYTES)
        fds.append(board)
        stacks = os.memfd_create("antifreeze-stacks", os.MFD_CLOEXEC) if hasattr(os, "memfd_create") else create("", 1)
        fds.append(os.dup(stacks))
        fds += streams()
        worker = WorkerHandle(
            slot, next(tokens), Channel(ours), HeartbeatReader(map_bytes(board, HEARTBEAT_NBYTES)), stacks
        )
    except BaseException:
        ours.close()
        for fd in fds + payload_fds:
            os.close(fd)
        raise
    worker.channel.send_nowait(start, payload_fds)
    return worker, Spawn(worker.token, slot), fds
