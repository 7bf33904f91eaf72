"""Text about a job: names of processes, the summary, and notes. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from antifreeze.core import one_line
from antifreeze.diagnosis import Cause, user_frames
from antifreeze.doctor.job._diagnosis import Suspect, Verdict
from antifreeze.doctor.job._observation import Observation
from antifreeze.doctor.job._process_activity import ProcessActivity
from antifreeze.doctor.job._roles import Doing, Job


def name_of(job: Job, worker: int | None = None, pid: int | None = None) -> str:
    """Return the name of a process for a person."""
    if worker is None:
        return (
            f"rank {job.rank} (pid {job.trainer})" if job.rank is not None else f"the training process ({job.trainer})"
        )
    rank = f" of rank {job.rank}" if job.rank is not None else ""
    return f"worker {worker} (pid {pid}){rank}"


def summary(
    verdict: Verdict, suspects: Sequence[Suspect], jobs: Sequence[tuple[Job, ProcessActivity]], still_s: float
) -> str:
    """Return the diagnosis in one paragraph."""
    job, trainer = jobs[0]
    if not suspects:
        share = share_of_waiting(trainer)
        if verdict is Verdict.HEALTHY:
            return "The job is making progress."
        return f"The job is making progress, but its loop waits for data in {share:.0%} of the snapshots."
    first = suspects[0]
    same = [suspect for suspect in suspects if suspect.cause is first.cause and suspect is not first]
    also = f" (and {len(same)} more like it)" if same else ""
    text = f"{_capital(first.name)}{also} {first.finding.title}"
    if first.sample:
        text += f", at sample {first.sample}"
    if first.frames:
        frame = first.frames[0]
        text += f", at {frame.file}:{frame.line} in {frame.function}"
    text += "."
    if verdict is Verdict.STUCK:
        stalled_s = max(still_s, first.still_s)
        text += (
            f" {_who_waits(job, trainer, first)}No progress for {_at_least(stalled_s)}; this will not end by itself."
        )
    elif verdict is Verdict.SLOW:
        text += f" {_who_waits(job, trainer, first)}No batch for {_at_least(still_s)}; this may end by itself."
    return text


def _who_waits(job: Job, trainer: ProcessActivity, first: Suspect) -> str:
    if first.pid == job.trainer:
        return ""
    return f"{_capital(name_of(job))} {trainer.doings[-1].value}. "


def _at_least(seconds: float) -> str:
    return f"at least {seconds:.0f} s" if seconds < 120 else f"at least {seconds / 60:.0f} minutes"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def share_of_waiting(trainer: ProcessActivity) -> float:
    """Return the fraction of snapshots in which the loop waited for data."""
    return sum(doing is Doing.DATA for doing in trainer.doings) / len(trainer.doings)


def where_time_goes(jobs: Iterable[tuple[Job, ProcessActivity]], workers: Iterable[ProcessActivity]) -> Iterator[str]:
    """Yield where trainers and workers were seen most often."""
    for job, trainer in jobs:
        if trainer.last.frames:
            counts = Counter(doing.value for doing in trainer.doings)
            parts = ", ".join(
                f"{what} ({count} of {len(trainer.doings)} snapshots)" for what, count in counts.most_common(2)
            )
            yield f"{name_of(job)} {parts}{_lines([trainer])}"
    working = [worker for worker in workers if not worker.always(Doing.IDLE)]
    if working:
        yield f"workers: {len(working)} at work{_lines(working)}"


def with_places(suspects: Sequence[Suspect], jobs: Sequence[tuple[Job, ProcessActivity]]) -> tuple[Suspect, ...]:
    """Return the suspects, those that wait for other ranks with the location of every rank."""
    places = []
    for job, trainer in jobs:
        frames = user_frames(trainer.last.frames, 1)
        inner = f" ({trainer.last.frames[0].function})" if trainer.doings[-1] is Doing.COLLECTIVE else ""
        at = f" at {frames[0]}" if frames else ""
        places.append(one_line(f"{name_of(job)} {trainer.doings[-1].value}{inner}{at}"))
    return tuple(
        replace(s, finding=replace(s.finding, evidence_lines=(*places, *s.finding.evidence_lines)))
        if s.cause is Cause.RANK
        else s
        for s in suspects
    )


def _lines(activities: Iterable[ProcessActivity]) -> str:
    """Return the user's lines at which processes were seen most often."""
    counts: Counter[str] = Counter()
    for activity in activities:
        for look, doing in zip(activity.seen, activity.doings, strict=True):
            frames = user_frames(look.frames, 1)
            if frames and doing is not Doing.IDLE:
                counts[str(frames[0])] += 1
    total = sum(counts.values())
    parts = [f"{place} ({count / total:.0%})" for place, count in counts.most_common(2)]
    return f"; mostly at {', '.join(parts)}" if parts else ""


def missing_lines(seen: Observation) -> Iterator[str]:
    """Yield what was not visible, and how to make it visible."""
    errors = Counter(p.stacks_error for p in seen.snapshots[-1].processes if p.stacks_error)
    for error, count in errors.most_common(2):
        yield f"no Python lines of {count} process{'es' if count > 1 else ''}: {error}"
