"""The result of the doctor: a verdict, which processes hold up the job, why, and on what evidence."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from antifreeze.diagnosis import Cause, Finding, Frame


class Verdict(enum.Enum):
    """The state of a job."""

    HEALTHY = "healthy"
    """It makes progress."""
    SLOW = "slow"
    """It is held up by something that makes progress, or that may end by itself."""
    STUCK = "stuck"
    """It will not recover by itself."""


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
    """Its name for a person: ``worker 1 (pid 123) of rank 0``."""
    finding: Finding
    confidence: Confidence
    sample: str = ""
    """The index of the sample that a torch worker is processing, if visible."""
    still_s: float = 0.0
    """How long it is known to have been there."""
    frames: tuple[Frame, ...] = ()
    """The user's own lines, innermost first."""
    folder: str = ""
    """Its working directory."""

    @property
    def cause(self) -> Cause:
        """Why it is stalled."""
        return self.finding.cause

    @property
    def link(self) -> str:
        """The command that explains the cause."""
        return f"antifreeze explain {self.cause.value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The doctor's answer about a job."""

    verdict: Verdict
    summary: str
    """One paragraph."""
    suspects: tuple[Suspect, ...] = ()
    """The one that holds up the others comes first."""
    notes: tuple[str, ...] = ()
    """What was not visible, and where time was spent."""
    sure: bool = True
    """True if observing longer would not change it."""
    looked_s: float = 0.0

    def with_lines(self, lines: tuple[str, ...]) -> Diagnosis:
        """Return the diagnosis with more evidence for the first suspect."""
        first, *others = self.suspects
        finding = replace(first.finding, evidence_lines=(*first.finding.evidence_lines, *lines))
        return replace(self, suspects=(replace(first, finding=finding), *others))
