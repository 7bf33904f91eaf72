"""The main loop of a worker process: receives tasks, sends batches, and shares nothing else with other processes."""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing.process
import os
import signal
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from antifreeze.core import Deadline
from antifreeze.ipc import (
    Channel,
    Closed,
    HeartbeatWriter,
    Inbox,
    Outbox,
    Packed,
    SegmentUpdate,
    Stage,
    dump,
    pack,
    unpack,
    unshare,
)
from antifreeze.payload import PayloadLayout, load_payload, run_reopeners, set_logs, take_over
from antifreeze.worker import _collate, _worker_info
from antifreeze.worker._programs import Ended, Nothing, Program
from antifreeze.worker._task_context import TaskContext, UserError, failure_of
from antifreeze.worker._wire import Cancel, Environment, FailureReason, Ready, Result, Results, Start, Task, Tasks

DUMP_SIGNAL = signal.SIGRTMIN + 7 if sys.platform == "linux" else signal.SIGUSR2
"""Makes a worker dump the stacks of its threads, even while native code holds the interpreter lock."""

_WAIT_INTERVAL_S = 1.0
_GROUP_S = 0.01
_GROUP_NBYTES = 1 << 15  # in the message itself
_GROUP_SHARED_NBYTES = 1 << 23
_GROUP_RESULTS = 256
MAX_FDS = 200
"""Maximum number of descriptors per message; the kernel's limit is 253."""


_THREADS = {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"}
"""Read by libraries at import: in a worker they use one thread, unless the user sets another number."""


def apply_environment(found: Environment) -> None:
    """Apply the trainer's sys.path, working directory, environment variables and settings. Idempotent and cheap."""
    sys.path[:] = found.sys_path
    sys.argv[:] = found.argv
    with contextlib.suppress(OSError):
        os.chdir(found.cwd)
    for name in os.environ.keys() - found.environ.keys() - _THREADS:
        del os.environ[name]
    for name, value in found.environ.items():
        if os.environ.get(name) != value:
            os.environ[name] = value
    take_over(found.settings)


def _become_worker(slot: int, owner_pid: int) -> None:
    """Appear as a child of the trainer to multiprocessing, which libraries use to detect a worker."""
    process: Any = multiprocessing.process
    process.current_process()._config["daemon"] = False
    process.current_process()._name = f"antifreeze-worker-{slot}"
    process._parent_process = process._ParentProcess("MainProcess", owner_pid, None)


def load_program(payload: PayloadLayout, fds: list[int]) -> Program:
    """Rebuild a program from its payload; closes the descriptors. Raises ``UserError``."""
    try:
        return load_payload(payload, fds)  # type: ignore[no-any-return]
    except BaseException as error:
        raise UserError("rebuilding the dataset in a worker", error) from error


def run(channel: Channel, board: HeartbeatWriter, stacks: int, program: Program | None = None) -> None:
    """Run tasks until the trainer closes its end. Errors of user code are caught and sent to the trainer.

    Args:
        channel: connection to the trainer.
        board: where this worker writes its heartbeat.
        stacks: file for the stacks of its threads.
        program: what to run, if the template process has loaded it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the trainer, which shuts down its workers
    faulthandler.enable(stacks)
    faulthandler.register(DUMP_SIGNAL, stacks)
    with contextlib.suppress(Closed):
        _Worker(channel, board, program).work()


@dataclass(slots=True)
class _Outgoing:
    """Results to be sent in one message: for tiny batches the message costs more than the batch."""

    results: list[Result] = field(default_factory=list)
    updates: SegmentUpdate = field(default_factory=SegmentUpdate)
    nbytes: int = 0
    shared_nbytes: int = 0
    since_s: float = 0.0
    imported: tuple[str, ...] = ()

    def add(self, result: Result, updates: SegmentUpdate) -> None:
        self.results.append(result)
        self.updates.opened += updates.opened
        self.updates.fds += updates.fds
        self.updates.dropped += updates.dropped
        if result.packed is not None:
            self.nbytes += len(result.packed.head or b"")
            self.shared_nbytes += sum(piece.nbytes for piece in result.packed.pieces)

    def is_due(self) -> bool:
        full = self.nbytes >= _GROUP_NBYTES or self.shared_nbytes >= _GROUP_SHARED_NBYTES
        full = full or len(self.results) >= _GROUP_RESULTS
        return full or time.monotonic() - self.since_s >= _GROUP_S


class _Worker:
    def __init__(self, channel: Channel, board: HeartbeatWriter, program: Program | None) -> None:
        self._channel, self._board, self._program = channel, board, program
        self._inbox, self._outbox = Inbox(), Outbox()
        self._tasks: deque[Task] = deque()
        self._outgoing = _Outgoing()
        self._sending = threading.Lock()
        self._has_pending = threading.Event()
        """Set while results may be waiting to be sent."""
        self._sends_at_once = False
        self._modules, self._num_modules = set(sys.modules), len(sys.modules)
        """Modules that were imported at the last check."""
        self._is_from_template = program is not None

    def work(self) -> None:
        """Load the program, then run tasks until the trainer is gone."""
        # A finished batch must not wait for the next one, which may take minutes.
        threading.Thread(target=self._flush_overdue, name="antifreeze-flush", daemon=True).start()
        # Order: after the thread is started, so that only that thread receives the signal. In the main thread it would
        # interrupt user code when its stacks are requested: a native sleep would end early, a read would fail.
        signal.pthread_sigmask(signal.SIG_BLOCK, {DUMP_SIGNAL})
        (start, fds), *later = self._wait()
        began_s = time.perf_counter()
        try:
            program, context = self._load(start, fds)
            failure = None
        except UserError as error:
            failure = failure_of(error)
        self._send(Ready(failure, time.perf_counter() - began_s))
        while failure is not None:  # until it is terminated: a worker that exited now would be treated as a crash
            self._board.at(Stage.IDLE)
            self._wait()
        self._on_messages(later)
        while True:
            if not self._tasks:
                self._flush()
                self._board.at(Stage.IDLE)
                self._on_messages(self._wait())
            else:
                self._on_messages(self._channel.receive_nowait())
            if self._tasks:
                self._make(self._tasks.popleft(), program, context)

    def _wait(self) -> list[tuple[Any, list[int]]]:
        # Bounded: when the trainer exits its end is closed, and the kernel kills this process together with its parent.
        while True:
            with contextlib.suppress(TimeoutError):
                return self._channel.receive(Deadline.after(_WAIT_INTERVAL_S))

    def _load(self, start: Start, fds: list[int]) -> tuple[Program, TaskContext]:
        self._board.at(Stage.LOAD)
        apply_environment(start.environment)
        _become_worker(start.slot, start.environment.owner_pid)
        self._sends_at_once = start.sends_at_once
        context = TaskContext(self._board, slot=start.slot, num_workers=start.num_workers, on_error=start.on_error)
        _collate.install(self._outbox)
        _worker_info.install(start.slot, start.num_workers, 0, None)
        program = self._program
        if program is None:
            program = load_program(start.payload, fds)
        else:
            for fd in fds:
                os.close(fd)
        try:
            run_reopeners()
        except BaseException as error:
            raise UserError("opening the dataset's handles in a worker", error) from error
        set_logs(start.environment.settings.logs)  # Order: after the user's modules, which may configure logging
        program.start(context, start.seed)
        return program, context

    # -- tasks -----------------------------------------------------------------------------------------------------

    def _on_messages(self, messages: list[tuple[Any, list[int]]]) -> None:
        for message, fds in messages:
            if isinstance(message, Cancel):
                self._cancel(message.run)
            elif isinstance(message, Tasks):
                self._outbox.returned(message.returned)
                self._inbox.apply(message.opened, fds, message.dropped)
                self._tasks.extend(message.tasks)

    def _cancel(self, run: int) -> None:
        """Drop the tasks and results of an abandoned run, and release their memory."""
        for task in [task for task in self._tasks if task.run == run]:
            self._tasks.remove(task)
            if isinstance(task.what, Packed):
                self._inbox.release(task.what.pieces)
        with self._sending:
            for result in [result for result in self._outgoing.results if result.run == run]:
                self._outgoing.results.remove(result)
                self._outbox.returned([piece.segment for piece in result.packed.pieces] if result.packed else [])

    def _make(self, task: Task, program: Any, context: TaskContext) -> None:
        context.clear(task.step)
        with self._sending:
            if not self._outgoing.results:
                self._outgoing.since_s = time.monotonic()
        facts: dict[str, Any] = {}
        _worker_info.reset_asked()
        try:
            facts = self._packed(task, program, context)
        except Ended:
            facts = {"ended": True, "end": getattr(program, "end", None)}
        except Nothing:
            pass
        except UserError as error:
            facts = {"failure": failure_of(error)}
        except Exception as error:  # noqa: BLE001  border: a bug of ours must not look like a crash
            facts = {"failure": failure_of(UserError("making the batch", error))}
        result = Result(
            epoch=task.epoch,
            step=task.step,
            skipped=tuple(context.skipped),
            num_samples=context.num_samples,
            times=tuple(context.times.items()),
            slowest=context.take_slowest(),
            asked=_worker_info.asked(),
            run=task.run,
            **facts,
        )
        imported = self._newly_imported()
        with self._sending:
            self._outgoing.add(result, self._outbox.drain_updates())
            self._outgoing.imported += imported
            due = self._sends_at_once or self._outgoing.is_due()
        if due:
            self._flush()
        elif not self._has_pending.is_set():
            self._has_pending.set()

    def _newly_imported(self) -> tuple[str, ...]:
        """Return modules that user code has imported since the last check. The next workers may start with them."""
        if len(sys.modules) == self._num_modules or not self._is_from_template:
            return ()
        names = list(sys.modules)
        new = tuple(name for name in names if name not in self._modules)
        self._modules.update(new)
        self._num_modules = len(names)
        return new

    def _packed(self, task: Task, program: Any, context: TaskContext) -> dict[str, Any]:
        """Make the batch of a task, and pack it into shared memory."""
        try:
            if isinstance(task.what, Packed):
                task = task._replace(what=unpack(task.what, self._inbox))
        except BaseException as error:
            raise UserError("rebuilding the task in a worker", error) from error
        batch = program.make(task, context)
        facts: dict[str, Any] = {}
        began_s = context.begin(Stage.PACK)
        try:
            head, raws = dump(batch)
        except BaseException as error:
            kind = type(batch).__name__
            what = f"sending the batch (a {kind}) to the trainer: it cannot be pickled"
            raise UserError(what, error, reason=FailureReason.NOT_PICKLABLE) from error
        del batch, task  # Order: before ``unshare``, which copies buffers that user code still references
        if hasattr(program, "seen"):
            program.seen(head, raws)
            facts = program.facts()
        facts["nbytes"] = len(head) + sum(map(len, raws))
        packed = pack(head, raws, self._outbox)
        raws.clear()
        packed = unshare(packed, self._outbox)
        context.add(Stage.PACK, time.perf_counter() - began_s)
        self._outbox.sent(packed.pieces)
        return facts | {"packed": packed}

    # -- results ---------------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        self._send_pending()
        self._push()

    def _send_pending(self) -> None:
        """Send pending results as far as the socket accepts them. Called by two threads."""
        with self._sending:
            outgoing, self._outgoing = self._outgoing, _Outgoing()
            if not (outgoing.results or outgoing.updates.opened or outgoing.imported):
                return
            updates = outgoing.updates
            while len(updates.fds) > MAX_FDS:  # more than one message can carry
                some, updates.opened = updates.opened[:MAX_FDS], updates.opened[MAX_FDS:]
                fds, updates.fds = updates.fds[:MAX_FDS], updates.fds[MAX_FDS:]
                self._channel.send_nowait(Results([], [], some, []), fds)
            done = self._inbox.take_done()
            message = Results(outgoing.results, done, updates.opened, updates.dropped, outgoing.imported)
            self._channel.send_nowait(message, updates.fds)

    def _flush_overdue(self) -> None:
        """Send overdue results while the main thread is busy."""
        with contextlib.suppress(Closed, OSError):
            while True:
                if not self._has_pending.wait(_WAIT_INTERVAL_S):
                    continue
                # While batches come fast, check periodically: a wakeup per batch would cost more than it saves.
                time.sleep(_GROUP_S)
                with self._sending:
                    if not self._outgoing.results:
                        self._has_pending.clear()
                        continue
                if self._outgoing.is_due():
                    self._send_pending()

    def _send(self, message: object) -> None:
        with self._sending:
            self._channel.send_nowait(message)
        self._push()

    def _push(self) -> None:
        """Wait until the socket has accepted everything."""
        with self._sending:
            if self._channel.flush_nowait():
                return
        self._board.at(Stage.SEND)
        while True:
            with self._sending, contextlib.suppress(TimeoutError):
                self._channel.flush(Deadline.after(_WAIT_INTERVAL_S))
                return
