"""The workers of one loader: born, given tasks, listened to, replaced when they are lost, ended."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from antifreeze.core import AntifreezeError
from antifreeze.diagnosis import Finding
from antifreeze.ipc import Closed
from antifreeze.pool._config import PoolConfig, TaskDispatcher
from antifreeze.pool._failures import no_descriptors, user_error
from antifreeze.pool._supervisor import the_supervisor
from antifreeze.pool._template import Template, Templates
from antifreeze.pool._wakeup import WakeupPipe
from antifreeze.pool._worker_handle import WorkerHandle, WorkerState, make_worker
from antifreeze.worker import Cancel, Environment, Failure, Ready, Results, Start, Task

GRACE_S = 1.0
"""How long a worker may take to finish what it is at when its loader ends."""
_EARLY_DEATHS = 3
_STILLBIRTHS = 10
_BUSY_S = 0.3


class Pool:
    """Worker processes that run one program.

    Two threads enter: the one that asks for batches, and the supervisor, so that a worker that exits in a long training
    step is replaced before its batch is missed. Both hold ``lock`` while they do, and neither waits while it holds it.
    """

    def __init__(self, program: Any, seed: int, config: PoolConfig) -> None:
        self.config = config
        self.lock = threading.RLock()
        self.dispatcher: TaskDispatcher | None = None
        """Whose tasks these workers make. The collector may take it away at any moment."""
        self.workers: list[WorkerHandle | None] = [None] * config.num_workers
        self.fatal: AntifreezeError | None = None
        self.pid = os.getpid()
        self._program, self._seed = program, seed
        self.template: Template | None = None
        """Where these workers come from."""
        self._templates: Templates | None = None
        self._environment: Environment | None = None
        self._gone: dict[int, WorkerHandle] = {}
        self.early_deaths: Counter[int] = Counter()
        """How often in a row the workers of a slot were lost before they were ready."""
        self._stillbirths, self._closing = 0, False
        self._wakeup = WakeupPipe()
        self.wake = self._wakeup.notify
        self._poll: select.poll | None = None
        self.runs = itertools.count(1)
        """Numbers for the epochs that use these workers; one that goes on after an error gets another."""
        self.cancelled: deque[int] = deque()
        """Those that nobody waits for any more, and that workers have not been told of."""
        self.exits: dict[int, Callable[[int | None], None]] = {}
        """Who waits to hear how a worker has ended, by token."""
        self.shard_ends: dict[int, bytes] = {}
        """The states in which iterable datasets have ended their last iteration, by slot; for workers that stay."""

    @property
    def is_usable(self) -> bool:
        """Whether an epoch may have these workers."""
        return self.fatal is None and not self._closing and self.pid == os.getpid()

    # -- birth -----------------------------------------------------------------------------------------------------

    def start(self, templates: Templates) -> None:
        """Ask for all workers. Returns before they have started."""
        the_supervisor().keep(self)
        self._templates = templates
        before = templates.current
        self.template, self._environment = templates.of(self._program)
        with self.lock:
            for slot in range(len(self.workers)):
                self.spawn(slot)
        del before  # Order: the modules it was forked from stay imported as long as somebody needs them

    def spawn(self, slot: int, *, after_a_loss: bool = False) -> None:
        """Ask for a worker for a slot."""
        template = self.template
        if self._closing or self.fatal is not None or template is None or self._environment is None:
            return
        start = Start(
            slot=slot,
            num_workers=len(self.workers),
            on_error=self.config.on_error,
            seed=self._seed,
            environment=self._environment,
            payload=template.payload.layout,
            sends_at_once=after_a_loss,
        )
        try:
            worker, message, fds = make_worker(slot, start, template.payload.fds())
        except OSError as error:
            self.fatal = no_descriptors(error)
            return
        self.workers[slot], self._poll = worker, None
        the_supervisor().spawn(self, message, fds, template)

    def load_failed(self, token: int, template: Template) -> None:
        """Hear from the supervisor that user code raised while the payload was loaded."""
        with self.lock:
            if template is self.template and self._worker(token) is not None:
                self._failed(template.failure, "the process that loads it for all workers")
        self.wake()

    def lost_while_loading(self, template: Template, pid: int, why: Finding) -> None:
        """Hear from the supervisor that the process which loads the payload was lost."""
        with self.lock:
            if template is self.template and (dispatcher := self.dispatcher) is not None:
                dispatcher.lost_while_loading(pid, why)

    def was_prepared(self, template: Template) -> None:
        """Hear from the supervisor that the payload was loaded."""
        with self.lock:
            if template is self.template and (dispatcher := self.dispatcher) is not None:
                dispatcher.started(template.load_s)

    def on_spawned(self, token: int, pid: int) -> None:
        """Hear from the supervisor that a worker has a process."""
        with self.lock:
            worker = self._worker(token)
            if worker is not None:
                worker.pid, worker.asked_s = pid, time.monotonic()
                if worker.state is WorkerState.REQUESTED:
                    worker.state = WorkerState.LOADING

    def on_exited(self, token: int, code: int | None) -> None:
        """Hear from the supervisor how a worker has ended."""
        with self.lock:
            worker = self._worker(token)
            if worker is not None:
                while self._receive_from(worker):  # Order: what it had sent is not lost with it
                    pass
                self.lose(worker)
            if (tell := self.exits.pop(token, None)) is not None:
                tell(code)
            if (gone := self._gone.pop(token, None)) is not None:
                gone.close()
        self.wake()

    def on_fatal(self, error: AntifreezeError) -> None:
        """Hear from the supervisor that no worker can be had."""
        with self.lock:
            self.fatal = error
        self.wake()

    def _worker(self, token: int) -> WorkerHandle | None:
        return next((m for m in self.workers if m is not None and m.token == token), None)

    # -- messages --------------------------------------------------------------------------------------------------

    def receive(self) -> None:
        """Take in what workers have sent. Needs the lock."""
        self._cancel()
        for worker in self.workers:
            if worker is not None:
                self._receive_from(worker)

    def _receive_from(self, worker: WorkerHandle) -> bool:
        """Take in some of what a worker has sent; return whether there was anything."""
        try:
            with contextlib.suppress(Closed):  # Order: what one that is gone had sent is taken in before that is
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
        if isinstance(message, Ready):
            self._ready(worker, message)
        elif isinstance(message, Results):
            worker.outbox.returned(message.returned)
            worker.inbox.apply(message.opened, fds, message.dropped)
            for result in message.results:
                taken = (dispatcher := self.dispatcher) is not None and dispatcher.came_back(
                    worker.slot, result, worker
                )
                if not taken and result.packed is not None:
                    worker.inbox.release(result.packed.pieces)
            if message.imported:
                self._add_modules(message.imported)

    def _add_modules(self, imported: tuple[str, ...]) -> None:
        """Have the next workers start with what one has imported by itself."""
        if self.template is None or self._templates is None:
            return
        if names := self.template.to_learn(imported, self._templates.by_value):
            the_supervisor().add_modules(self.template, names)

    def _ready(self, worker: WorkerHandle, message: Ready) -> None:
        failure = message.failure
        if failure is None:
            worker.state = WorkerState.READY
            self.early_deaths[worker.slot] = self._stillbirths = 0
            if (dispatcher := self.dispatcher) is not None:
                dispatcher.started(message.load_s)
        else:
            self._failed(failure, worker.name)

    def _failed(self, failure: Failure, who: str) -> None:
        """Send modules by value that exist in this process only, or end with the error of the user's code."""
        templates = self._templates
        if templates is None or failure.module not in sys.modules or failure.module in templates.by_value:
            self.fatal = user_error(failure, worker=who, step=-1, location=self.config.dataset)
            return
        templates.by_value.add(failure.module)
        self.template, self._environment = templates.of(self._program)
        for slot, other in enumerate(self.workers):
            if other is not None and other.state is not WorkerState.READY:
                self._end(other, 0)
                self.spawn(slot)

    def give(self, worker: WorkerHandle, tasks: list[Task]) -> None:
        """Send tasks to a worker. Needs the lock."""
        with contextlib.suppress(Closed):  # it will be noticed as lost
            worker.send(tasks)

    # -- loss ------------------------------------------------------------------------------------------------------

    def lose(self, worker: WorkerHandle) -> None:
        """Note that a worker is gone: its tasks go to others, and another one is born in its place."""
        if worker.state is WorkerState.GONE:
            return
        was, worker.state = worker.state, WorkerState.GONE
        self.workers[worker.slot] = None
        self._gone[worker.token] = worker
        self._poll = None
        worker.died_early = was is not WorkerState.READY
        if was is WorkerState.REQUESTED and self._stillbirths < _STILLBIRTHS:
            # It never had a process: the fork server went before it came to it. Nothing was lost but a moment.
            self._stillbirths += 1
            self._end(worker, 0)
            self.spawn(worker.slot)
            return
        if (dispatcher := self.dispatcher) is not None:
            dispatcher.was_lost(worker)
        the_supervisor().terminate(worker.token, 0)
        if not self._closing:
            self.spawn(worker.slot, after_a_loss=True)

    @property
    def cannot_start(self) -> bool:
        """Whether workers die before they are ready, again and again."""
        return max(self.early_deaths.values(), default=0) >= _EARLY_DEATHS

    def replace(self, worker: WorkerHandle) -> None:
        """End a worker that has nothing to do, and have another one born."""
        self._end(worker, GRACE_S)
        self.spawn(worker.slot)

    def _end(self, worker: WorkerHandle, grace_s: float) -> None:
        self.workers[worker.slot] = self._poll = None
        the_supervisor().terminate(worker.token, grace_s)
        worker.close()

    # -- waiting ---------------------------------------------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        """Wait until a worker has sent something, or the supervisor has news. Needs no lock."""
        with self.lock:
            poll = self._poll
            if poll is None:
                poll = self._poll = select.poll()
                poll.register(self._wakeup.fileno(), select.POLLIN)
                for worker in self.workers:
                    if worker is not None and worker.channel.fileno() >= 0:
                        poll.register(worker.channel.fileno(), select.POLLIN)
        if any(fd == self._wakeup.fileno() for fd, _ in poll.poll(seconds * 1000)):
            self._wakeup.drain()

    def poll(self) -> None:
        """Do what has to be done while nobody asks for a batch. Called by the supervisor."""
        if (dispatcher := self.dispatcher) is not None and not self._closing and dispatcher.looked_s_ago() < _BUSY_S:
            return  # the trainer's thread does it all by itself
        if not self.lock.acquire(timeout=0.01):
            return
        try:
            if self._closing:
                self._close()
                return
            self.receive()
            if (dispatcher := self.dispatcher) is not None:
                dispatcher.look()
                dispatcher.assign()
        except OSError as error:
            # In this thread nobody would hear of it; whoever asks for the next batch does.
            self.fatal = no_descriptors(error)
            self.wake()
        finally:
            self.lock.release()

    # -- the end ---------------------------------------------------------------------------------------------------

    def _cancel(self) -> None:
        """Tell workers which runs nobody waits for any more."""
        while self.cancelled:
            message = Cancel(self.cancelled.popleft())
            for worker in self.workers:
                if worker is not None:
                    with contextlib.suppress(Closed):
                        worker.channel.send_nowait(message)

    def end(self) -> None:
        """End all workers, soon. Takes no lock and waits for nothing: the collector may call this anywhere."""
        if os.getpid() == self.pid and not self._closing:
            self._closing = True
            self.dispatcher = self._program = None  # Order: here, so that what is the user's does not go in our thread
            the_supervisor().end(self)

    def _close(self) -> None:
        supervisor = the_supervisor()
        supervisor.drop(self)
        for worker in [*self.workers, *self._gone.values()]:
            if worker is not None:
                supervisor.terminate(worker.token, GRACE_S)
                worker.close()
        self.workers = [None] * len(self.workers)
        self._gone.clear()
        self.template = self._templates = self._environment = None
        self._wakeup.close()
