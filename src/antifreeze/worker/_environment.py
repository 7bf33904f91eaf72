"""A process of ours is forked from the fork server, and has to look like one that the trainer has started."""

from __future__ import annotations

import contextlib
import multiprocessing.process
import os
import sys
from typing import Any

from antifreeze.payload import take_over
from antifreeze.worker._wire import Environment

_THREADS = {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"}
"""Libraries read these when they are imported: in a worker they have one thread, unless the user says otherwise."""


def apply_environment(found: Environment) -> None:
    """Take over the trainer's path, folder, environment and settings. What is there already costs nothing."""
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
    """Answer as a child of the trainer: libraries ask multiprocessing whether they run in one."""
    process: Any = multiprocessing.process
    process.current_process()._config["daemon"] = False
    process.current_process()._name = f"antifreeze-worker-{slot}"
    process._parent_process = process._ParentProcess("MainProcess", owner_pid, None)
