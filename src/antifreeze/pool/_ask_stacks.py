"""Asking a process of ours where its threads are: a signal makes it write their stacks, whatever it is doing."""

from __future__ import annotations

import contextlib
import os
import time

from antifreeze.core import Deadline
from antifreeze.worker import DUMP_SIGNAL

_STACK_NBYTES = 1 << 16
_DUMP_TIMEOUT_S = 0.5


def ask_for_stacks(pid: int, stacks: int) -> str:
    """Return where the threads of a process are, or nothing: a process that is stopped cannot say it.

    Args:
        pid: the process; 0 if it has none yet.
        stacks: the file that ``faulthandler`` of that process writes to; below 0 if there is none.
    """
    if not pid or stacks < 0:
        return ""
    before = os.fstat(stacks).st_size
    with contextlib.suppress(OSError):
        os.kill(pid, DUMP_SIGNAL)
    deadline, size = Deadline.after(_DUMP_TIMEOUT_S), before
    while not deadline.passed:
        time.sleep(0.01)
        now = os.fstat(stacks).st_size
        if now == size > before:  # it has begun to write, and has stopped
            break
        size = now
    return read_stacks(stacks, before)


def read_stacks(stacks: int, start: int = 0) -> str:
    """Return what faulthandler has written since."""
    with contextlib.suppress(OSError):
        return os.pread(stacks, _STACK_NBYTES, start).decode(errors="replace")
    return ""
