"""The plan: which rows, in which order. Arithmetic only: no clock, no thread, no file."""

from antifreeze.plan._interleave import Interleaved, Shuffling, interleaved
from antifreeze.plan._lanes import LANES, MAX_LANES, EpochSteps, Lanes, RankSlice, apportion, default_lanes, stretch
from antifreeze.plan._mix import BLOCK_GROUPS, Batchwise, Mix, Weights
from antifreeze.plan._order import (
    Listed,
    Order,
    ReadTask,
    Sequential,
    Span,
    View,
    locate,
    round_at,
    some_rows,
    view_of_all,
    view_of_range,
    view_of_rows,
)
from antifreeze.plan._permute import Int64Array, RandomStream, permutation
from antifreeze.plan._window import FlightLimits, InFlight, may_begin, may_decode, may_start

__all__ = [
    "BLOCK_GROUPS",
    "Batchwise",
    "EpochSteps",
    "FlightLimits",
    "InFlight",
    "Int64Array",
    "Interleaved",
    "LANES",
    "Lanes",
    "Listed",
    "MAX_LANES",
    "Mix",
    "Order",
    "RandomStream",
    "RankSlice",
    "ReadTask",
    "Sequential",
    "Shuffling",
    "Span",
    "View",
    "Weights",
    "apportion",
    "default_lanes",
    "interleaved",
    "locate",
    "may_begin",
    "may_decode",
    "may_start",
    "permutation",
    "round_at",
    "some_rows",
    "stretch",
    "view_of_all",
    "view_of_range",
    "view_of_rows",
]
