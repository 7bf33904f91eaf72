"""Which rank this process is, and what ranks tell each other."""

from antifreeze.distributed._exchange import Watched, watch_ranks
from antifreeze.distributed._rank_discovery import Ranks, find_ranks, local_rank_of, resolve
from antifreeze.distributed._record import SILENT_S, WARN_S, RankStatus, Trouble

__all__ = [
    "RankStatus",
    "Ranks",
    "SILENT_S",
    "Trouble",
    "WARN_S",
    "Watched",
    "find_ranks",
    "local_rank_of",
    "resolve",
    "watch_ranks",
]
