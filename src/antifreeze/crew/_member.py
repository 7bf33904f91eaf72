"""One worker process as the trainer sees it: its channel, its record, what it was given to do."""

from __future__ import annotations

import contextlib
import enum
import itertools
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from antifreeze.child import DUMP_SIGNAL, MOST_FDS, Start, Task, Tasks
from antifreeze.core import Deadline
from antifreeze.nursery import Bear, kill_group
from antifreeze.supervise import Finding
from antifreeze.transport import (
    BOARD_NBYTES,
    BoardReader,
    Channel,
    Inbox,
    Outbox,
    Record,
    create,
    dump,
    map_bytes,
    pack,
    pair,
)

_tokens = itertools.count(1)
_STACK_NBYTES = 1 << 16
_DUMP_S = 0.5


class State(enum.Enum):
    """Where a worker stands in its life: UNBORN -> LOADING -> READY, and from each of them -> GONE."""

    UNBORN = "it was asked for"
    LOADING = "it has a process, which rebuilds the dataset"
    READY = "it makes batches"
    GONE = "its channel has closed, or it was killed"


@dataclass(slots=True, eq=False)
class Member:
    """A worker. Guarded by its crew's lock."""

    slot: int
    token: int
    channel: Channel
    board: BoardReader
    stacks: int
    state: State = State.UNBORN
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
    def record(self) -> Record:
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
        news = self.outbox.take_news()
        while len(news.fds) > MOST_FDS:  # more than one message can carry
            some, news.opened = news.opened[:MOST_FDS], news.opened[MOST_FDS:]
            fds, news.fds = news.fds[:MOST_FDS], news.fds[MOST_FDS:]
            self.channel.send_nowait(Tasks([], [], some, []), fds)
        self.channel.send_nowait(Tasks(tasks, self.inbox.take_done(), news.opened, news.dropped), news.fds)

    def ask_for_stacks(self) -> str:
        """Return where its threads stand, or nothing: a process that is stopped cannot say it."""
        if not self.pid:
            return ""
        before = os.fstat(self.stacks).st_size
        with contextlib.suppress(OSError):
            os.kill(self.pid, DUMP_SIGNAL)
        deadline, size = Deadline.after(_DUMP_S), before
        while not deadline.passed:
            time.sleep(0.01)
            now = os.fstat(self.stacks).st_size
            if now == size > before:  # it has begun to write, and has stopped
                break
            size = now
        return self.read_stacks(before)

    def read_stacks(self, start: int = 0) -> str:
        """Return what faulthandler has written since."""
        with contextlib.suppress(OSError):
            return os.pread(self.stacks, _STACK_NBYTES, start).decode(errors="replace")
        return ""

    def kill(self, why: Finding) -> None:
        """Kill it with what it has started. Its channel closes, and that is how everybody hears of it."""
        self.finding = why
        if self.pid:
            kill_group(self.pid)

    def close(self) -> None:
        """Let go of what belongs to it. Batches that it has sent stay readable. May be called twice."""
        self.state = State.GONE
        self.channel.close()
        if self.stacks >= 0:
            os.close(self.stacks)
            self.stacks = -1


def make_member(slot: int, start: Start, parcel_fds: list[int]) -> tuple[Member, Bear, list[int]]:
    """Return a worker to be, what to ask the nursery, and the descriptors that go with that."""
    fds: list[int] = []
    ours, theirs = pair()
    try:
        fds.append(theirs.detach())
        board = create("antifreeze-board", BOARD_NBYTES)
        fds.append(board)
        stacks = os.memfd_create("antifreeze-stacks", os.MFD_CLOEXEC) if hasattr(os, "memfd_create") else create("", 1)
        fds.append(os.dup(stacks))
        member = Member(slot, next(_tokens), Channel(ours), BoardReader(map_bytes(board, BOARD_NBYTES)), stacks)
    except BaseException:
        ours.close()
        for fd in fds + parcel_fds:
            os.close(fd)
        raise
    member.channel.send_nowait(start, parcel_fds)
    return member, Bear(member.token, slot), fds


def surroundings() -> dict[str, Any]:
    """Return what a worker takes over from this process, as it is now."""
    cwd = "/"
    with contextlib.suppress(OSError):  # it was removed
        cwd = str(Path.cwd())
    path = [os.fspath(folder) for folder in sys.path]
    return {"sys_path": path, "argv": list(sys.argv), "cwd": cwd, "environ": dict(os.environ)}
