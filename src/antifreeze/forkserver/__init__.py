"""The processes that workers are forked from."""

from antifreeze.forkserver._requests import (
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
)
from antifreeze.forkserver._server import kill_group

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
