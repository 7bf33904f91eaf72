"""The trainer's handle of one worker process: its channel, its heartbeat, its assigned tasks.

States of a worker, and the events that change them::

    REQUESTED ──spawned──▶ LOADING ──loaded──▶ READY
        │                     │                  │
        └────────lost─────────┴───────lost───────┴──▶ GONE

Two processes report: the fork server that the worker was spawned, the worker itself that it has loaded the dataset. The
second message may arrive first, so ``loaded`` also leads from REQUESTED to READY. A message that arrives too late
changes nothing: GONE is final, and the pool spawns a replacement as a new handle.
"""

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
from antifreeze.pool._servers import streams, tokens
from antifreeze.worker import MAX_FDS, Start, Task, Tasks


class WorkerState(enum.Enum):
    """What is known of a worker."""

    REQUESTED = "requested, not spawned yet"
    LOADING = "spawned, loading the dataset"
    READY = "making batches"
    GONE = "its channel was closed, or it was killed"


class WorkerEvent(enum.Enum):
    """What changes the state of a worker."""

    SPAWNED = "the fork server has forked it"
    LOADED = "it has loaded the dataset"
    LOST = "it exited, was killed, or is no longer needed"


NEXT: dict[tuple[WorkerState, WorkerEvent], WorkerState] = {
    (WorkerState.REQUESTED, WorkerEvent.SPAWNED): WorkerState.LOADING,
    (WorkerState.REQUESTED, WorkerEvent.LOADED): WorkerState.READY,
    (WorkerState.REQUESTED, WorkerEvent.LOST): WorkerState.GONE,
    (WorkerState.LOADING, WorkerEvent.LOADED): WorkerState.READY,
    (WorkerState.LOADING, WorkerEvent.LOST): WorkerState.GONE,
    (WorkerState.READY, WorkerEvent.LOST): WorkerState.GONE,
}
"""The state after an event; any other pair leaves the state as it is."""


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
    leak: Finding | None = None
    """Why it is replaced when it has returned its tasks, if it holds too much memory."""
    exited_early: bool = False
    """Whether it was lost before it was ready."""
    sample: str | None = None
    """The sample it was processing when it was lost, named then: the batch may be done when the exit is explained."""
    asked_s: float = 0.0
    """When it was last sent a task, or was spawned."""

    def apply(self, event: WorkerEvent) -> WorkerState:
        """Change the state, and return the one before."""
        before = self.state
        self.state = NEXT.get((before, event), before)
        return before

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

    def kill(self, why: Finding) -> None:
        """Kill its process group. The loss is noticed when its channel closes."""
        self.finding = why
        if self.pid:
            kill_group(self.pid)

    def close(self) -> None:
        """Release its resources. Batches that it has sent stay readable. May be called twice."""
        self.apply(WorkerEvent.LOST)
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
