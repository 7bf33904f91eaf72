"""Makes a process that was forked from the fork server look like one that the trainer started."""

from __future__ import annotations

import contextlib
import multiprocessing.process
import os
import sys
from typing import Any

from antifreeze.payload import take_over
from antifreeze.worker._wire import Environment

_THREADS = {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"}
"""Read by libraries at import: in a worker they use one thread, unless the user sets another number."""


def apply_environment(found: Environment) -> None:
    """Apply the trainer's sys.path, working directory, environment variables and settings. Idempotent and cheap."""
    sys.path[:] = found.sys_path
    sys.argv[:] = found.argv
    with contextlib.suppress(OSError):
        os.chdir(found.cwd)
    for name in os.environ.keys() - found.environ.keys() - _THREADS:
        del os.environ[name]
    for name, value in found.environ.items():
        if os.environ.get(name) != value:
            os.environ[name] = value
    take_over(found.settings)


def become_worker(slot: int, owner_pid: int) -> None:
    """Appear as a child of the trainer to multiprocessing, which libraries use to detect a worker."""
    process: Any = multiprocessing.process
    process.current_process()._config["daemon"] = False
    process.current_process()._name = f"antifreeze-worker-{slot}"
    process._parent_process = process._ParentProcess("MainProcess", owner_pid, None)
