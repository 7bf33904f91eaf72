"""The errors of a pool: they name the worker, the sample and the reason, and have the worker's traceback as cause."""

from __future__ import annotations

import errno
import os
import pickle
import sys
from collections.abc import Callable, Sequence
from typing import Any

from antifreeze.core import (
    AntifreezeError,
    Lines,
    NotPicklable,
    NotRepeatable,
    Stalled,
    StateMismatch,
    UserCodeError,
    WorkerDied,
    clean_block,
    indented,
    limit_hint,
)
from antifreeze.diagnosis import Cause, Finding
from antifreeze.worker import Failure, FailureReason


def evidence_lines(finding: Finding) -> list[str]:
    """Return the evidence as lines of an error, a little to the right of its other lines."""
    return [f"  {line}" for line in finding.evidence_lines]


def lines_of(finding: Finding) -> Lines:
    """Return the evidence for a log, each on its own line."""
    return indented(evidence_lines(finding), by="  ")


def no_descriptors(error: OSError) -> WorkerDied:
    """Return the error for workers that cannot be started or reached because the system refuses something."""
    hint = limit_hint(error) or "look at the error of the system, and use fewer workers"
    if error.errno in (errno.ENOENT, errno.EACCES, errno.ENOEXEC):
        hint = f"sys.executable must be a Python interpreter that can import antifreeze; it is {sys.executable!r}"
    failed = WorkerDied(f"a worker could not be started or reached: {error}", hint=hint, worker=-1, cause="startup")
    failed.__cause__ = error
    return failed


def never_forked() -> Finding:
    """Return why there is no process: the kernel refused to fork one."""
    hint = f"{limit_hint(OSError(errno.EAGAIN, ''))}; or give the job more memory"
    return Finding(
        cause=Cause.STARTUP,
        evidence_lines=("the system refused to start a process for it; its error is on stderr",),
        exit_code=os.EX_OSERR,
        words="could not be forked",
        advice=hint,
    )


def supervisor_failed(error: Exception) -> WorkerDied:
    """Return the error for workers without a supervisor."""
    failed = WorkerDied(
        f"the worker supervisor failed repeatedly: {type(error).__name__}: {error}",
        hint="see the traceback above. This is a bug in antifreeze; please report it",
        worker=-1,
        cause="unknown",
    )
    failed.__cause__ = error
    return failed


def never_ready(times: int, why: Finding | None) -> WorkerDied:
    """Return the error for a fork server that exits, or stalls, each time it is started."""
    if why is None:
        what = f"the fork server exited {times} times before it was ready"
        hint = "see its messages on stderr; try `python -c 'import numpy, torch'`"
        return WorkerDied(what, hint=hint, worker=-1, cause="startup")
    what = f"the fork server did not answer {times} times; the last one {why.title}"
    hint = f"{why.hint} It only imports: `python -X importtime -c 'import numpy, torch'` may show where it is"
    return WorkerDied(what, lines=evidence_lines(why), hint=hint, worker=-1, cause=why.cause.value)


Decide = Callable[[AntifreezeError], Any] | None
"""The user's function that decides whether a sample is skipped."""


def can_go_on(decide: Decide, error: AntifreezeError) -> bool:
    """True if the user's function wants to skip the sample that an error is about."""
    try:
        return decide is not None and decide(error) in ("skip", True)
    except StopIteration as stop:  # it would end the epoch in silence
        raise UserCodeError("on_error raised StopIteration", hint='it returns "skip" or "raise"') from stop


class WorkerTraceback(Exception):
    """The traceback of the worker, as text: frames cannot travel."""

    __module__ = "antifreeze"

    def __str__(self) -> str:
        return f"\n{clean_block(self.args[0].rstrip())}"


_SKIP = '; use on_error="skip" to skip and report failing samples'
_NOT_REPEATED: dict[FailureReason, type[AntifreezeError]] = {
    FailureReason.NOT_REPEATABLE: NotRepeatable,
    FailureReason.NOT_AS_SAVED: StateMismatch,
}


def user_error(
    failure: Failure, *, worker: str, step: int, location: str, original: BaseException | None = None
) -> AntifreezeError:
    """Return the error for a failure of user code.

    Args:
        failure: what went wrong.
        worker: the process in which it went wrong, for the message.
        step: the batch; -1 if it was at none.
        location: the batch and the sample, as ``TaskSource.location`` renders them.
        original: the exception itself, if it was raised in this process.
    """
    lines = [line for line in (failure.explanation, f"in {worker}, {location}") if line]
    facts: dict[str, Any] = {"step": step, "sample": failure.sample, "worker": worker}
    cause: BaseException = WorkerTraceback(failure.traceback)
    error: AntifreezeError
    if failure.reason in _NOT_REPEATED:
        hint = (
            "make the dataset deterministic (seed it, sort what it lists), or give it state_dict() and "
            "load_state_dict(); a map-style dataset needs neither"
        )
        error = _NOT_REPEATED[failure.reason](failure.message, lines=lines, hint=hint, **facts)
    elif failure.reason is FailureReason.NOT_PICKLABLE:
        hint = "return tensors, arrays, numbers, texts or other objects that can be pickled; not functions or handles"
        problem = f"{failure.what}: {failure.kind}: {failure.message}"
        error = NotPicklable(problem, lines=lines, hint=hint, path="", **facts)
    elif failure.reason is FailureReason.RETURNED_NONE:
        return UserCodeError(f"{failure.what} returned None", lines=lines, hint=failure.message, **facts)
    else:
        if original is None and (original := _rebuilt(failure)) is not None:
            original.__cause__ = cause
            cause = original
        said = f": {failure.message}" if failure.message else ""
        problem = f"{failure.what} raised {failure.kind}{said}"
        hint = f"see the traceback above{_SKIP if failure.can_skip else ''}"
        if isinstance(cause, OSError) and cause.errno != errno.EAGAIN and (limit := limit_hint(cause)):
            hint = f"{limit}; {hint}"
        error = mixed_error(_class_of(failure, original))(problem, lines=lines, hint=hint, **facts)
    error.__cause__ = cause
    return error


def _rebuilt(failure: Failure) -> BaseException | None:
    try:
        if failure.error is not None:
            error = pickle.loads(failure.error)  # noqa: S301  from our own worker, which has tried it before
        else:
            # Its constructor wants other arguments than it passes on: make one without calling it.
            kind: Any = _class_of(failure, None)
            error = kind.__new__(kind)
            error.args = (failure.message,)
    except Exception:  # noqa: BLE001  border: it calls the user's constructors
        return None
    return error if isinstance(error, BaseException) else None


_mixtures: dict[type, type[UserCodeError]] = {}


def _class_of(failure: Failure, original: BaseException | None) -> type | None:
    if original is not None:
        return type(original)
    if failure.error_class is None:
        return None
    try:
        kind = pickle.loads(failure.error_class)  # noqa: S301  from our own worker
    except Exception:  # noqa: BLE001  border: it may import anything
        return None
    return kind if isinstance(kind, type) else None


def mixed_error(kind: type | None) -> type[UserCodeError]:
    """Return a UserCodeError that is also of the kind that was raised: code that catches that must keep working."""
    # StopIteration would end the loop in silence; KeyboardInterrupt and SystemExit would end the program.
    if kind is None or not issubclass(kind, Exception) or issubclass(kind, StopIteration | StopAsyncIteration):
        return UserCodeError
    if issubclass(kind, UserCodeError):
        return kind
    if kind not in _mixtures:
        try:
            mixture = type("UserCodeError", (UserCodeError, kind), {"__module__": UserCodeError.__module__})
            mixture("", step=0)
        except Exception:  # noqa: BLE001  border: the user's class may refuse anything
            mixture = UserCodeError
        _mixtures[kind] = mixture
    return _mixtures[kind]


def timed_out(timeout_s: float, lines: Sequence[str]) -> Stalled:
    """Return the error for a batch that was not delivered within the user's timeout."""
    return Stalled(
        f"DataLoader timed out after {timeout_s:g} seconds without a batch",
        lines=lines,
        hint="timeout= limits the wait for a batch; stall_limit= limits how long a worker may make no progress",
        silent_s=timeout_s,
    )


def fault_error(finding: Finding, *, worker: str, step: int, place: str, attempts: int) -> AntifreezeError:
    """Return the error for a task that has cost several workers."""
    times = "twice" if attempts == 2 else f"{attempts} times"
    facts: dict[str, Any] = {"step": step, "sample": place, "worker": worker, "cause": finding.cause.value}
    if finding.exit_code is not None:
        return WorkerDied(
            f"{worker} {finding.title} at {place}, like the worker before it; tried {times}",
            lines=evidence_lines(finding),
            hint=finding.hint,
            **facts,
        )
    return Stalled(
        f"{worker} stalled at {place} and made no progress within its limit: it {finding.title}; tried {times}",
        lines=evidence_lines(finding),
        hint=finding.hint,
        silent_s=0.0,
        **facts,
    )
