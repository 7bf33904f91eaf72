"""Limits of the system: which one an error of it is about, what it is now, and how to raise it."""

from __future__ import annotations

import errno
import resource

_FILES = (errno.EMFILE, errno.ENFILE)
_SPACE = (errno.ENOSPC, errno.EDQUOT)


def limit_hint(error: OSError) -> str:
    """Return what to do about a limit that was reached; nothing if the error is of another kind."""
    if error.errno in _FILES:
        return (
            f"raise the limit on open files, which is {_limit(resource.RLIMIT_NOFILE)}, with `ulimit -n 4096`, or use "
            "fewer workers"
        )
    if error.errno == errno.EAGAIN:
        return (
            f"raise the limit on processes and threads (`ulimit -u`, which is {_limit(resource.RLIMIT_NPROC)}; the "
            "container's pids limit, `docker run --pids-limit`), or use fewer workers"
        )
    if error.errno == errno.EFBIG:
        return (
            f"raise the limit on the size of files, which is {_limit(resource.RLIMIT_FSIZE)} bytes and holds for "
            "shared memory, too: `ulimit -f unlimited`; or use a smaller batch_size"
        )
    if error.errno == errno.ENOMEM:
        return "free memory, give the job more, or use fewer workers"
    if error.errno in _SPACE:
        return "free space where the file is, or write elsewhere"
    return ""


def _limit(which: int) -> str:
    soft = resource.getrlimit(which)[0]
    return "not set" if soft == resource.RLIM_INFINITY else str(soft)
