"""The user's side of a batch: what the arrays of a block become. ``adapters.torch`` is apart: it imports torch."""

from antifreeze.adapters._copied import CopiedIterator
from antifreeze.adapters._finish import Finish, collate, finisher, row_of
from antifreeze.adapters._inline import InlineBatches
from antifreeze.adapters._terms import default_memory_limit, make_terms, split_on_error

__all__ = [
    "CopiedIterator",
    "Finish",
    "InlineBatches",
    "collate",
    "default_memory_limit",
    "finisher",
    "make_terms",
    "row_of",
    "split_on_error",
]
