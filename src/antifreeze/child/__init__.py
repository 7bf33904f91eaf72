"""What runs in worker processes."""

from antifreeze.child._again import NotAsSaved, NotTheSame
from antifreeze.child._collate import AsTensor, default_collate, default_convert
from antifreeze.child._desk import Desk
from antifreeze.child._failures import UserError, failure_of
from antifreeze.child._iterable import IterableProgram
from antifreeze.child._logs import log_settings
from antifreeze.child._messages import (
    Cancel,
    Failure,
    Place,
    Ready,
    Result,
    Results,
    Share,
    Skip,
    Stand,
    Start,
    Task,
    Tasks,
    bytes_at,
)
from antifreeze.child._programs import Ended, MapProgram, Nothing, Program
from antifreeze.child._seeding import preserved, seed_now, seeded
from antifreeze.child._settings import Settings, Variables, interpreter_settings, is_data
from antifreeze.child._stand_ins import Handing
from antifreeze.child._states import has_state, opened_state, sealed_state
from antifreeze.child._worker import DUMP_SIGNAL, MOST_FDS, run
from antifreeze.transport import Stage

__all__ = [
    "DUMP_SIGNAL",
    "AsTensor",
    "Cancel",
    "Desk",
    "Ended",
    "Failure",
    "Handing",
    "IterableProgram",
    "MOST_FDS",
    "MapProgram",
    "NotAsSaved",
    "NotTheSame",
    "Nothing",
    "Place",
    "Program",
    "Ready",
    "Result",
    "Results",
    "Settings",
    "Share",
    "Skip",
    "Stage",
    "Stand",
    "Start",
    "Task",
    "Tasks",
    "UserError",
    "Variables",
    "bytes_at",
    "default_collate",
    "default_convert",
    "failure_of",
    "has_state",
    "interpreter_settings",
    "is_data",
    "log_settings",
    "opened_state",
    "preserved",
    "run",
    "sealed_state",
    "seed_now",
    "seeded",
]
