"""Whether a server moves while something is asked of it: it only imports and loads, but a disk may be dead."""

from __future__ import annotations

import time
from dataclasses import dataclass

from antifreeze.core import Lines, get_logger, one_line
from antifreeze.diagnosis import (
    Counters,
    Finding,
    ProcSnapshot,
    StallLimits,
    evidence_of,
    find_cause,
    loading_s,
    loading_still_s,
    loading_warn_s,
    parse_stack,
    read_counters,
    read_proc,
)
from antifreeze.pool._ask_stacks import ask_for_stacks
from antifreeze.pool._messages import lines_of

logger = get_logger()

_AWAY_S = 3.0
"""If nobody has looked for so long, it is we who stood still."""


@dataclass(slots=True)
class _Sight:
    counters: Counters | None
    snapshot: ProcSnapshot
    asked_s: float
    moved_s: float
    at_s: float
    warned: bool = False


class Bedside:
    """Looks at one process. Used by the supervisor's thread alone."""

    def __init__(self, pid: int, title: str = "the fork server", stacks: int = -1, *, is_awaited: bool = True) -> None:
        self._pid, self._title, self._stacks, self._is_awaited = pid, title, stacks, is_awaited
        self._runs_user_code = stacks >= 0
        self._sight: _Sight | None = None

    def _counters(self) -> Counters | None:
        return read_counters(self._pid, alone=not self._runs_user_code)

    def stuck(self, limits: StallLimits, *, is_asked: bool) -> Finding | None:
        """Return why it does not answer, once it has stood still for too long; warn of it before."""
        now_s, sight = time.monotonic(), self._sight
        if not is_asked:
            self._sight = None
            return None
        if sight is None or now_s - sight.at_s > _AWAY_S:
            self._sight = _Sight(self._counters(), read_proc(self._pid), now_s, now_s, now_s)
            return None
        before, after = sight, self._counters()
        if before.counters and after and after.moved_since(before.counters):
            sight.moved_s = now_s
        still_s, asked_s = now_s - sight.moved_s, now_s - sight.asked_s
        is_stuck = still_s > loading_still_s(limits, runs_user_code=self._runs_user_code) or asked_s > loading_s(limits)
        finding = None
        if is_stuck or (still_s > loading_warn_s(limits) and not sight.warned):
            seen = (before.counters, after, now_s - sight.at_s, before.snapshot, read_proc(self._pid))
            frames = parse_stack(ask_for_stacks(self._pid, self._stacks))
            finding = find_cause(evidence_of(self._pid, *seen, stage="load", frames=frames))
            what = f"{self._title} (pid {self._pid}) has not answered for {asked_s:.0f} s"
            what += f", nor moved for {still_s:.0f} s" if still_s >= 1 else ""
            then = "it is replaced" if is_stuck else "no worker can be started"
            if not self._is_awaited:
                then = "it is ended" if is_stuck else "workers are started without it"
            rest = Lines("" if sight.warned else f"{lines_of(finding)}\n  hint: {one_line(finding.hint)}")
            logger.warning("antifreeze: %s: it %s; %s%s", what, finding.title, then, rest)
            sight.warned = True
        sight.counters, sight.snapshot, sight.at_s = after, read_proc(self._pid), now_s
        return finding if is_stuck else None
