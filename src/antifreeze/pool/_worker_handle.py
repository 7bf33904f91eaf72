"""One worker process as the trainer sees it: its channel, its record, what it was given to do."""

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
    """Where a worker stands in its life: REQUESTED -> LOADING -> READY, and from each of them -> GONE."""

    REQUESTED = "it was asked for"
    LOADING = "it has a process, which rebuilds the dataset"
    READY = "it makes batches"
    GONE = "its channel has closed, or it was killed"


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
    """Why we have killed it, if we have."""
    died_early: bool = False
    """Whether it was lost before it was ready."""
    sample: str | None = None
    """What it was at when it was lost, in words: the batch may be over by the time its end is explained."""
    asked_s: float = 0.0
    """When it was last given something to do, or was born."""

    @property
    def record(self) -> Heartbeat:
        """What the worker says it does."""
        return self.board.read()

    @property
    def name(self) -> str:
        """How messages call it."""
        return f"worker {self.slot} (pid {self.pid})" if self.pid else f"worker {self.slot}"

    def packed(self, task: Task, what: Any) -> Task:
        """Return the task with something in it that only the codec can send."""
        packed = pack(*dump(what, by_value=True), self.outbox)
        self.outbox.sent(packed.pieces)
        return task._replace(what=packed)

    def send(self, tasks: list[Task]) -> None:
        """Give it something to do, and say which of its memory is free again."""
        self.asked_s = time.monotonic()
        news = self.outbox.drain_updates()
        while len(news.fds) > MAX_FDS:  # more than one message can carry
            some, news.opened = news.opened[:MAX_FDS], news.opened[MAX_FDS:]
            fds, news.fds = news.fds[:MAX_FDS], news.fds[MAX_FDS:]
            self.channel.send_nowait(Tasks([], [], some, []), fds)
        self.channel.send_nowait(Tasks(tasks, self.inbox.take_done(), news.opened, news.dropped), news.fds)

    def read_stacks(self) -> str:
        """Return what faulthandler has written."""
        return read_stacks(self.stacks)

    def kill(self, why: Finding) -> None:
        """Kill it with what it has started. Its channel closes, and that is how everybody hears of it."""
        self.finding = why
        if self.pid:
            kill_group(self.pid)

    def close(self) -> None:
        """Let go of what belongs to it. Batches that it has sent stay readable. May be called twice."""
        self.state = WorkerState.GONE
        self.channel.close()
        if self.stacks >= 0:
            os.close(self.stacks)
            self.stacks = -1


def make_worker(slot: int, start: Start, payload_fds: list[int]) -> tuple[WorkerHandle, Spawn, list[int]]:
    """Return a worker to be, what to ask its server, and the descriptors that go with that."""
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
