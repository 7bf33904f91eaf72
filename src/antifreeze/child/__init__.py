"""What runs in worker processes."""

from antifreeze.child._again import NotAsSaved, NotTheSame
from antifreeze.child._collate import AsTensor, default_collate, default_convert
from antifreeze.child._desk import Desk
from antifreeze.child._failures import UserError, failure_of
from antifreeze.child._inspection import attributes, class_members, module_members, slots
from antifreeze.child._iterable import IterableProgram
from antifreeze.child._logs import log_settings
from antifreeze.child._messages import (
    Cancel,
    Failure,
    Payload,
    Place,
    Ready,
    Result,
    Results,
    Share,
    Skip,
    Stand,
    Start,
    Surroundings,
    Task,
    Tasks,
    bytes_at,
)
from antifreeze.child._patches import Patch, original
from antifreeze.child._programs import Ended, MapProgram, Nothing, Program, start_worker
from antifreeze.child._reopen import PER_WORKER, has_deferred, loading_for_forks, reopened_fds, run_reopeners
from antifreeze.child._seeding import restore, save, seed_now, seeded
from antifreeze.child._settings import Settings, Variables, interpreter_settings, is_data
from antifreeze.child._settle import take_surroundings
from antifreeze.child._shared_list import LARGE, SentList, SharedList, buffers_of, encode, with_buffers
from antifreeze.child._stand_ins import Handing, shared_handles
from antifreeze.child._states import has_state, load_between, opened_state, sealed_state
from antifreeze.child._torch_collate import CollateOwnTypes
from antifreeze.child._worker import DUMP_SIGNAL, MOST_FDS, load_program, run
from antifreeze.transport import Stage

__all__ = [
    "AsTensor",
    "attributes",
    "buffers_of",
    "bytes_at",
    "Cancel",
    "class_members",
    "CollateOwnTypes",
    "default_collate",
    "default_convert",
    "Desk",
    "DUMP_SIGNAL",
    "encode",
    "Ended",
    "Failure",
    "failure_of",
    "Handing",
    "has_deferred",
    "has_state",
    "interpreter_settings",
    "is_data",
    "IterableProgram",
    "LARGE",
    "load_between",
    "load_program",
    "loading_for_forks",
    "log_settings",
    "MapProgram",
    "module_members",
    "MOST_FDS",
    "NotAsSaved",
    "Nothing",
    "NotTheSame",
    "opened_state",
    "original",
    "Patch",
    "Payload",
    "PER_WORKER",
    "Place",
    "Program",
    "Ready",
    "reopened_fds",
    "restore",
    "Result",
    "Results",
    "run",
    "run_reopeners",
    "save",
    "sealed_state",
    "seed_now",
    "seeded",
    "SentList",
    "Settings",
    "Share",
    "shared_handles",
    "SharedList",
    "Skip",
    "slots",
    "Stage",
    "Stand",
    "Start",
    "start_worker",
    "Surroundings",
    "take_surroundings",
    "Task",
    "Tasks",
    "UserError",
    "Variables",
    "with_buffers",
]
