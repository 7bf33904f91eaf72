"""Worker processes, seen from the trainer."""

from antifreeze.pool._failures import Decide, can_go_on, mixed_error, user_error
from antifreeze.pool._pool import Pool, PoolConfig
from antifreeze.pool._prefetch import PrefetchTuner
from antifreeze.pool._runner import PoolCache, PoolRunner
from antifreeze.pool._task_sources import IndexSteps, IndexTasks, ShardProgress, ShardTasks, TaskSource
from antifreeze.pool._worker_handle import WorkerHandle

__all__ = [
    "Decide",
    "IndexSteps",
    "IndexTasks",
    "Pool",
    "PoolCache",
    "PoolConfig",
    "PoolRunner",
    "PrefetchTuner",
    "ShardProgress",
    "ShardTasks",
    "TaskSource",
    "WorkerHandle",
    "can_go_on",
    "mixed_error",
    "user_error",
]
