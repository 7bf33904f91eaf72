"""Looking at workers from outside: what their records and their processes say, and what follows from it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from antifreeze.core import get_logger
from antifreeze.crew._failures import never_forked
from antifreeze.crew._history import History
from antifreeze.crew._member import Member, State
from antifreeze.crew._stalls import Stalls
from antifreeze.crew._words import batch_of, lines_of
from antifreeze.ranks import Place
from antifreeze.supervise import (
    Beat,
    Cause,
    Evidence,
    Finding,
    Glance,
    Kill,
    Limits,
    Look,
    Restart,
    decide,
    evidence_of,
    find_cause,
    glance,
    loading_s,
    look,
    oom_kills,
    parse_stack,
    rss_of,
    warn_after_s,
)
from antifreeze.transport import Record, Stage

logger = get_logger()

_SOON_S = 0.3
_GLANCE_S = 0.5
_MEMORY_S = 1.0
_AWAY_S = 1.0

Found = tuple[Member, Finding]


class Charge(NamedTuple):
    """What a worker has been given."""

    tasks: int
    attempts: int
    """How many workers the task that it is at has cost before."""


@dataclass(slots=True)
class _Sight:
    """What was seen of one worker's process."""

    glance: Glance | None
    look: Look
    at_s: float
    moved_s: float
    warned_of: float = -1.0
    warnings: int = 0


class Watch:
    """Observes the workers of a crew. Costs next to nothing while they move: only the silent are looked at."""

    def __init__(self, limits: Limits, history: History, name: Callable[[Record], str]) -> None:
        self._limits, self._history, self._name = limits, history, name
        self._sights: dict[int, _Sight] = {}
        self.stalls = Stalls(history)
        self._waiting_s = 0.0
        self._first_nbytes: dict[int, int] = {}
        self._oom_kills = oom_kills()
        self._memory_s = 0.0
        self._judged_s = self._back_s = time.monotonic()
        self.slowest_s = 0.0
        self.num_samples = 0

    def judge(self, members: Iterable[Member], charges: dict[int, Charge], waiting_s: float) -> list[Found]:
        """Return the workers to be replaced, and why; warn of those that keep the trainer waiting."""
        now_s, self._waiting_s = time.monotonic(), waiting_s
        if now_s - self._judged_s > _AWAY_S:
            # It is us who stood still: a call that held the interpreter's lock, a laptop that slept.
            self._back_s = now_s
        self._judged_s = now_s
        beats, by_slot = [], {}
        for member in members:
            if member.pid and member.state in (State.LOADING, State.READY):
                by_slot[member.slot] = member
                beats.append(self._beat(member, charges[member.slot], waiting_s, now_s))
        stuck = []
        for decision in decide(beats, self._limits, self.slowest_s, self.num_samples):
            member = by_slot[decision.worker]
            record = member.record
            finding = self._find(member)
            if isinstance(decision, Kill):
                stuck.append((member, finding))
            elif member.record.since_s == record.since_s:  # else it has gone on while it was looked at
                self._warn(member, finding)
        return stuck

    def _beat(self, member: Member, charge: Charge, waiting_s: float, now_s: float) -> Beat:
        record = member.record
        self.slowest_s = max(self.slowest_s, record.slowest_s)
        self.num_samples = max(self.num_samples, record.num_samples)
        since_s = max(record.since_s, member.asked_s, self._back_s)
        silent_s = now_s - since_s
        # Who says that it is idle while it has tasks does not run: it would have read them.
        working = record.stage.working or charge.tasks > 0
        if not working or silent_s < min(_GLANCE_S, warn_after_s(self._limits) / 4):
            self._sights.pop(member.token, None)
            return Beat(worker=member.slot, silent_s=silent_s, working=working)
        sight = self._seen(member, now_s)
        if sight.warned_of != record.since_s:
            sight.warned_of, sight.warnings = record.since_s, 0
        if record.stage is Stage.LOAD and silent_s < loading_s(self._limits):
            # Imports are known to be slow: a cold disk, a large library. They are judged by whether they move.
            silent_s = now_s - max(since_s, sight.moved_s)
        state = sight.glance.state if sight.glance else ""
        return Beat(
            worker=member.slot,
            silent_s=silent_s,
            working=True,
            stopped=state == "T",
            traced=state == "t",
            moves=now_s - sight.moved_s < 1.5,
            attempts=charge.attempts,
            waiting_s=waiting_s,
            warned=sight.warnings,
        )

    def _seen(self, member: Member, now_s: float) -> _Sight:
        sight = self._sights.get(member.token)
        if sight is None:
            sight = self._sights[member.token] = _Sight(glance(member.pid), look(member.pid), now_s, now_s)
        elif now_s - sight.at_s >= _GLANCE_S:
            before, after = sight.glance, glance(member.pid)
            if before and after and (after.cpu_s > before.cpu_s + 0.01 or after.moved_bytes > before.moved_bytes):
                sight.moved_s = now_s
            sight.glance, sight.look, sight.at_s = after, look(member.pid), now_s
        return sight

    def _find(self, member: Member) -> Finding:
        """Return why a silent worker stands still. Takes up to half a second: it is asked for its stacks."""
        sight = self._sights[member.token]
        state = sight.glance.state if sight.glance else ""
        frames = () if state in ("T", "t", "D", "Z") else parse_stack(member.ask_for_stacks())
        interval_s = time.monotonic() - sight.at_s
        if interval_s < _SOON_S:
            time.sleep(_SOON_S - interval_s)
            interval_s = _SOON_S
        known = {"stage": member.record.stage.name.lower(), "frames": frames}
        return find_cause(
            evidence_of(member.pid, sight.glance, glance(member.pid), interval_s, sight.look, look(member.pid), **known)
        )

    def _warn(self, member: Member, finding: Finding) -> None:
        self._sights[member.token].warnings += 1
        record = member.record
        silent_s = time.monotonic() - record.since_s
        text = (
            f"{member.name} has been at {self.words(member)} for {silent_s:.0f} s and {finding.title}; "
            "the training loop waits for it"
        )
        logger.warning("antifreeze: %s%s\n  hint: %s", text, lines_of(finding), finding.hint)
        self._history.note(text)
        self.stalls.note(member, record, self.place(member, record), finding)

    def place(self, member: Member, record: Record) -> Place:
        """Return where a worker stands, in words. One that starts takes its time: whether it moves is judged here."""
        starts = not member.pid or record.stage in (Stage.BORN, Stage.LOAD)
        still_s = 0.0 if starts else max(0.0, time.monotonic() - max(record.since_s, member.asked_s))
        return Place(member.name, record.stage.name.lower(), self.words(member), still_s)

    def exit_of(self, member: Member, code: int | None) -> Finding:
        """Return why a worker is gone."""
        if member.finding is not None:
            return member.finding
        if not member.pid and code == os.EX_OSERR:
            return never_forked()
        kills = oom_kills()
        more, self._oom_kills = kills - self._oom_kills, kills
        known: dict[str, Any] = {"stage": member.record.stage.name.lower(), "frames": parse_stack(member.read_stacks())}
        return find_cause(Evidence(pid=member.pid, exit_code=code, orphaned=code is None, oom_kills=more, **known))

    def lost(self, member: Member, finding: Finding, since_s: float, rest: str) -> None:
        """Tell people that a worker was lost, and remember it."""
        record = member.record
        self._history.memory.pop(member.slot, None)
        warned = self._sights.pop(member.token, None)
        text = f"{member.name} {finding.title} at {self.words(member)}; {rest}"
        if member.finding is not None and finding.cause is not Cause.LEAK:
            silent_s = time.monotonic() - record.since_s
            if self._waiting_s:  # else it is nobody else's concern
                self.stalls.note(member, record, self.place(member, record), finding)
            text = f"{member.name} was stuck at {self.words(member)} for {silent_s:.1f} s ({finding.title}); {rest}"
        if warned is not None and warned.warnings:  # all the rest was said then
            logger.warning("antifreeze: %s", text)
        else:
            logger.warning("antifreeze: %s%s\n  hint: %s", text, lines_of(finding), finding.hint)
        self._history.restart(
            Restart(
                worker=member.slot,
                pid=member.pid,
                cause=finding.cause.value,
                sample=self.sample(member),
                after_s=time.monotonic() - since_s,
                evidence=(finding.title, *(line for line in finding.evidence_lines if line not in finding.title)),
            )
        )

    def leaking(self, members: Iterable[Member], limit: int | None) -> list[Found]:
        """Return workers that have taken more than their share of memory, twice what they began with."""
        now_s = time.monotonic()
        if now_s - self._memory_s < _MEMORY_S:
            return []
        self._memory_s = now_s
        found = []
        for member in members:
            nbytes = rss_of(member.pid) if member.pid and member.state is State.READY else 0
            if not nbytes:
                continue
            self._history.memory[member.slot] = nbytes
            first = self._first_nbytes.setdefault(member.token, nbytes)
            if limit is not None and nbytes > max(limit, 2 * first):
                grown = f"its memory grew from {first >> 20:,} MB to {nbytes >> 20:,} MB"
                lines = (grown, f"the limit is {limit >> 20:,} MB")
                found.append((member, Finding(cause=Cause.LEAK, evidence_lines=lines)))
        return found

    def sample(self, member: Member) -> str:
        """Return the sample that a worker is at, or was when it was lost, in words; nothing if it was at none."""
        return self._name(member.record) if member.sample is None else member.sample

    def words(self, member: Member) -> str:
        """Return what a worker is at, or was, in words."""
        record = member.record
        match record.stage:
            case Stage.BORN | Stage.LOAD:
                return "its start, where it rebuilds the dataset"
            case Stage.INIT:
                return "its start, in worker_init_fn"
            case Stage.IDLE:
                return "the beginning of its next batch"
            case _:
                sample, batch = self.sample(member), batch_of(record)
                return f"{sample} ({batch})" if sample else batch
