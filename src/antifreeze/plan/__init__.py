"""The plan: which rows, in which order. Arithmetic only: no clock, no thread, no file."""

from antifreeze.plan._lanes import LANES, MAX_LANES, Lanes, Seat, Steps, apportion, default_lanes, stretch
from antifreeze.plan._mix import BLOCK_GROUPS, Batchwise, Mix, Weights
from antifreeze.plan._order import Listed, Order, Sequential, Span, Task, locate, round_at
from antifreeze.plan._permute import Longs, Use, permutation
from antifreeze.plan._view import View, some_rows, view_of_all, view_of_range, view_of_rows
from antifreeze.plan._window import Flight, Limits, may_begin, may_decode, may_start
from antifreeze.plan._woven import Shuffling, Woven, woven

__all__ = [
    "BLOCK_GROUPS",
    "Batchwise",
    "Flight",
    "LANES",
    "Lanes",
    "Limits",
    "Listed",
    "Longs",
    "MAX_LANES",
    "Mix",
    "Order",
    "Seat",
    "Sequential",
    "Shuffling",
    "Span",
    "Steps",
    "Task",
    "Use",
    "View",
    "Weights",
    "Woven",
    "apportion",
    "default_lanes",
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
    "woven",
]
