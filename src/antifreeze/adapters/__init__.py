"""The user's side of a batch: what the arrays of a block become. ``adapters.torch`` is apart: it imports torch."""

from antifreeze.adapters._finish import Finish, collate, finisher, row_of

__all__ = ["Finish", "collate", "finisher", "row_of"]
