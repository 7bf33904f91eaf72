"""The worker pool of one loader: spawns workers, sends them tasks, receives results, replaces lost workers.

Problem. User code in a worker can crash, be killed, be stopped or hang at any instruction. A loader that shares a queue
between its workers then waits for a lock whose holder is gone, or for a batch that a feeder thread never sent.

Guarantees:

- A lost worker affects no other worker: each has its own socket, shared memory segments and heartbeat.
- A lost worker is replaced, and its tasks are returned to the dispatcher. Results that it had sent are still delivered.
- No call blocks on a worker. ``wait`` is the only method that waits, always with a timeout and without the lock.
- After an error that makes the pool useless, ``fatal`` is set, and the next call to ``next`` raises it.

Assumptions. The supervisor calls ``poll`` about five times a second and reports every spawn and exit. ``dispatcher``
decides what is run and retried; the pool only moves messages.
"""

# Invariant: a slot holds at most one worker, and every state except GONE is left by an event of the supervisor
# (spawned, exited) or by the closing of the channel. So no slot can stay without a worker while the pool is usable.
# Invariant: ``lock`` is an RLock held only for bookkeeping and nonblocking I/O. The trainer's thread and the supervisor
# both take it, and neither waits while holding it.
# Order: messages of an exited worker are read before its loss is handled, or results it had sent would be made twice.
# Signal-safe: ``end`` takes no lock. The garbage collector may call it in any thread, at any instruction, also while
# that thread holds ``lock``.
# Rejected: a thread per pool that receives results. Every batch would cost a thread switch. The thread that calls
# ``next`` does the I/O, and the supervisor takes over only while the training loop is busy elsewhere.
# Rejected: SIGTERM before SIGKILL. A stopped process ignores it, and user code may too. A worker owns nothing that the
# kernel does not clean up.
# Rejected: a time limit per batch. It cannot distinguish a slow batch from a stuck one; see ``_worker_watch`` instead.

from __future__ import annotations

import contextlib
import itertools
import os
import select
import sys
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass
from typing import Any, Protocol

from antifreeze.core import AntifreezeError
from antifreeze.diagnosis import Finding, History, Restart
from antifreeze.ipc import Closed
from antifreeze.pool._failures import no_descriptors, user_error
from antifreeze.pool._supervisor import WakeupPipe, the_supervisor
from antifreeze.pool._template import Template, Templates
from antifreeze.pool._worker_handle import WorkerEvent, WorkerHandle, WorkerState, make_worker
from antifreeze.worker import Cancel, Environment, Failure, Ready, Result, Results, Start

GRACE_S = 1.0
"""How long a worker may take to finish its current task when its loader ends."""
_MAX_EARLY_EXITS = 3
_MAX_SPAWN_RETRIES = 10
_TRAINER_CHECK_INTERVAL_S = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolConfig:
    """User settings that apply to all workers."""

    num_workers: int
    dataset: str
    """Name of the dataset in messages."""
    on_error: str = "raise"
    stall_limit_s: float | None = None
    max_restarts: int = 100
    memory_limit: int | None = None
    waits_for_all: bool = False
    """Whether an epoch ends only after every worker has started, so that a failing ``worker_init_fn`` is reported."""


class TaskDispatcher(Protocol):
    """An epoch, as its pool sees it: ``PoolEpoch`` says what each method does. All of them need the pool's lock."""

    history: History
    began_s: float
    checked_s: float

    def on_result(self, slot: int, result: Result, worker: WorkerHandle) -> bool: ...
    def on_worker_lost(self, worker: WorkerHandle) -> None: ...
    def on_exit_code(self, token: int, code: int | None) -> None: ...
    def assign(self) -> None: ...
    def check(self) -> None: ...


class Pool:
    """Worker processes that run one program. Methods called ``on_...`` and ``poll`` are called by the supervisor."""

    def __init__(self, program: Any, seed: int, config: PoolConfig) -> None:
        self.config = config
        self.lock = threading.RLock()
        self.dispatcher: TaskDispatcher | None = None
        """The epoch whose tasks these workers run. The garbage collector may clear it at any moment."""
        self.workers: list[WorkerHandle | None] = [None] * config.num_workers
        self.fatal: AntifreezeError | None = None
        # Fork-safe: a child of the trainer must neither use nor end these workers; they belong to the parent.
        self.pid = os.getpid()
        self._program, self._seed = program, seed
        self.template: Template | None = None
        """What these workers are forked from."""
        self._templates: Templates | None = None
        self._environment: Environment | None = None
        # Invariant: a lost worker is kept until its exit is reported, because its stacks may explain the exit.
        self._gone: dict[int, WorkerHandle] = {}
        self.early_exits: Counter[int] = Counter()
        """Number of consecutive workers of each slot that were lost before they were ready."""
        self._spawn_retries, self._closing = 0, False
        self._wakeup = WakeupPipe()
        self.wake = self._wakeup.notify
        self.runs = itertools.count(1)
        """Numbers for the epochs that use these workers; an epoch that resumes after an error gets a new number."""
        self.cancelled: deque[int] = deque()
        """Runs that were abandoned and whose cancellation has not been sent to the workers yet."""
        self.shard_ends: dict[int, bytes] = {}
        """Dataset states at the end of the last iteration of each shard, by slot; used by persistent workers."""

    @property
    def present(self) -> list[WorkerHandle]:
        """The workers that were not lost, starting ones included."""
        return [worker for worker in self.workers if worker is not None]

    @property
    def is_usable(self) -> bool:
        """True if an epoch can use these workers."""
        return self.fatal is None and not self._closing and self.pid == os.getpid()

    # -- startup ---------------------------------------------------------------------------------------------------

    def start(self, templates: Templates) -> None:
        """Request all workers. Returns before they have started."""
        the_supervisor().supervise(self)
        self._templates = templates
        before = templates.current
        self.template, self._environment = templates.of(self._program)
        with self.lock:
            for slot in range(len(self.workers)):
                self.spawn(slot)
        del before  # Order: last, so that modules imported for the previous template stay imported for the new one

    def spawn(self, slot: int, *, is_replacement: bool = False) -> None:
        """Request a worker for ``slot``."""
        template = self.template
        if self._closing or self.fatal is not None or template is None or self._environment is None:
            return
        # A replacement sends its results one by one: it may be lost like its predecessor, and what it holds with it.
        start = Start(
            slot=slot,
            num_workers=len(self.workers),
            on_error=self.config.on_error,
            seed=self._seed,
            environment=self._environment,
            payload=template.payload.layout,
            sends_at_once=is_replacement,
        )
        try:
            worker, message, fds = make_worker(slot, start, template.payload.fds())
        except OSError as error:
            self.fatal = no_descriptors(error)
            return
        self.workers[slot] = worker
        the_supervisor().spawn(self, message, fds, template)

    def on_load_failed(self, token: int, template: Template) -> None:
        """Handle an error that user code raised while the payload was loaded."""
        with self.lock:
            if template is self.template and self._worker(token) is not None:
                self._handle_failure(template.failure, "the process that loads it for all workers")
        self.wake()

    def on_loading_process_lost(self, template: Template, pid: int, why: Finding) -> None:
        """Record that the process that loads the payload was lost before it was ready."""
        with self.lock:
            if template is self.template and (dispatcher := self.dispatcher) is not None:
                lines = (why.title, *why.evidence_lines)
                after_s = time.monotonic() - dispatcher.began_s
                dispatcher.history.restart(
                    Restart(worker=-1, pid=pid, cause=why.cause.value, sample="", after_s=after_s, evidence=lines)
                )

    def on_prepared(self, template: Template) -> None:
        """Record that the payload was loaded, or that each worker will load it."""
        with self.lock:
            if template is self.template and (dispatcher := self.dispatcher) is not None:
                dispatcher.history.spent({"start": template.load_s})

    def on_spawned(self, token: int, pid: int) -> None:
        """Record the process ID of a worker that was spawned."""
        with self.lock:
            worker = self._worker(token)
            if worker is not None:
                worker.pid, worker.asked_s = pid, time.monotonic()
                worker.apply(WorkerEvent.SPAWNED)

    def on_exited(self, token: int, code: int | None) -> None:
        """Handle the exit of a worker; ``code`` is None if unknown."""
        with self.lock:
            worker = self._worker(token)
            if worker is not None:
                while self._receive_from(worker):  # Order: first, so that results it had sent are not lost
                    pass
                self.lose(worker)
            # Order: the exit code before the handle is closed, whose stacks are read to explain it.
            if (dispatcher := self.dispatcher) is not None:
                dispatcher.on_exit_code(token, code)
            if (gone := self._gone.pop(token, None)) is not None:
                gone.close()
        self.wake()

    def on_fatal(self, error: AntifreezeError) -> None:
        """Record that no worker can be spawned."""
        with self.lock:
            self.fatal = error
        self.wake()

    def _worker(self, token: int) -> WorkerHandle | None:
        return next((worker for worker in self.present if worker.token == token), None)

    # -- messages --------------------------------------------------------------------------------------------------

    def receive(self) -> None:
        """Process messages from all workers. Needs the lock."""
        while self.cancelled:
            message = Cancel(self.cancelled.popleft())
            for worker in self.present:
                with contextlib.suppress(Closed):
                    worker.channel.send_nowait(message)
        for worker in self.present:
            self._receive_from(worker)

    def _receive_from(self, worker: WorkerHandle) -> bool:
        """Process pending messages of one worker; return True if there were any."""
        try:
            with contextlib.suppress(Closed):  # Order: messages that an exited worker had sent are read before its loss
                worker.channel.flush_nowait()
            messages = worker.channel.receive_nowait()
            for message, fds in messages:
                self._on_message(worker, message, fds)
        except Closed:
            messages = []
            self.lose(worker)
        except OSError as error:
            messages = []
            self.fatal = no_descriptors(error)
        return bool(messages)

    def _on_message(self, worker: WorkerHandle, message: Any, fds: list[int]) -> None:
        if isinstance(message, Results):
            worker.outbox.returned(message.returned)
            worker.inbox.apply(message.opened, fds, message.dropped)
            for result in message.results:
                # Order: asked for each result. What a cleared epoch takes would never be released.
                dispatcher = self.dispatcher
                taken = dispatcher is not None and dispatcher.on_result(worker.slot, result, worker)
                if not taken and result.packed is not None:
                    worker.inbox.release(result.packed.pieces)
            if message.imported and self.template is not None and self._templates is not None:
                names = self.template.select_extra_modules(message.imported, self._templates.by_value)
                the_supervisor().add_modules(self.template, names)
        elif isinstance(message, Ready) and message.failure is not None:
            self._handle_failure(message.failure, worker.name)
        elif isinstance(message, Ready):
            worker.apply(WorkerEvent.LOADED)
            self.early_exits[worker.slot] = self._spawn_retries = 0
            if (dispatcher := self.dispatcher) is not None:
                dispatcher.history.spent({"start": message.load_s})

    def _handle_failure(self, failure: Failure, who: str) -> None:
        """Send a module that exists only in this process by value and restart, or fail with the user's error."""
        templates = self._templates
        if templates is None or failure.module not in sys.modules or failure.module in templates.by_value:
            self.fatal = user_error(failure, worker=who, step=-1, location=self.config.dataset)
            return
        templates.by_value.add(failure.module)
        self.template, self._environment = templates.of(self._program)
        # Those that are ready did not need the module, and their tasks are under way.
        for other in self.present:
            if other.state is not WorkerState.READY:
                self.replace(other, 0)

    # -- losses ----------------------------------------------------------------------------------------------------

    def lose(self, worker: WorkerHandle) -> None:
        """Handle the loss of a worker: reassign its tasks and spawn a replacement."""
        was = worker.apply(WorkerEvent.LOST)
        if was is WorkerState.GONE:
            return
        self.workers[worker.slot] = None
        self._gone[worker.token] = worker
        worker.exited_early = was is not WorkerState.READY
        if was is WorkerState.REQUESTED and self._spawn_retries < _MAX_SPAWN_RETRIES:
            # It never had a process: the fork server exited before forking it. Ask again; no work was lost.
            self._spawn_retries += 1
            self.replace(worker, 0)
            return
        if (dispatcher := self.dispatcher) is not None:
            dispatcher.on_worker_lost(worker)
        the_supervisor().terminate(worker.token, 0)
        if not self._closing:
            self.spawn(worker.slot, is_replacement=True)

    @property
    def cannot_start(self) -> bool:
        """True if workers of a slot repeatedly exit before they are ready."""
        return max(self.early_exits.values(), default=0) >= _MAX_EARLY_EXITS

    def replace(self, worker: WorkerHandle, grace_s: float = GRACE_S) -> None:
        """Replace a worker that has no tasks with a new one."""
        self.workers[worker.slot] = None
        the_supervisor().terminate(worker.token, grace_s)
        worker.close()
        self.spawn(worker.slot)

    # -- waiting ---------------------------------------------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        """Wait until a worker sends a message or the supervisor calls ``wake``. Needs no lock."""
        poll = select.poll()
        # Tried: keeping the poll object. It had to be dropped wherever a slot changed, to save microseconds of waiting.
        with self.lock:
            for fd in [self._wakeup.fileno(), *(worker.channel.fileno() for worker in self.present)]:
                if fd >= 0:
                    poll.register(fd, select.POLLIN)
        if any(fd == self._wakeup.fileno() for fd, _ in poll.poll(seconds * 1000)):
            self._wakeup.drain()

    def poll(self) -> None:
        """Supervise the workers while the trainer is not asking for a batch."""
        if (
            (dispatcher := self.dispatcher) is not None
            and not self._closing
            and time.monotonic() - dispatcher.checked_s < _TRAINER_CHECK_INTERVAL_S
        ):
            return  # the trainer's thread is doing all of this
        # The trainer's thread may hold the lock while it runs a sampler. The supervisor has other pools to look after.
        if not self.lock.acquire(timeout=0.01):
            return
        try:
            if self._closing:
                self._close()
                return
            self.receive()
            if (dispatcher := self.dispatcher) is not None:
                dispatcher.check()
                dispatcher.assign()
        except OSError as error:
            # Raising in the supervisor's thread would reach nobody: the next call to ``next`` raises it.
            self.fatal = no_descriptors(error)
            self.wake()
        finally:
            self.lock.release()

    # -- shutdown -------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Shut down all workers in the background. Takes no lock and never waits: the collector may call this."""
        if os.getpid() == self.pid and not self._closing:
            self._closing = True
            # Order: here, so that user objects are not finalized in the supervisor's thread.
            self.dispatcher = self._program = None
            the_supervisor().end(self)

    def _close(self) -> None:
        supervisor = the_supervisor()
        supervisor.drop(self)
        for worker in [*self.present, *self._gone.values()]:
            supervisor.terminate(worker.token, GRACE_S)
            worker.close()
        self.workers = [None] * len(self.workers)
        self._gone.clear()
        self.template = self._templates = self._environment = None
        self._wakeup.close()
