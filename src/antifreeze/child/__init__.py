"""What runs in worker processes and in the nursery they are born in."""

from antifreeze.child._collate import AsTensor, default_collate, default_convert
from antifreeze.child._desk import Desk
from antifreeze.child._failures import UserError, failure_of
from antifreeze.child._messages import Cancel, Failure, Ready, Result, Results, Share, Skip, Start, Task, Tasks
from antifreeze.child._nurse import Bear, Born, Bury, Died, Hello
from antifreeze.child._programs import Ended, IterableProgram, MapProgram, Nothing, NotTheSame, Program
from antifreeze.child._seeding import preserved, seed_now, seeded
from antifreeze.child._stand_ins import Handing
from antifreeze.child._worker import DUMP_SIGNAL, MOST_FDS
from antifreeze.transport import Stage

__all__ = [
    "DUMP_SIGNAL",
    "AsTensor",
    "Bear",
    "Born",
    "Bury",
    "Cancel",
    "Desk",
    "Died",
    "Ended",
    "Failure",
    "Handing",
    "Hello",
    "IterableProgram",
    "MOST_FDS",
    "MapProgram",
    "NotTheSame",
    "Nothing",
    "Program",
    "Ready",
    "Result",
    "Results",
    "Share",
    "Skip",
    "Stage",
    "Start",
    "Task",
    "Tasks",
    "UserError",
    "default_collate",
    "default_convert",
    "failure_of",
    "preserved",
    "seed_now",
    "seeded",
]
