"""One epoch, wired: a plan, a way to decode, and someone who does it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from antifreeze.core import Manifest
from antifreeze.loader._recipe import PIECE_NBYTES, Recipe
from antifreeze.plan import Limits, Listed, Longs, Order, Sequential, Shuffled, view_of_all, view_of_range, view_of_rows
from antifreeze.workers import Arena, Blocks, InlineBlocks, Producer, ThreadedBlocks

WINDOW_NBYTES = 32 << 20
"""Rows are shuffled within about this much decoded data at a time."""
_WINDOW_ROWS = 1 << 20
_STREAMS = 16
_ROOMY_NBYTES = 1 << 30
STALL_LIMIT_S = 120.0

Selection = range | Longs | None
"""Which rows of a source a dataset has, in order: all, consecutive ones, or a list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shuffle:
    """What the order of a shuffled epoch depends on, apart from the data."""

    seed: int
    epoch: int
    memory_limit: int | None
    """Only a limit that the user has set: what the machine has must not change the order."""


def make_order(manifest: Manifest, recipe: Recipe, selection: Selection, shuffle: Shuffle | None) -> Order:
    """Return the order in which an epoch delivers the selected rows."""
    sizes = manifest.fragment_rows
    window = _window_rows(recipe, shuffle.memory_limit if shuffle else None)
    if isinstance(selection, np.ndarray):
        ascending = bool((np.diff(selection) >= 0).all())
        if shuffle is None and not ascending:
            return Listed(np.asarray(sizes), selection, window)
        view = view_of_rows(sizes, selection if ascending else np.sort(selection))
    elif selection is None:
        view = view_of_all(sizes)
    else:
        view = view_of_range(sizes, selection.start, selection.stop)
    if shuffle is None or not len(view.sizes):
        return Sequential(view)
    streams = _streams(recipe, shuffle.memory_limit)
    return Shuffled(view, seed=shuffle.seed, epoch=shuffle.epoch, window_rows=window, streams=streams)


def _window_rows(recipe: Recipe, memory_limit: int | None) -> int:
    nbytes = WINDOW_NBYTES if memory_limit is None else min(WINDOW_NBYTES, memory_limit // 8)
    return max(1, min(nbytes // recipe.row_nbytes, _WINDOW_ROWS))


def _streams(recipe: Recipe, memory_limit: int | None) -> int:
    """Return how many fragments to have open at a time: half of the memory may go to them."""
    if memory_limit is None:
        return _STREAMS
    piece = PIECE_NBYTES * min(memory_limit, _ROOMY_NBYTES) // _ROOMY_NBYTES
    return max(1, min(_STREAMS, memory_limit // 2 // (recipe.open_nbytes + piece)))


def read_blocks(
    order: Order, recipe: Recipe, *, threads: int, ahead: int, memory_limit: int, stall_limit_s: float
) -> Blocks:
    """Start an epoch and return its blocks in order. Without threads, they are made when they are asked for."""
    decoding = recipe.decoding
    if memory_limit < _ROOMY_NBYTES:  # every open fragment holds a piece
        rows = max(1, decoding.piece_rows * memory_limit // _ROOMY_NBYTES)
        decoding = replace(decoding, piece_rows=rows)
    producer = Producer(order, decoding, recipe.block, Arena(memory_limit // 4))
    if threads == 0:
        return InlineBlocks(producer)
    # The rest of the limit is left to what is open and being decoded, and to what the allocators keep.
    rounds = threads * ahead if not order.deals else ahead
    limits = Limits(nbytes=memory_limit * 5 // 8, rounds_ahead=rounds)
    return ThreadedBlocks(
        producer, threads=threads, limits=limits, row_nbytes=recipe.row_nbytes, stall_limit_s=stall_limit_s
    )
