"""What users iterate over, and the source behind it."""

from antifreeze.child import seeded
from antifreeze.loader._cut import Cut, Cuts
from antifreeze.loader._hive import Partition
from antifreeze.loader._kept import Kept
from antifreeze.loader._memory import machine_memory, parse_limit
from antifreeze.loader._reading import (
    MAX_STREAMS,
    MAX_WINDOW_ROWS,
    STALL_LIMIT_S,
    Means,
    Selection,
    Shape,
    make_order,
    make_shape,
    read_blocks,
)
from antifreeze.loader._recipe import Recipe, Wanted, chosen_columns, column_types, expected_leaves, make_recipe
from antifreeze.loader._rows import RowCache
from antifreeze.loader._source import InputDir, Source, manifest_place, open_source
from antifreeze.loader._together import Pairs, Together, joined, mixed, one_after_the_other, side_by_side
from antifreeze.loader._tracks import TRACKS, leaf_and_row, tracked_block, tracked_recipe

__all__ = [
    "Cut",
    "Cuts",
    "InputDir",
    "Kept",
    "MAX_STREAMS",
    "MAX_WINDOW_ROWS",
    "Means",
    "Pairs",
    "Partition",
    "Recipe",
    "RowCache",
    "STALL_LIMIT_S",
    "Selection",
    "Shape",
    "Source",
    "TRACKS",
    "Together",
    "Wanted",
    "chosen_columns",
    "column_types",
    "expected_leaves",
    "joined",
    "leaf_and_row",
    "machine_memory",
    "make_order",
    "make_recipe",
    "make_shape",
    "manifest_place",
    "mixed",
    "one_after_the_other",
    "open_source",
    "parse_limit",
    "read_blocks",
    "seeded",
    "side_by_side",
    "tracked_block",
    "tracked_recipe",
]
