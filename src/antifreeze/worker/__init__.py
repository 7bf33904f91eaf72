"""What runs in worker processes."""

from antifreeze.worker._collate import CollateOwnTypes
from antifreeze.worker._iterable import IterableProgram, has_state, load_between, opened_state, sealed_state
from antifreeze.worker._main import DUMP_SIGNAL, MAX_FDS, apply_environment, load_program, run
from antifreeze.worker._programs import Ended, MapProgram, Nothing, Program, start_worker
from antifreeze.worker._seeding import restore, save, seed_now, seeded
from antifreeze.worker._task_context import TaskContext, UserError, failure_of
from antifreeze.worker._wire import (
    Cancel,
    Environment,
    Failure,
    FailureReason,
    Ready,
    Result,
    Results,
    Shard,
    ShardState,
    Start,
    Task,
    Tasks,
)

__all__ = [
    "Cancel",
    "CollateOwnTypes",
    "DUMP_SIGNAL",
    "Ended",
    "Environment",
    "Failure",
    "FailureReason",
    "IterableProgram",
    "MAX_FDS",
    "MapProgram",
    "Nothing",
    "Program",
    "Ready",
    "Result",
    "Results",
    "Shard",
    "ShardState",
    "Start",
    "Task",
    "TaskContext",
    "Tasks",
    "UserError",
    "apply_environment",
    "failure_of",
    "has_state",
    "load_between",
    "load_program",
    "opened_state",
    "restore",
    "run",
    "save",
    "sealed_state",
    "seed_now",
    "seeded",
    "start_worker",
]
