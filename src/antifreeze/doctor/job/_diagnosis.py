"""The result of the doctor: a verdict, which processes hold up the job, why, and on what evidence."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from antifreeze.diagnosis import Cause, Finding, Frame


class Verdict(enum.Enum):
    """State of a job."""

    HEALTHY = "healthy"
    """It makes progress."""
    SLOW = "slow"
    """It is held up by something that makes progress, or that may end by itself."""
    STUCK = "stuck"
    """It will not recover by itself."""


class Confidence(enum.Enum):
    """How certain a cause is."""

    CERTAIN = "certain"
    """It was observed."""
    LIKELY = "likely"
    """System call and Python line agree, but something else could look the same."""
    POSSIBLE = "possible"
    """The Python lines could not be read, or there is little evidence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A process that holds up the job, and why."""

    pid: int
    """Process id."""
    name: str
    """Name for people: ``worker 1 (pid 123) of rank 0``."""
    finding: Finding
    """The cause and its evidence."""
    confidence: Confidence
    """How certain the cause is."""
    sample: str = ""
    """Index of the sample that a worker of torch's loader works on, if it can be seen."""
    still_s: float = 0.0
    """Seconds for which it is known to have made no progress."""
    frames: tuple[Frame, ...] = ()
    """Lines of user code, innermost first."""
    folder: str = ""
    """Working directory of the process."""

    @property
    def cause(self) -> Cause:
        """Cause of the stall; its ``value`` is the name that ``antifreeze explain`` takes."""
        return self.finding.cause

    @property
    def link(self) -> str:
        """The command that explains the cause."""
        return f"antifreeze explain {self.cause.value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What ``diagnose`` found out about a job."""

    verdict: Verdict
    """Healthy, slow or stuck."""
    summary: str
    """One paragraph for people."""
    suspects: tuple[Suspect, ...] = ()
    """Processes that hold up the job; the one that holds up the others comes first."""
    notes: tuple[str, ...] = ()
    """Where time went, and what could not be inspected."""
    sure: bool = True
    """True if inspecting for longer would not change the diagnosis."""
    looked_s: float = 0.0
    """Seconds of inspection."""

    def with_lines(self, lines: tuple[str, ...]) -> Diagnosis:
        """Return a copy with more evidence for the first suspect.

        Args:
            lines: Lines of evidence to append.

        Returns:
            The copy.
        """
        first, *others = self.suspects
        finding = replace(first.finding, evidence_lines=(*first.finding.evidence_lines, *lines))
        return replace(self, suspects=(replace(first, finding=finding), *others))
