"""The plan: which rows, in which order. Arithmetic only: no clock, no thread, no file."""

from antifreeze.plan._order import Listed, Order, Sequential, Shuffled, Span, Task, locate
from antifreeze.plan._permute import Longs, Use, permutation, step_seed
from antifreeze.plan._view import View, view_of_all, view_of_range, view_of_rows
from antifreeze.plan._window import Flight, Limits, may_begin, may_decode

__all__ = [
    "Flight",
    "Limits",
    "Listed",
    "Longs",
    "Order",
    "Sequential",
    "Shuffled",
    "Span",
    "Task",
    "Use",
    "View",
    "locate",
    "may_begin",
    "may_decode",
    "permutation",
    "step_seed",
    "view_of_all",
    "view_of_range",
    "view_of_rows",
]
