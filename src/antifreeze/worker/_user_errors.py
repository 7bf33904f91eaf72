"""Errors of user code, in a form that can always be sent and always be read."""

from __future__ import annotations

import pickle
import traceback
from types import FrameType

import cloudpickle

from antifreeze.core import clean_block, one_line
from antifreeze.worker._wire import Failure, FailureReason

_LONG_TEXT = 2_000
_LONG_TRACEBACK = 40_000
_LARGE_ERROR_NBYTES = 1 << 20


class UserError(Exception):
    """Carries what user code raised, and at which sample, up to the loop that reports it."""

    def __init__(
        self,
        what: str,
        error: BaseException,
        *,
        sample: str = "",
        position: int = -1,
        explanation: str = "",
        can_skip: bool = False,
        reason: FailureReason = FailureReason.RAISED,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.error = error
        self.text = text_of(error)
        self.sample = sample
        self.position = position
        self.explanation = explanation
        self.can_skip = can_skip
        self.reason = reason


def failure_of(caught: UserError) -> Failure:
    """Return the facts of an error, and the error itself if it can be pickled and rebuilt."""
    error = caught.error
    return Failure(
        what=caught.what,
        sample=caught.sample,
        position=caught.position,
        kind=type(error).__qualname__.split(".<locals>.")[-1],
        message=text_of(error),
        traceback=_traceback(error),
        explanation=caught.explanation,
        module=getattr(error, "name", None) or "" if isinstance(error, ModuleNotFoundError) else "",
        error=_portable(error),
        error_class=_portable_class(type(error)),
        can_skip=caught.can_skip,
        reason=caught.reason,
    )


def text_of(error: BaseException) -> str:
    """Return an error's message, even if it fails to print itself, or holds half of a dataset."""
    try:
        return one_line(str(error), _LONG_TEXT)
    except Exception:  # noqa: BLE001  border: the user's exception may do anything
        return "(its message cannot be printed)"


def _traceback(error: BaseException) -> str:
    trace = error.__traceback__
    # The first frames are ours: the loop that called the user's code.
    while trace is not None and trace.tb_next is not None and _is_ours(trace.tb_frame):
        trace = trace.tb_next
    try:
        return clean_block("".join(traceback.format_exception(type(error), error, trace)), _LONG_TRACEBACK)
    except Exception:  # noqa: BLE001  border: it calls the user's __str__
        return "".join(traceback.format_tb(trace)) + type(error).__qualname__


def _is_ours(frame: FrameType) -> bool:
    """True for a frame of this package; a user's module may well have our name in its own."""
    module = frame.f_globals.get("__name__")
    return isinstance(module, str) and module.partition(".")[0] == "antifreeze"


def _portable(error: BaseException) -> bytes | None:
    """Return the pickled error if it can be rebuilt: many cannot, because their constructors want other arguments."""
    try:
        error.__traceback__ = error.__cause__ = error.__context__ = None  # which hold its frames
        blob = cloudpickle.dumps(error)
        is_fit = len(blob) <= _LARGE_ERROR_NBYTES and type(pickle.loads(blob)) is type(error)  # noqa: S301  our own
    except Exception:  # noqa: BLE001  border: it calls the user's constructors and reducers
        return None
    return blob if is_fit else None


def _portable_class(kind: type) -> bytes | None:
    try:
        return bytes(cloudpickle.dumps(kind))
    except Exception:  # noqa: BLE001  border: a class may refer to anything
        return None
