"""Which rank this process is, and what ranks tell each other."""

from antifreeze.distributed._exchange import Watched, watch_ranks
from antifreeze.distributed._rank_discovery import Ranks, find_ranks, resolve
from antifreeze.distributed._record import RankStatus, Trouble

__all__ = [
    "RankStatus",
    "Ranks",
    "Trouble",
    "Watched",
    "find_ranks",
    "resolve",
    "watch_ranks",
]
