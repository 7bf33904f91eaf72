"""Whether this process may be forked again and again: nothing in it may belong to one process alone.

A template process loads a dataset once and is then forked for every worker. That is safe only while the process has a
single thread (the others would be missing in the workers, and nobody would release the locks they hold), no CUDA
context, and no descriptor that loading has opened: workers would share one socket, one database connection or one
file position, and read each other's bytes. Which library or which user code did it does not matter, so nothing is
known here about libraries: the kernel says what there is.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Collection
from typing import Any

from antifreeze.core import own_descriptors, own_threads

_SELF_CARING = ("jemalloc_bg_thd",)
"""Threads of an allocator, such as Arrow's, which pandas imports: it prepares them for a fork by ``pthread_atfork``."""
_HARMLESS = ("/dev/null", "/dev/zero", "/dev/full", "/dev/urandom", "/dev/random")
_SHOWN = 3
_ENDING_S = 0.05
"""How long a thread that was joined may still be listed by the kernel."""


def why_not_to_fork(before: dict[int, str], shared: Collection[int]) -> str:
    """Return why this process may not be forked, or nothing if it may.

    Args:
        before: what was open before anything was loaded.
        shared: descriptors that workers are meant to have in common, such as those of ``multiprocessing.Queue``.
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
    end_s = time.monotonic() + _ENDING_S
    while (names := _thread_names()) and time.monotonic() < end_s:
        time.sleep(0.001)
    known = {thread.native_id: thread.name for thread in threading.enumerate()}
    return [known.get(number, name) for number, name in names.items()]


def _thread_names() -> dict[int, str]:
    """Return the names of all threads but this one that matter."""
    me = os.getpid()
    return {tid: name for tid, name in own_threads().items() if tid != me and name not in _SELF_CARING}


def _listed(names: list[str], kind: str) -> str:
    shown = ", ".join(sorted(set(names))[:_SHOWN])
    more = ", ..." if len(set(names)) > _SHOWN else ""
    return f"{len(names)} {kind}{'s' if len(names) > 1 else ''} ({shown}{more})"
