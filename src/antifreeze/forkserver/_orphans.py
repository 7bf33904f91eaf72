"""Kills programs that user code started and left behind, whatever session or process group they are in.

Problem. A program that a worker started with ``start_new_session=True`` or ``setsid`` is in no process group of ours,
gets no signal when its parent exits, and outlives the worker, the trainer and the job.

So every process of the tree is a subreaper (Linux): when a process exits, its children are reparented to the nearest
ancestor that is a subreaper. A running worker keeps what it has started, and what its programs have left behind. When
the worker exits, all of that is reparented to the process that forked it, which knows its own children: any other child
is an orphan, and is killed. Then the children of the orphan follow, and so on.

# Order: the kernel reparents children before it reports the exit to the parent. So the orphans of a worker are visible
# as soon as the worker was reaped, and there is no need to look for them at other times.
# Tried: process groups and sessions alone. ``start_new_session=True`` leaves both.
# Tried: only the fork server as a subreaper. It cannot distinguish a daemon that a running worker has just started from
# what a lost worker has left behind, and would kill the helper of a running worker.
# Known limitation: if the fork server itself is killed (SIGKILL), its orphans go to init, and can no longer be found.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys

_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Make this process a subreaper: the parent of all orphans among its descendants."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_process(pid: int) -> None:
    """Kill one process. A child that was not reaped keeps its process ID, so no other process can be hit."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)
