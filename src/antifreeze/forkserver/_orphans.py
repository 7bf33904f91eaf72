"""What user code has started and left behind: found by its parent, whatever session or process group it has made.

Problem. A program that a worker has started with ``start_new_session=True`` or ``setsid`` belongs to no group of ours,
asks for no signal when its parent ends, and outlives the worker, the trainer and the job.

So every process of the tree is a subreaper (Linux): when a process ends, its children become children of the nearest
process above it that is one. A living worker keeps what it has started, and what its programs have left behind. When
the worker ends, all of that comes to the process that it was forked from, which has forked each of its own children by
itself: a child that it does not know is an orphan, and is killed. What the orphan has started comes next, and so on.

# Order: the kernel gives children away before it tells the parent of the end. Whoever has reaped a worker sees its
# orphans at once, and nobody has to look for them at other times.
# Tried: process groups and sessions alone. ``start_new_session=True`` leaves both.
# Tried: only the fork server as a subreaper. It cannot tell a daemon that a living worker has just started from what a
# dead one has left behind, and would kill the helper of a worker that runs.
# Known limit: if the fork server itself is killed (SIGKILL), its orphans go to init, and nobody knows whose they were.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys

_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Make this process the parent of all that its descendants leave behind."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_process(pid: int) -> None:
    """Kill one process. A child that was not reaped keeps its number, so that no other can be hit."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)
