"""``antifreeze.diagnose``: the doctor as a function."""

from __future__ import annotations

import os

from antifreeze.core import ConfigError
from antifreeze.doctor.job._diagnosis import Diagnosis
from antifreeze.doctor.job._find_job import NotFound, find_job
from antifreeze.doctor.job._observe import Gone, observe
from antifreeze.doctor.job._verdict import is_enough, judge


def diagnose(pid: int | None = None) -> Diagnosis:
    """Inspect a training job for 3 to 7 seconds, and return what was found.

    Args:
        pid: Process id of the job; by default this process and everything that it started. Call it from another thread
            than the one that waits.

    Returns:
        The verdict, the processes that hold up the job, and why.

    Raises:
        ConfigError: If there is no such process.

    Example:
        ```python
        import antifreeze as af

        diagnosis = af.diagnose()
        print(diagnosis.verdict.value, diagnosis.summary)
        for suspect in diagnosis.suspects:
            print(suspect.name, suspect.cause.value, suspect.link)
        ```
    """
    wanted = os.getpid() if pid is None else pid
    if isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 1:
        raise ConfigError(f"invalid pid: expected a process id, got {pid!r}", argument="pid")
    try:
        return judge(observe(find_job(str(wanted)), is_enough))
    except (NotFound, Gone):
        raise ConfigError(
            f"there is no process {wanted}",
            hint="list running processes with `ps`; the job may have ended",
            argument="pid",
        ) from None
