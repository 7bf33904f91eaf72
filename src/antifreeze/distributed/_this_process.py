"""Which process a rank is, and how it is seen from another one on the same machine."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from antifreeze.distributed._record import RankRecord


def this_process(rank: int) -> RankRecord:
    """Return a record that says who we are, and nothing else."""
    pid = os.getpid()
    return RankRecord(rank=rank, host=socket.gethostname(), pid=pid, started=_stat(pid)[1], space=_space())


def state_of(record: RankRecord, us: RankRecord) -> str | None:
    """Return the letter of a rank's process, ``gone`` if it has ended, or None if it cannot be seen from here."""
    if (record.host, record.space) != (us.host, us.space) or not (us.space and record.pid and record.started):
        return None
    state, started = _stat(record.pid)
    return state if started == record.started and state not in ("Z", "X") else "gone"


def _stat(pid: int) -> tuple[str, int]:
    """Return the state of a process and when it was started; nothing and 0 if there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0], int(fields[19])
    except (OSError, IndexError, ValueError):
        return "", 0


def _space() -> int:
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0
