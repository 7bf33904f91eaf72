"""Decoder threads in the trainer, and the iterator that delivers their blocks in order.

Arrow decodes without the interpreter lock, so threads use all cores, nothing is copied between processes, and nothing
is inherited by a fork, because there is none.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from functools import partial

from antifreeze.core import ConfigError, Deadline, Location, Stalled
from antifreeze.decode._block import Decoded
from antifreeze.decode._produce import Producer, Release
from antifreeze.decode._thread_progress import DONE, WAIT, StallTimer, ThreadProgress, location_of, spent
from antifreeze.plan import FlightLimits, InFlight, ReadTask, may_begin, may_decode, may_start

_WAIT_INTERVAL_S = 0.5  # how often a waiting thread checks again, in case a wakeup was lost
_JOIN_TIMEOUT_S = 0.8  # how long closing an epoch waits for its threads
_WAKES = 64  # how often per round threads are woken because rows were taken


class _Epoch:
    """State shared by the consumer and the threads. Guarded by ``lock``; ``closed`` is also read without it."""

    def __init__(self, producer: Producer, limits: FlightLimits, row_nbytes: int) -> None:
        self.producer, self.order = producer, producer.order
        self.limits, self.row_nbytes = limits, row_nbytes
        self.lock = threading.Lock()
        self.room = threading.Condition(self.lock)
        """Notified when something was taken: threads may have room again."""
        self.ready = threading.Condition(self.lock)
        """Notified when a block of the front round is ready, or the round is complete or has failed."""
        self.blocks: dict[int, deque[Decoded]] = {}
        self.planned: dict[int, int] = {}
        """Bytes counted for each started round that has no block yet."""
        self.in_passes: set[int] = set()
        """Rounds that need several passes."""
        self.left: dict[int, int] = {}
        """Unfinished tasks of each started round."""
        self.started: dict[int, tuple[int, int]] = {}
        """Number of started tasks and number of tasks, for each started round."""
        self.taken = 0
        """Rows of the front round that were sent to workers."""
        self.wake_at = 0
        """Value of ``taken`` at which threads are woken next."""
        self.is_full = False
        """Whether a round could not be started for lack of memory."""
        self.num_waiting = 0
        """Threads that wait for room within a round."""
        self.failed: dict[int, BaseException] = {}
        self.pending: deque[ReadTask] = deque()
        self.busy: set[int] = set()
        self.next_round = self.front = producer.first_round
        self.nbytes = 0
        self.num_held = 0
        """Ranges of rows that are held for workers."""
        self.is_awaited = False
        """Whether the consumer is blocked on the next block."""
        self.closed = False

    @property
    def flight(self) -> InFlight:
        is_over = self.front >= self.order.num_rounds
        taken = self.taken / max(1, self._num_rows(self.front)) if self.limits.is_paced and not is_over else 0.0
        # While workers have rows, the consumer waits for their results, and more rows would only take memory.
        starving = not self.blocks.get(self.front) and (self.is_awaited or not self.num_held)
        return InFlight(front=self.front, nbytes=self.nbytes, starving=starving, taken=taken)

    def _num_rows(self, round_: int) -> int:
        return self.order.start(round_ + 1) - self.order.start(round_)

    def round_nbytes(self, round_: int) -> int:
        """Return the size of a round, if it is assembled before delivery."""
        if not self.order.is_shuffled:
            return 0
        return self._num_rows(round_) * self.row_nbytes

    # -- threads ---------------------------------------------------------------------------------------------------

    def take_task(self, note: ThreadProgress) -> ReadTask | None:
        """Return the next task whose stream is free, or None when there is nothing left to do."""
        with self.lock:
            while not self.closed:
                if (task := self._startable()) is not None:
                    self.pending.remove(task)
                    self.busy.add(task.stream)
                    started, total = self.started[task.round]
                    self.started[task.round] = started + 1, total
                    return task
                if not self._begin_round():
                    if self.next_round == self.order.num_rounds and not self.pending:
                        return None
                    note.at(WAIT)
                    self.room.wait(_WAIT_INTERVAL_S)
            return None

    def _startable(self) -> ReadTask | None:
        """Return the first task that may start and whose stream is free."""
        flight = self.flight
        for task in self.pending:
            started, total = self.started[task.round]
            if not may_start(flight, self.limits, round_=task.round, done=started / total):
                return None  # nor any later task
            if task.round in self.in_passes and self.blocks[task.round]:
                return None  # the result of the previous pass was not taken yet
            if task.stream not in self.busy:
                return task
        return None

    def _can_begin(self) -> bool:
        if self.next_round >= self.order.num_rounds or self.failed:
            return False
        nbytes, front = self.round_nbytes(self.next_round), self.front
        can_begin = may_begin(self.flight, self.limits, round_=self.next_round, nbytes=nbytes)
        self.is_full = not can_begin and self.next_round < front + self.limits.rounds_ahead
        return can_begin

    def _begin_round(self) -> bool:
        if not self._can_begin():
            return False
        round_ = self.next_round
        nbytes = self.round_nbytes(round_)
        tasks = self.order.tasks(round_)
        self.pending.extend(tasks)
        self.left[round_] = len(tasks)
        self.started[round_] = 0, len(tasks)
        self.blocks[round_] = deque()
        self.planned[round_] = nbytes
        self.nbytes += nbytes
        self.next_round += 1
        return True

    def _begin_pass(self, round_: int) -> None:
        """Queue the tasks of a round once more: it is too large for one pass."""
        tasks = self.order.tasks(round_)
        self.pending.extendleft(reversed(tasks))
        self.left[round_] = len(tasks)
        self.started[round_] = 0, len(tasks)
        self.in_passes.add(round_)

    def wait_for_room(self, round_: int, nbytes: int, note: ThreadProgress) -> bool:
        """Wait until a piece of about ``nbytes`` may be decoded; return False if the epoch was closed."""
        with self.lock:
            while not self.closed and not may_decode(self.flight, self.limits, round_=round_, nbytes=nbytes):
                note.at(WAIT)
                self.num_waiting += 1
                self.room.wait(_WAIT_INTERVAL_S)
                self.num_waiting -= 1
            return not self.closed

    def put(self, task: ReadTask, block: Decoded) -> None:
        with self.lock:
            self.blocks[task.round].append(block)
            # From here on the actual size counts instead of the planned one.
            self.nbytes += block.nbytes - self.planned.pop(task.round, 0)
            if task.round == self.front:
                self.ready.notify()

    def end_task(self, task: ReadTask, error: BaseException | None) -> None:
        with self.lock:
            if error is not None:
                self.failed.setdefault(task.round, error)
            self.left[task.round] -= 1
            is_made = self.left[task.round] == 0 and task.round not in self.failed
            if is_made and self.producer.needs_another_pass(task.round):
                self._begin_pass(task.round)
            self.busy.discard(task.stream)
            if task.round == self.front:
                self.ready.notify()
            self.room.notify_all()

    def take_rows(self, num_rows: int) -> None:
        """Record that rows of the front round were sent to workers. Needs the lock."""
        self.taken += num_rows
        # Not for every batch: a wakeup that finds nothing to do costs as much as a small batch.
        if self.limits.is_paced and self.taken >= self.wake_at and self.front < self.order.num_rounds:
            self.wake_at = self.taken + self._num_rows(self.front) // _WAKES
            if self._startable() is not None:
                self.room.notify_all()

    def release(self, nbytes: int) -> None:
        """Count bytes held for a worker as delivered."""
        with self.lock:
            self.nbytes -= nbytes
            self.num_held -= 1
            if self.num_waiting or (self.is_full and self._can_begin()):
                self.room.notify_all()

    def close(self) -> None:
        with self.lock:
            self.closed = True
            self.pending.clear()
            self.room.notify_all()
            self.ready.notify_all()

    # -- consumer --------------------------------------------------------------------------------------------------

    def take_block_nowait(self) -> tuple[bool, Decoded | None]:
        """Return (settled, block): a block, or (True, None) at the end of the epoch. Needs the lock."""
        while self.front < self.order.num_rounds:
            if self.blocks.get(self.front):
                if self.front in self.in_passes:
                    self.room.notify_all()
                return True, self.blocks[self.front].popleft()
            if self.front in self.failed:
                raise self.failed[self.front]
            if self.closed:
                break
            if self.left.get(self.front) != 0:
                return False, None
            del self.blocks[self.front], self.left[self.front], self.started[self.front]
            self.in_passes.discard(self.front)
            self.front += 1
            self.taken = self.wake_at = 0
            self.room.notify_all()
        return True, None


def _work(epoch: _Epoch, note: ThreadProgress) -> None:
    """Run tasks until there are none. Holds no reference to the iterator, so that dropping it ends this thread."""
    note.thread_id = threading.get_ident()
    while (task := epoch.take_task(note)) is not None:
        error: BaseException | None = None
        try:
            nbytes = 0
            for block in epoch.producer.produce(task, note):
                if not epoch.order.is_shuffled and task.round > epoch.front:  # it will be queued for a while
                    block = block.settled(epoch.producer.arena)
                epoch.put(task, block)
                nbytes = max(nbytes, block.nbytes)
                del block
                if not epoch.order.is_shuffled and not epoch.wait_for_room(task.round, nbytes, note):
                    break
        except BaseException as caught:  # noqa: BLE001  border: every error is raised in the consumer
            error = caught
        epoch.end_task(task, error)
    note.at(DONE)


def _end(epoch: _Epoch, threads: list[threading.Thread], pid: int, wait_s: float = _JOIN_TIMEOUT_S) -> None:
    """Stop the threads. Bounded: a daemon thread that is stuck in a dead file system is left behind."""
    if os.getpid() != pid:
        return  # Fork-safe: a child has no threads to stop, and the lock may be held forever.
    # Order: the flag first, without the lock. The garbage collector may run this in one of the threads, under the lock.
    epoch.closed = True
    if threading.current_thread() in threads:
        return
    epoch.close()
    started = [thread for thread in threads if thread.ident is not None]
    deadline = Deadline.after(wait_s)
    for thread in started:
        thread.join(deadline.left_s)
    if not any(thread.is_alive() for thread in started):
        epoch.producer.close()


class ThreadedBlocks:
    """Yields the blocks of an epoch in order while threads decode ahead. Stops its threads when it is dropped."""

    def __init__(
        self, producer: Producer, *, threads: int, limits: FlightLimits, row_nbytes: int, stall_limit_s: float
    ) -> None:
        self._epoch = _Epoch(producer, limits, row_nbytes)
        self._stall_limit_s = stall_limit_s
        self._held = self._row_nbytes = 0
        self._pid = os.getpid()
        self._notes = [ThreadProgress(f"decoder thread {i}") for i in range(threads)]
        # Daemons: a thread that is stuck in a dead file system must not prevent the interpreter from exiting.
        self._threads = [
            threading.Thread(target=_work, args=(self._epoch, note), name=f"antifreeze-{i}", daemon=True)
            for i, note in enumerate(self._notes)
        ]
        self._finalizer = weakref.finalize(self, _end, self._epoch, self._threads, self._pid)
        try:
            for thread in self._threads:
                thread.start()
        except RuntimeError as error:
            self.close()
            raise ConfigError(
                f"cannot start decoder thread {thread.name} of {threads}: {error}",
                hint="lower num_workers, or raise the limit on threads (ulimit -u, or the container's pids limit)",
                argument="num_workers",
            ) from error
        except BaseException:  # Ctrl-C during the start: no caller can close this object yet
            self.close()
            raise

    def __iter__(self) -> Iterator[Decoded]:
        return self

    def __next__(self) -> Decoded:
        self.check_process()
        try:
            with self._epoch.lock:
                block = self._take()
        except Stalled:
            if self._finalizer.detach():  # waiting for a stalled thread would only delay the error
                _end(self._epoch, self._threads, self._pid, wait_s=0)
            raise
        except BaseException:
            self.close()
            raise
        if block is None:
            self.close()
            raise StopIteration
        return block

    def is_ready(self) -> bool:
        epoch = self._epoch
        with epoch.lock:
            front = epoch.front
            waiting = front < epoch.order.num_rounds and not epoch.blocks.get(front) and not epoch.closed
            return not waiting or front in epoch.failed

    def where(self) -> Location:
        return location_of(self._notes)

    def spent(self) -> dict[str, float]:
        return spent(self._notes)

    def check_process(self) -> None:
        """Raise in a forked process: the threads exist only in the parent, which delivers these rows."""
        if os.getpid() != self._pid:
            raise ConfigError(
                "cannot use this iterator after a fork: its threads belong to the parent process",
                hint="call iter(loader) in the process that iterates over it",
                argument="loader",
            )

    def _take(self) -> Decoded | None:
        """Return the next block, or None at the end. Needs the lock."""
        epoch = self._epoch
        if self._held:  # the last block has reached the user by now
            epoch.nbytes -= self._held
            self._held = 0
            epoch.room.notify_all()
        settled, block = epoch.take_block_nowait()
        if not settled:
            block = self._wait()
        if block is not None:
            self._held = block.nbytes
            self._row_nbytes = block.nbytes // max(1, block.num_rows)
        return block

    def hold(self, num_rows: int) -> Release:
        epoch = self._epoch
        with epoch.lock:
            # Some rows may belong to earlier blocks, which were counted as delivered when the last one was taken.
            nbytes = self._row_nbytes * num_rows
            of_last = min(nbytes, self._held)
            self._held -= of_last
            epoch.nbytes += nbytes - of_last
            epoch.num_held += 1
            epoch.take_rows(num_rows)
        return partial(epoch.release, nbytes)

    def _wait(self) -> Decoded | None:
        """Wait for a block as long as a thread makes progress. Needs the lock, and releases it while waiting."""
        epoch, timer = self._epoch, StallTimer(self._notes, self._stall_limit_s)
        epoch.is_awaited = True
        epoch.room.notify_all()
        try:
            while True:
                epoch.ready.wait(timer.interval_s)
                settled, block = epoch.take_block_nowait()
                if settled:
                    return block
                timer.check()
        finally:
            epoch.is_awaited = False

    def close(self) -> None:
        self._finalizer()
