"""What the doctor says: a verdict, who holds up the job, why, and on what evidence."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from antifreeze.diagnosis import Cause, Finding, Frame


class Verdict(enum.Enum):
    """How a job is."""

    HEALTHY = "healthy"
    """It goes on."""
    SLOW = "slow"
    """Something holds it up that moves, or that may end by itself."""
    STUCK = "stuck"
    """It will not go on by itself."""


class Confidence(enum.Enum):
    """How sure a cause is."""

    CERTAIN = "certain"
    LIKELY = "likely"
    POSSIBLE = "possible"


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A process that holds up the job, and why."""

    pid: int
    name: str
    """Who it is to a person: ``worker 1 (pid 123) of rank 0``."""
    finding: Finding
    confidence: Confidence
    sample: str = ""
    """The index of the sample that a worker of torch's stands at, if it can be seen."""
    still_s: float = 0.0
    """For how long it is known to have stood there."""
    frames: tuple[Frame, ...] = ()
    """The user's own lines, innermost first."""
    folder: str = ""
    """Where it runs."""

    @property
    def cause(self) -> Cause:
        """Why it stands still."""
        return self.finding.cause

    @property
    def link(self) -> str:
        """The command that explains the cause."""
        return f"antifreeze explain {self.cause.value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What was found out about a job."""

    verdict: Verdict
    summary: str
    """One paragraph."""
    suspects: tuple[Suspect, ...] = ()
    """The one that holds up the others first."""
    notes: tuple[str, ...] = ()
    """What could not be seen, and what else is worth knowing."""
    sure: bool = True
    """Whether looking longer would not change it."""
    looked_s: float = 0.0

    def with_lines(self, lines: tuple[str, ...]) -> Diagnosis:
        """Return it with more evidence for the first suspect."""
        first, *others = self.suspects
        finding = replace(first.finding, evidence_lines=(*first.finding.evidence_lines, *lines))
        return replace(self, suspects=(replace(first, finding=finding), *others))
