"""Checks whether this process can be forked repeatedly: nothing in it may belong to one process alone.

A template process loads a dataset once and is then forked for every worker. That is safe only while the process has a
single thread (the others would be missing in the workers, and their locks would never be released), no CUDA context,
and no descriptor that loading has opened: workers would share one socket, one database connection or one file
position, and read each other's bytes. Which library or user code caused it does not matter, so nothing here knows about
libraries: the kernel reports what exists.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Collection
from typing import Any

from antifreeze.core import own_descriptors, own_threads

_FORK_AWARE = ("jemalloc_bg_thd",)
"""Threads of allocators, such as Arrow's, which pandas imports. They handle a fork by ``pthread_atfork``."""
_HARMLESS = ("/dev/null", "/dev/zero", "/dev/full", "/dev/urandom", "/dev/random")
_MAX_LISTED = 3
_THREAD_EXIT_GRACE_S = 0.05
"""How long the kernel may still list a thread that was joined."""


def why_not_to_fork(before: dict[int, str], shared: Collection[int]) -> str:
    """Return why this process must not be forked; "" if it can be.

    Args:
        before: descriptors that were open before anything was loaded.
        shared: descriptors that workers share on purpose, such as those of ``multiprocessing.Queue``.
    """
    if threads := _other_threads():
        return f"loading started {_listed(threads, 'thread')}"
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "loading initialized CUDA"
    opened = {fd: target for fd, target in own_descriptors().items() if before.get(fd) != target and fd not in shared}
    if files := [target for target in opened.values() if target not in _HARMLESS]:
        return f"loading opened {_listed(files, 'file')}"
    return ""


def _other_threads() -> list[str]:
    end_s = time.monotonic() + _THREAD_EXIT_GRACE_S
    while (names := _thread_names()) and time.monotonic() < end_s:
        time.sleep(0.001)
    known = {thread.native_id: thread.name for thread in threading.enumerate()}
    return [known.get(number, name) for number, name in names.items()]


def _thread_names() -> dict[int, str]:
    """Return the names of all other threads, except those that handle forks."""
    me = os.getpid()
    return {tid: name for tid, name in own_threads().items() if tid != me and name not in _FORK_AWARE}


def _listed(names: list[str], kind: str) -> str:
    shown = ", ".join(sorted(set(names))[:_MAX_LISTED])
    more = ", ..." if len(set(names)) > _MAX_LISTED else ""
    return f"{len(names)} {kind}{'s' if len(names) > 1 else ''} ({shown}{more})"
