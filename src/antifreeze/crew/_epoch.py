"""One epoch over a crew: tasks are given out, results come back in order, what is lost is made again."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from antifreeze.child import Result, Share
from antifreeze.core import AntifreezeError, Stalled, WorkerDied
from antifreeze.crew._crew import Crew
from antifreeze.crew._failures import fault_error, user_error
from antifreeze.crew._history import History
from antifreeze.crew._ledger import Ledger, Poison
from antifreeze.crew._member import Member, State
from antifreeze.crew._pace import Pace
from antifreeze.crew._sources import Source
from antifreeze.crew._watch import Watch, sample_of
from antifreeze.supervise import Finding, Skip
from antifreeze.transport import Inbox, Stage, unpack

logger = logging.getLogger("antifreeze")

_WAIT_S = 0.1
_EXIT_S = 1.0
_NO_PROGRESS = 10


class Batch(NamedTuple):
    """A batch that has come back."""

    result: Result
    inbox: Inbox


@dataclass(slots=True)
class _Lost:
    """A worker that is gone and whose exit has not been explained yet."""

    member: Member
    poison: Poison | None
    until_s: float


Decide = Callable[[AntifreezeError], Any] | None
"""The user's function that says whether to go on without a sample."""


class Epoch:
    """The flow of one epoch. Everything but ``next`` is called with the crew's lock held."""

    def __init__(
        self, crew: Crew, source: Source, ledger: Ledger, pace: Pace, history: History, *, number: int, decide: Decide
    ) -> None:
        self._crew, self._source, self._ledger, self._pace, self._history = crew, source, ledger, pace, history
        self._number, self._decide = number, decide
        self._watch = Watch(crew.terms.limits, history)
        self._lost: dict[int, _Lost] = {}
        self._retiring: dict[int, Finding] = {}
        self._restarts = self._in_vain = 0
        self._began_s = time.monotonic()
        self._waiting_since_s: float | None = None
        self._looked_s = 0.0
        self._exhausted = False

    # -- the trainer's thread --------------------------------------------------------------------------------------

    def next(self, timeout_s: float) -> Any:
        """Return the next batch, or raise: StopIteration at the end, an error that names what is wrong otherwise."""
        began_s = self._waiting_since_s = time.monotonic()
        try:
            while True:
                with self._crew.lock:
                    outcome = self._advance()
                    if isinstance(outcome, Batch):
                        return self._open(outcome)
                if isinstance(outcome, AntifreezeError):
                    self._raise(outcome)
                    continue
                if timeout_s and time.monotonic() - began_s > timeout_s:
                    raise self._timed_out(timeout_s)
                self._crew.wait(_WAIT_S)
        finally:
            self._waiting_since_s = None

    def _advance(self) -> Batch | AntifreezeError | None:
        crew, ledger = self._crew, self._ledger
        # With the next batch at hand and enough with the workers, there is nothing to be done but to take it.
        if not ledger.is_ready or 2 * (ledger.open - ledger.num_back) < self._pace.quota * crew.terms.num_workers:
            crew.receive()
            self.look()
            self._fill()
            self.assign()
        while (outcome := ledger.take()) is not None:
            if not isinstance(outcome, Batch):
                error: AntifreezeError = outcome
                return error
            if outcome.result.packed is not None:
                return outcome
            self._fill()
            self.assign()
        if crew.fatal is not None:
            raise crew.fatal
        if self._exhausted and not ledger.open and not self._someone_starts():
            raise StopIteration
        return None

    def _someone_starts(self) -> bool:
        starting = (State.UNBORN, State.LOADING)
        return self._crew.terms.waits_for_all and any(m and m.state in starting for m in self._crew.members)

    def _open(self, batch: Batch) -> Any:
        assert batch.result.packed is not None  # noqa: S101  checked by _advance
        self._history.delivered(batch.result.num_samples, batch.result.nbytes)
        return unpack(batch.result.packed, batch.inbox)

    def _raise(self, error: AntifreezeError) -> None:
        """Raise, unless the user's function wants to go on without the sample."""
        position, step, task = error.facts.get("position", -1), error.facts.get("step", -1), error.facts.get("task")
        if self._decide is None or position < 0 or task is None:
            raise error
        if self._decide(error) not in ("skip", True):
            raise error
        with self._crew.lock:
            self._history.skip(
                Skip(sample=error.facts.get("sample", ""), reason=error.message, epoch=self._number, step=step)
            )
            # Order: it is the next one to be delivered, so it goes in front of everything.
            self._ledger.redo(task._replace(skip=(*task.skip, position)))
            self.assign()

    def _timed_out(self, timeout_s: float) -> Stalled:
        names = [f"{m.name} is at {m.record.stage.name.lower()}" for m in self._crew.members if m is not None]
        return Stalled(
            f"timed out: no batch for {timeout_s:g} s\n  " + "\n  ".join(names),
            hint="timeout= sets how long to wait for a batch; stall_limit= how long a worker may stand still",
            silent_s=timeout_s,
        )

    # -- tasks -----------------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Take tasks from the source while there is room for them."""
        room = self._pace.quota * self._crew.terms.num_workers
        while not self._exhausted and self._ledger.open < room:
            if self._ledger.open and not self._source.is_ready():
                return
            found = self._source.next()
            if found is None:
                self._exhausted = True
            else:
                self._ledger.add(*found)

    def assign(self) -> None:
        """Give tasks to workers that have room."""
        for member in self._crew.members:
            if member is None or member.state is not State.READY or member.slot in self._retiring:
                continue
            room = self._pace.quota - self._ledger.load(member.slot)
            tasks = self._ledger.give(member.slot, room) if room > 0 else []
            if tasks:
                self._crew.give(member, [self._source.prepare(task, member) for task in tasks])

    def came_back(self, slot: int, result: Result, member: Member) -> None:
        """Take in a result."""
        if result.epoch != self._number or not self._ledger.holds(slot, result.step):
            return  # of an epoch that was left, or made again by another worker in the meantime
        self._in_vain = 0
        task = self._ledger.task(result.step)
        for skip in result.skipped:
            name = self._source.name(task, skip.sample, skip.position)
            self._history.skip(Skip(sample=name, reason=skip.reason, epoch=self._number, step=result.step))
        self._history.spent(dict(result.times), result.slowest)
        self._pace.learn(sum(seconds for _, seconds in result.times), result.nbytes)
        problem = self._source.came_back(task, result, slot)
        outcome: Any = problem or Batch(result, member.inbox)
        if result.failure is not None:
            place = self._source.name(task, result.failure.sample, result.failure.position)
            outcome = user_error(result.failure, worker=member.name, step=result.step, place=place)
            if result.failure.can_skip:
                outcome.facts |= {"position": result.failure.position, "task": task}
        self._ledger.done(slot, result.step, outcome)

    # -- loss ------------------------------------------------------------------------------------------------------

    def was_lost(self, member: Member) -> None:
        """Put a lost worker's tasks back, and find out why it is gone."""
        record = member.record
        at = None
        if record.stage.working and record.stage not in (Stage.BORN, Stage.LOAD, Stage.INIT) and record.step >= 0:
            at = (record.step, record.position, int(record.stage))
        poison = self._ledger.lost(member.slot, at)
        lost = _Lost(member, poison, time.monotonic() + _EXIT_S)
        self._retiring.pop(member.slot, None)
        if member.finding is not None:
            self._explain(lost, None)
        else:
            self._lost[member.token] = lost
            self._crew.exits[member.token] = lambda code: self._heard(member.token, code)
        self.assign()

    def _heard(self, token: int, code: int | None) -> None:
        lost = self._lost.pop(token, None)
        if lost is not None:
            self._explain(lost, code)

    def _explain(self, lost: _Lost, code: int | None) -> None:
        """A worker's end is known: say it, remember it, and decide about the task that it stood at."""
        member, poison = lost.member, lost.poison
        finding = self._watch.exit_of(member, code)
        self._restarts += 1
        self._in_vain += 1
        rest = (
            "its batches are made again by another worker" if poison is None else "it is the second worker lost there"
        )
        self._watch.lost(member, finding, self._began_s, rest)
        if poison is not None:
            self._poisoned(poison, member, finding)
        if self._crew.cannot_start or self._restarts > self._crew.terms.max_restarts or self._in_vain > self._too_often:
            self._crew.fatal = self._hopeless(member, finding)

    @property
    def _too_often(self) -> int:
        return max(_NO_PROGRESS, 3 * self._crew.terms.num_workers)

    def _poisoned(self, poison: Poison, member: Member, finding: Finding) -> None:
        task = self._ledger.task(poison.step)
        sample = sample_of(member.record) if poison.position >= 0 else ""
        place = self._source.name(task, sample or f"batch {poison.step}", poison.position)
        attempts = max(2, self._ledger.deaths(poison.step))
        error = fault_error(finding, worker=member.name, step=poison.step, place=place, attempts=attempts)
        can_skip = poison.position >= 0 and not isinstance(task.what, Share)
        if can_skip and self._crew.terms.on_error == "skip":
            self._history.skip(Skip(sample=place, reason=error.message, epoch=self._number, step=poison.step))
            self._ledger.again(poison.step, task._replace(skip=(*task.skip, poison.position)))
            return
        if can_skip:
            error.facts |= {"position": poison.position, "task": task}
        self._ledger.fail(poison.step, error)

    def _hopeless(self, member: Member, finding: Finding) -> WorkerDied:
        start = self._crew.cannot_start
        why = "before they could start" if start else f"{self._restarts} times in this epoch"
        lines = "".join(f"\n    {line}" for line in finding.evidence_lines)
        return WorkerDied(
            f"workers were lost {why}; the last was {member.name}, which {finding.title}{lines}",
            hint=f"{finding.hint} max_restarts= sets how many losses are healed",
            worker=member.slot,
            cause=finding.cause.value,
        )

    # -- supervision -----------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Look whether every worker moves; at most ten times a second."""
        now_s = time.monotonic()
        if now_s - self._looked_s < _WAIT_S:
            return
        self._looked_s = now_s
        waiting_s = now_s - self._waiting_since_s if self._waiting_since_s is not None else 0.0
        members = [m for m in self._crew.members if m is not None]
        attempts = {m.slot: self._attempts(m) for m in members}
        for member, finding in self._watch.judge(members, attempts, waiting_s):
            member.kill(finding)
            self._crew.lose(member)
        for member, finding in self._watch.leaking(members, self._crew.terms.memory_limit):
            self._retiring.setdefault(member.slot, finding)
        self._retire()
        for token, lost in list(self._lost.items()):
            if now_s > lost.until_s:
                self._crew.exits.pop(token, None)
                self._heard(token, None)

    def _attempts(self, member: Member) -> int:
        record = member.record
        if record.stage in (Stage.BORN, Stage.LOAD, Stage.INIT):
            return self._crew.early_deaths
        return self._ledger.deaths(record.step)

    def _retire(self) -> None:
        """Replace workers that leak, once they have sent what they were given."""
        for slot, finding in list(self._retiring.items()):
            member = self._crew.members[slot]
            if member is not None and not self._ledger.load(slot):
                del self._retiring[slot]
                self._watch.lost(member, finding, self._began_s, "it had finished its batches, and is replaced")
                self._crew.replace(member)
