"""A worker is forked from the nursery, and has to look like a process that the trainer has started."""

from __future__ import annotations

import contextlib
import multiprocessing.process
import os
import sys
from typing import Any

from antifreeze.child._messages import Start
from antifreeze.child._settings import take_over

_THREADS = {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"}
"""Libraries read these when they are imported: in a worker they have one thread, unless the user says otherwise."""


def settle(start: Start) -> None:
    """Take over the trainer's path, folder, environment, names and settings."""
    sys.path[:] = start.sys_path
    sys.argv[:] = start.argv
    with contextlib.suppress(OSError):
        os.chdir(start.cwd)
    for name in os.environ.keys() - start.environ.keys() - _THREADS:
        del os.environ[name]
    for name, value in start.environ.items():
        if os.environ.get(name) != value:
            os.environ[name] = value
    take_over(start.settings)
    # Libraries ask multiprocessing whether they run in a child.
    process: Any = multiprocessing.process
    process.current_process()._config["daemon"] = False
    process.current_process()._name = f"antifreeze-worker-{start.slot}"
    process._parent_process = process._ParentProcess("MainProcess", start.owner_pid, None)
