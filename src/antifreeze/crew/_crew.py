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

from antifreeze.child import Cancel, Failure, Ready, Results, Start, Surroundings, Task
from antifreeze.core import AntifreezeError
from antifreeze.crew._bell import Bell
from antifreeze.crew._failures import no_descriptors, user_error
from antifreeze.crew._keeper import the_keeper
from antifreeze.crew._member import Member, State, make_member
from antifreeze.crew._template import Template, Templates
from antifreeze.crew._terms import Flow, Terms
from antifreeze.supervise import Finding
from antifreeze.transport import Closed

GRACE_S = 1.0
"""How long a worker may take to finish what it is at when its loader ends."""
_EARLY_DEATHS = 3
_STILLBIRTHS = 10
_BUSY_S = 0.3


class Crew:
    """Worker processes that run one program.

    Two threads enter: the one that asks for batches, and the keeper, so that a worker that dies during a long training
    step is replaced before its batch is missed. Both hold ``lock`` while they do, and neither waits while it holds it.
    """

    def __init__(self, program: Any, seed: int, terms: Terms) -> None:
        self.terms = terms
        self.lock = threading.RLock()
        self.flow: Flow | None = None
        """Whose tasks these workers make. The collector may take it away at any moment."""
        self.members: list[Member | None] = [None] * terms.num_workers
        self.fatal: AntifreezeError | None = None
        self.pid = os.getpid()
        self._program, self._seed = program, seed
        self.template: Template | None = None
        """Where these workers come from."""
        self._templates: Templates | None = None
        self._surroundings: Surroundings | None = None
        self._gone: dict[int, Member] = {}
        self.early_deaths: Counter[int] = Counter()
        """How often in a row the workers of a slot were lost before they were ready."""
        self._stillbirths, self._closing = 0, False
        self._bell = Bell()
        self.wake = self._bell.ring
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
        the_keeper().keep(self)
        self._templates = templates
        before = templates.current
        self.template, self._surroundings = templates.of(self._program)
        with self.lock:
            for slot in range(len(self.members)):
                self.spawn(slot)
        del before  # Order: the modules it was forked from stay imported as long as somebody needs them

    def spawn(self, slot: int, *, after_a_loss: bool = False) -> None:
        """Ask for a worker for a slot."""
        template = self.template
        if self._closing or self.fatal is not None or template is None or self._surroundings is None:
            return
        start = Start(
            slot=slot,
            num_workers=len(self.members),
            on_error=self.terms.on_error,
            seed=self._seed,
            surroundings=self._surroundings,
            payload=template.parcel.payload,
            sends_at_once=after_a_loss,
        )
        try:
            member, message, fds = make_member(slot, start, template.parcel.fds())
        except OSError as error:
            self.fatal = no_descriptors(error)
            return
        self.members[slot], self._poll = member, None
        the_keeper().spawn(self, message, fds, template)

    def load_failed(self, token: int, template: Template) -> None:
        """Hear from the supervisor that user code raised while the payload was loaded."""
        with self.lock:
            if template is self.template and self._member(token) is not None:
                self._failed(template.failure, "the process that loads it for all workers")
        self.wake()

    def lost_while_loading(self, template: Template, pid: int, why: Finding) -> None:
        """Hear from the supervisor that the process which loads the payload was lost."""
        with self.lock:
            if template is self.template and (flow := self.flow) is not None:
                flow.lost_while_loading(pid, why)

    def was_prepared(self, template: Template) -> None:
        """Hear from the supervisor that the payload was loaded."""
        with self.lock:
            if template is self.template and (flow := self.flow) is not None:
                flow.started(template.load_s)

    def born(self, token: int, pid: int) -> None:
        """Hear from the keeper that a worker has a process."""
        with self.lock:
            member = self._member(token)
            if member is not None:
                member.pid, member.asked_s = pid, time.monotonic()
                if member.state is State.UNBORN:
                    member.state = State.LOADING

    def died(self, token: int, code: int | None) -> None:
        """Hear from the keeper how a worker has ended."""
        with self.lock:
            member = self._member(token)
            if member is not None:
                while self._receive_from(member):  # Order: what it had sent is not lost with it
                    pass
                self.lose(member)
            if (tell := self.exits.pop(token, None)) is not None:
                tell(code)
            if (gone := self._gone.pop(token, None)) is not None:
                gone.close()
        self.wake()

    def doomed(self, error: AntifreezeError) -> None:
        """Hear from the keeper that no worker can be had."""
        with self.lock:
            self.fatal = error
        self.wake()

    def _member(self, token: int) -> Member | None:
        return next((m for m in self.members if m is not None and m.token == token), None)

    # -- messages --------------------------------------------------------------------------------------------------

    def receive(self) -> None:
        """Take in what workers have sent. Needs the lock."""
        self._cancel()
        for member in self.members:
            if member is not None:
                self._receive_from(member)

    def _receive_from(self, member: Member) -> bool:
        """Take in some of what a worker has sent; return whether there was anything."""
        try:
            with contextlib.suppress(Closed):  # Order: what one that is gone had sent is taken in before that is
                member.channel.flush_nowait()
            messages = member.channel.receive_nowait()
            for message, fds in messages:
                self._hear(member, message, fds)
        except Closed:
            messages = []
            self.lose(member)
        except OSError as error:
            messages = []
            self.fatal = no_descriptors(error)
        return bool(messages)

    def _hear(self, member: Member, message: Any, fds: list[int]) -> None:
        if isinstance(message, Ready):
            self._ready(member, message)
        elif isinstance(message, Results):
            member.outbox.returned(message.returned)
            member.inbox.learn(message.opened, fds, message.dropped)
            for result in message.results:
                taken = (flow := self.flow) is not None and flow.came_back(member.slot, result, member)
                if not taken and result.packed is not None:
                    member.inbox.release(result.packed.pieces)
            if message.imported:
                self._learn(message.imported)

    def _learn(self, imported: tuple[str, ...]) -> None:
        """Have the next workers start with what one has imported by itself."""
        if self.template is None or self._templates is None:
            return
        if names := self.template.to_learn(imported, self._templates.by_value):
            the_keeper().learn(self.template, names)

    def _ready(self, member: Member, message: Ready) -> None:
        failure = message.failure
        if failure is None:
            member.state = State.READY
            self.early_deaths[member.slot] = self._stillbirths = 0
            if (flow := self.flow) is not None:
                flow.started(message.load_s)
        else:
            self._failed(failure, member.name)

    def _failed(self, failure: Failure, who: str) -> None:
        """Send modules by value that exist in this process only, or end with the error of the user's code."""
        templates = self._templates
        if templates is None or failure.module not in sys.modules or failure.module in templates.by_value:
            self.fatal = user_error(failure, worker=who, step=-1, place=self.terms.dataset)
            return
        templates.by_value.add(failure.module)
        self.template, self._surroundings = templates.of(self._program)
        for slot, other in enumerate(self.members):
            if other is not None and other.state is not State.READY:
                self._end(other, 0)
                self.spawn(slot)

    def give(self, member: Member, tasks: list[Task]) -> None:
        """Send tasks to a worker. Needs the lock."""
        with contextlib.suppress(Closed):  # it will be noticed as lost
            member.send(tasks)

    # -- loss ------------------------------------------------------------------------------------------------------

    def lose(self, member: Member) -> None:
        """Note that a worker is gone: its tasks go to others, and another one is born in its place."""
        if member.state is State.GONE:
            return
        was, member.state = member.state, State.GONE
        self.members[member.slot] = None
        self._gone[member.token] = member
        self._poll = None
        member.died_early = was is not State.READY
        if was is State.UNBORN and self._stillbirths < _STILLBIRTHS:
            # It never had a process: the nursery went before it came to it. Nothing was lost but a moment.
            self._stillbirths += 1
            self._end(member, 0)
            self.spawn(member.slot)
            return
        if (flow := self.flow) is not None:
            flow.was_lost(member)
        the_keeper().terminate(member.token, 0)
        if not self._closing:
            self.spawn(member.slot, after_a_loss=True)

    @property
    def cannot_start(self) -> bool:
        """Whether workers die before they are ready, again and again."""
        return max(self.early_deaths.values(), default=0) >= _EARLY_DEATHS

    def replace(self, member: Member) -> None:
        """End a worker that has nothing to do, and have another one born."""
        self._end(member, GRACE_S)
        self.spawn(member.slot)

    def _end(self, member: Member, grace_s: float) -> None:
        self.members[member.slot] = self._poll = None
        the_keeper().terminate(member.token, grace_s)
        member.close()

    # -- waiting ---------------------------------------------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        """Wait until a worker has sent something, or the keeper has news. Needs no lock."""
        with self.lock:
            poll = self._poll
            if poll is None:
                poll = self._poll = select.poll()
                poll.register(self._bell.fileno(), select.POLLIN)
                for member in self.members:
                    if member is not None and member.channel.fileno() >= 0:
                        poll.register(member.channel.fileno(), select.POLLIN)
        if any(fd == self._bell.fileno() for fd, _ in poll.poll(seconds * 1000)):
            self._bell.silence()

    def tend(self) -> None:
        """Do what has to be done while nobody asks for a batch. Called by the keeper."""
        if (flow := self.flow) is not None and not self._closing and flow.looked_s_ago() < _BUSY_S:
            return  # the trainer's thread does it all by itself
        if not self.lock.acquire(timeout=0.01):
            return
        try:
            if self._closing:
                self._close()
                return
            self.receive()
            if (flow := self.flow) is not None:
                flow.look()
                flow.assign()
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
            for member in self.members:
                if member is not None:
                    with contextlib.suppress(Closed):
                        member.channel.send_nowait(message)

    def end(self) -> None:
        """End all workers, soon. Takes no lock and waits for nothing: the collector may call this anywhere."""
        if os.getpid() == self.pid and not self._closing:
            self._closing = True
            self.flow = self._program = None  # Order: here, so that what is the user's does not go in our thread
            the_keeper().end(self)

    def _close(self) -> None:
        keeper = the_keeper()
        keeper.drop(self)
        for member in [*self.members, *self._gone.values()]:
            if member is not None:
                keeper.terminate(member.token, GRACE_S)
                member.close()
        self.members = [None] * len(self.members)
        self._gone.clear()
        self.template = self._templates = self._surroundings = None
        self._bell.close()
