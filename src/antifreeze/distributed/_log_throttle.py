"""How much is said at a time: of a few ranks in full, of the rest in one line. Pure.

If the file system is down, all ranks stand still, and each hears of all others.
"""

from __future__ import annotations

import math

from antifreeze.distributed._rank_judge import Change, RankEvent, RankProblem

IN_FULL = 3
"""Of so many ranks that stand still at the same time is spoken in full."""
REST_S = 2.0
"""The others wait for each other so long, to share a line."""
_SHOWN = 16
_WORDS = {
    (Change.BEGUN, RankProblem.STUCK): "stand still, too",
    (Change.BEGUN, RankProblem.SLOW): "wait for data, too",
    (Change.BEGUN, RankProblem.SILENT): "are silent, too",
    (Change.PASSED, RankProblem.STUCK): "had stood still, too, and go on",
    (Change.OVER, RankProblem.STUCK): "go on, too",
    (Change.OVER, RankProblem.SLOW): "go on, too",
    (Change.OVER, RankProblem.SILENT): "are heard of again, too",
}


class LogThrottle:
    """Decides which news are told in full, and which together."""

    def __init__(self) -> None:
        self._until_s: dict[int, float] = {}
        """The ranks that are spoken of in full, until when: while they stand still, or a moment if they do not."""
        self._rest: list[RankEvent] = []
        self._since_s = 0.0

    def in_full(self, news: list[RankEvent], now_s: float) -> list[RankEvent]:
        """Return those to be told in full now; the others are kept for ``rest``."""
        full = []
        self._until_s = {rank: until_s for rank, until_s in self._until_s.items() if until_s > now_s}
        for one in news:
            rank = one.verdict.record.rank
            if rank in self._until_s or (len(self._until_s) < IN_FULL and one.change is not Change.OVER):
                self._until_s[rank] = math.inf if one.change is Change.BEGUN else now_s + REST_S
                full.append(one)
            else:
                self._since_s = self._since_s if self._rest else now_s
                self._rest.append(one)
        return full

    def rest(self, now_s: float) -> str:
        """Return one line for all that were kept, once they have waited for each other; else nothing."""
        if not self._rest or now_s - self._since_s < REST_S:
            return ""
        rest, self._rest = self._rest, []
        return say_rest(rest)


def say_rest(rest: list[RankEvent]) -> str:
    """Return one line about many ranks."""
    parts = []
    for what in dict.fromkeys(_WORDS.values()):
        ranks = sorted({n.verdict.record.rank for n in rest if _WORDS.get((n.change, n.verdict.kind)) == what})
        shown = ", ".join(map(str, ranks[:_SHOWN])) + (", ..." if len(ranks) > _SHOWN else "")
        parts += [f"ranks {shown} ({len(ranks)}) {what}"] * bool(ranks)
    return f"antifreeze: {'; '.join(parts)}"
