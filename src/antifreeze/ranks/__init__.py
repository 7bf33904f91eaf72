"""Ranks: which one this is, and which one holds the others up."""

from antifreeze.ranks._herald import Watched, watch_ranks
from antifreeze.ranks._launchers import local_rank_of
from antifreeze.ranks._record import SILENT_S, WARN_S, Place, Standing, Trouble
from antifreeze.ranks._where import Ranks, find_ranks, resolve

__all__ = [
    "Place",
    "Ranks",
    "SILENT_S",
    "Standing",
    "Trouble",
    "WARN_S",
    "Watched",
    "find_ranks",
    "local_rank_of",
    "resolve",
    "watch_ranks",
]
