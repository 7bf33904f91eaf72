"""What users iterate over, and the source behind it."""

from antifreeze.child import seeded
from antifreeze.loader._cut import Cut, Cuts
from antifreeze.loader._hive import Partition
from antifreeze.loader._memory import machine_memory, parse_limit
from antifreeze.loader._reading import STALL_LIMIT_S, Selection, Shuffle, make_order, read_blocks
from antifreeze.loader._recipe import Recipe, Wanted, chosen_columns, expected_leaves, make_recipe
from antifreeze.loader._rows import RowCache
from antifreeze.loader._source import InputDir, Source, manifest_place, open_source

__all__ = [
    "Cut",
    "Cuts",
    "InputDir",
    "Partition",
    "Recipe",
    "RowCache",
    "STALL_LIMIT_S",
    "Selection",
    "Shuffle",
    "Source",
    "Wanted",
    "chosen_columns",
    "expected_leaves",
    "machine_memory",
    "make_order",
    "make_recipe",
    "manifest_place",
    "open_source",
    "parse_limit",
    "read_blocks",
    "seeded",
]
