"""The processes that workers are forked from."""

from antifreeze.nursery._messages import (
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
from antifreeze.nursery._server import kill_group

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
