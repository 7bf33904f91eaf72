"""The trainer's side of worker processes: they are born, watched, replaced and ended here."""

from antifreeze.crew._batches import Batches, Quarters
from antifreeze.crew._crew import Crew
from antifreeze.crew._failures import Decide, can_go_on, mixed_error, user_error
from antifreeze.crew._history import History
from antifreeze.crew._keeper import the_keeper
from antifreeze.crew._ledger import Ledger, Poison
from antifreeze.crew._member import Member
from antifreeze.crew._pace import AHEAD, Pace
from antifreeze.crew._skip_log import SkipLog, open_skip_log
from antifreeze.crew._sources import IndexSource, Reached, ShareSource, Source, Steps
from antifreeze.crew._terms import Terms

__all__ = [
    "AHEAD",
    "Batches",
    "Crew",
    "Decide",
    "History",
    "IndexSource",
    "Ledger",
    "Member",
    "Pace",
    "Poison",
    "Quarters",
    "Reached",
    "ShareSource",
    "SkipLog",
    "Source",
    "Steps",
    "Terms",
    "can_go_on",
    "mixed_error",
    "open_skip_log",
    "the_keeper",
    "user_error",
]
