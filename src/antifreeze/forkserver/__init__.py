"""The processes that workers are forked from."""

from antifreeze.forkserver._server import (
    Branch,
    Exited,
    Preload,
    Preloaded,
    Prepare,
    Prepared,
    Retire,
    Spawn,
    Spawned,
    Terminate,
    kill_group,
)

__all__ = [
    "Branch",
    "Exited",
    "Preload",
    "Preloaded",
    "Prepare",
    "Prepared",
    "Retire",
    "Spawn",
    "Spawned",
    "Terminate",
    "kill_group",
]
