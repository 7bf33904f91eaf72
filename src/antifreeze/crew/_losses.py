"""Workers that are gone: their tasks go back, why they are gone is found out, and what cost too many is set aside."""

from __future__ import annotations

import time
from dataclasses import dataclass

from antifreeze.child import Share
from antifreeze.core import WorkerDied
from antifreeze.crew._crew import Crew
from antifreeze.crew._failures import fault_error
from antifreeze.crew._history import History
from antifreeze.crew._ledger import Ledger, Poison
from antifreeze.crew._member import Member
from antifreeze.crew._sources import Source
from antifreeze.crew._watch import Watch
from antifreeze.crew._words import batch_of, lines_of
from antifreeze.supervise import Cause, Finding, Restart, Skip
from antifreeze.transport import Stage

_EXIT_S = 1.0
_IN_VAIN = 10


@dataclass(slots=True)
class _Lost:
    """A worker that is gone and whose exit has not been explained yet."""

    member: Member
    at: tuple[int, int, int] | None
    poison: Poison | None
    until_s: float
    code: int | None = None
    is_over: bool = False
    """Whether its exit code has come, or is waited for no longer."""


class Losses:
    """What an epoch does about lost workers. Called with the crew's lock held."""

    def __init__(self, crew: Crew, source: Source, ledger: Ledger, watch: Watch, history: History, number: int) -> None:
        self._crew, self._source, self._ledger, self._watch, self._history = crew, source, ledger, watch, history
        self._number = number
        self._lost: dict[int, _Lost] = {}
        self._restarts = self._in_vain = 0
        self._began_s = time.monotonic()

    def came_back(self) -> None:
        """Note that work gets done: losses before it were not in vain."""
        self._in_vain = 0

    def lost(self, member: Member) -> None:
        """Put a lost worker's tasks back, and find out why it is gone."""
        record, member.sample = member.record, self._watch.sample(member)  # Order: while its tasks are known
        at = None
        if record.stage.working and record.stage not in (Stage.BORN, Stage.LOAD, Stage.INIT) and record.step >= 0:
            at = (record.step, record.position, int(record.stage))
        poison = self._ledger.lost(member.slot, at)
        lost = _Lost(member, at, poison, time.monotonic() + _EXIT_S)
        if member.finding is not None:
            self._explain(lost, None)
        else:
            self._lost[member.token] = lost
            self._crew.exits[member.token] = lambda code: self._heard(member.token, code)

    def lost_while_loading(self, pid: int, why: Finding) -> None:
        """Remember that the process which loads the payload for all workers was lost."""
        lines = (why.title, *(line for line in why.evidence_lines if line not in why.title))
        after_s = time.monotonic() - self._began_s
        self._history.restart(
            Restart(worker=-1, pid=pid, cause=why.cause.value, sample="", after_s=after_s, evidence=lines)
        )

    @property
    def unexplained(self) -> int:
        """How many workers are gone of which it is not known why. It is for a second at most."""
        return len(self._lost)

    def holds(self, slot: int) -> bool:
        """Tell whether a worker should get nothing yet: what its predecessor stood at may be poison."""
        return any(lost.poison is not None and lost.member.slot == slot for lost in self._lost.values())

    def look(self, now_s: float) -> None:
        """Wait no longer to hear how a worker has ended than is good for those who wait for its task."""
        for token, lost in list(self._lost.items()):
            if now_s > lost.until_s:
                self._crew.exits.pop(token, None)
                self._heard(token, None)

    def retired(self, member: Member, finding: Finding) -> None:
        """Tell of a worker that is replaced when it has nothing to do."""
        self._watch.lost(member, finding, self._began_s, "it had finished its batches, and is replaced")

    def _heard(self, token: int, code: int | None) -> None:
        lost = self._lost.get(token)
        if lost is not None:
            lost.code, lost.is_over = code, True
        # Order: as they were lost. The second at a place may end the epoch, and the first would never be told of.
        while self._lost and (first := next(iter(self._lost.values()))).is_over:
            del self._lost[first.member.token]
            self._explain(first, first.code)

    def _explain(self, lost: _Lost, code: int | None) -> None:
        """A worker's end is known: say it, remember it, and decide about the task that it stood at."""
        member, poison = lost.member, lost.poison
        finding = self._watch.exit_of(member, code)
        if finding.cause is Cause.ORPHANED:
            # It was lost with its nursery: neither its task nor its start is to blame.
            if lost.at is not None:
                self._ledger.forgive(lost.at)
            if poison is not None:
                self._ledger.again(poison.step, self._ledger.task(poison.step))
                poison = None
        else:
            self._crew.early_deaths[member.slot] += member.died_early
        self._restarts += 1
        self._in_vain += 1
        again, given_up = "its batches are made again by another worker", "it is the second worker lost there"
        self._watch.lost(member, finding, self._began_s, again if poison is None else given_up)
        if poison is not None:
            self._poisoned(poison, member, finding)
        too_often = self._in_vain > max(_IN_VAIN, 3 * self._crew.terms.num_workers)
        if self._crew.cannot_start or too_often or self._restarts > self._crew.terms.max_restarts:
            self._crew.fatal = self._hopeless(member, finding)

    def _poisoned(self, poison: Poison, member: Member, finding: Finding) -> None:
        task = self._ledger.task(poison.step)
        place = self._watch.sample(member)
        if poison.position < 0:
            place = self._source.name(task, batch_of(member.record), -1)
        attempts = max(2, self._ledger.deaths(poison.step))
        error = fault_error(finding, worker=member.name, step=poison.step, place=place, attempts=attempts)
        can_skip = poison.position >= 0 and not isinstance(task.what, Share)
        if can_skip and self._crew.terms.on_error == "skip":
            self._history.skip(Skip(sample=place, reason=error.message, epoch=self._number, step=poison.step))
            self._ledger.again(poison.step, task._replace(skip=(*task.skip, poison.position)))
            return
        if can_skip:
            error.retry = (task, poison.position)
        self._ledger.fail(poison.step, error)
        self._source.give_up(member.slot)

    def _hopeless(self, member: Member, finding: Finding) -> WorkerDied:
        start = self._crew.cannot_start
        why = "before they could start" if start else f"{self._restarts} times in this epoch"
        return WorkerDied(
            f"workers were lost {why}; the last was {member.name}, which {finding.title} "
            f"at {self._watch.words(member)}{lines_of(finding)}",
            hint=finding.hint if start else f"{finding.hint} max_restarts= sets how many losses are healed",
            worker=member.slot,
            cause=finding.cause.value,
        )
