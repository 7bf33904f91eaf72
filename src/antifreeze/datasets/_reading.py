"""One epoch, wired: a plan, a way to decode, someone who does it, and how much memory that may take."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from antifreeze.core import ConfigError, Manifest, ReadLimits
from antifreeze.datasets._read_spec import PIECE_NBYTES, ReadSpec
from antifreeze.decode import Arena, Blocks, InlineBlocks, Producer, StridedBlocks, ThreadedBlocks
from antifreeze.diagnosis import memory_limits
from antifreeze.plan import (
    LANES,
    FlightLimits,
    Int64Array,
    Interleaved,
    Lanes,
    Listed,
    Order,
    Sequential,
    Shuffling,
    interleaved,
    round_at,
    view_of_all,
    view_of_range,
    view_of_rows,
)

WINDOW_NBYTES = 32 << 20
"""Rows are shuffled within about this much decoded data at a time."""
_WINDOW_ROWS = 1 << 20
_STREAMS, _FEWEST_STREAMS = 16, 4
MAX_WINDOW_ROWS, MAX_STREAMS = _WINDOW_ROWS, _STREAMS
"""No run has more of a lane in a window, or more fragments of it open."""
_ROOMY_NBYTES = 1 << 30
_OPEN_NBYTES = 64 << 20
"""What the pages of open fragments may take, unless the user has set a limit."""
_THREAD_NBYTES = 24 << 20
"""What a thread needs to hold: with a smaller limit for all of them, fewer threads decode."""
STALL_LIMIT_S = 120.0
SHARE = 8
"""The default limit is one part in this many of what the machine, or the container, has."""

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_SIZE = re.compile(r"\s*([0-9]{1,19}(?:\.[0-9]{1,19})?)\s*([kmgt]i?)?b?\s*", re.IGNORECASE)
_LEAST = 10**6

Selection = range | Int64Array | None
"""Which rows of a source a dataset has, in order: all, consecutive ones, or a list."""


class RunShape(NamedTuple):
    """What the order of an epoch depends on beside the data and the seed. A run that is resumed must keep it."""

    lanes: int
    window_rows: int
    """How many rows of a lane are shuffled among each other at a time."""
    streams: int
    """How many fragments of a lane are read at a time."""


def make_run_shape(spec: ReadSpec, lanes: int, memory_limit: int | None) -> RunShape:
    """Return the shape of a new run. Only a limit that the user has set counts: the machine must not change the order.

    A window and the streams of one loader are shared out to its lanes, but no thinner than to eight.
    """
    nbytes = WINDOW_NBYTES if memory_limit is None else min(WINDOW_NBYTES, memory_limit // 8)
    window = max(1, min(nbytes // spec.row_nbytes, _WINDOW_ROWS))
    share = min(lanes, LANES)
    return RunShape(lanes, max(1, window // share), max(1, _streams(spec, memory_limit) // share))


def make_order(
    manifest: Manifest, selection: Selection, lanes: Lanes, shape: RunShape, shuffled: tuple[int, int] | None
) -> Order:
    """Return the order in which some lanes deliver the selected rows; ``shuffled`` is seed and epoch, if it is."""
    sizes = manifest.fragment_rows
    if isinstance(selection, np.ndarray):
        ascending = bool((np.diff(selection) >= 0).all())
        if shuffled is None and not ascending:
            return Listed(np.asarray(sizes), interleaved(selection, lanes), shape.window_rows)
        view = view_of_rows(sizes, selection if ascending else np.sort(selection))
    elif selection is None:
        view = view_of_all(sizes)
    else:
        view = view_of_range(sizes, selection.start, selection.stop)
    if shuffled is not None:
        return Interleaved(view, lanes, Shuffling(*shuffled, shape.window_rows, shape.streams))
    if len(lanes.numbers) == 1:
        return Sequential(view, lanes.total, lanes.first)
    return Interleaved(view, lanes, None, window_rows=shape.window_rows)


def _streams(spec: ReadSpec, memory_limit: int | None) -> int:
    """Return how many fragments to have open at a time: half of the memory may go to them.

    An open fragment holds a page, and a page of images may be a whole row group of 100 MB: no more than about 64 MB of
    pages are open, unless these are very large.
    """
    if memory_limit is None:
        most = _OPEN_NBYTES // page if (page := spec.decoding.page_nbytes) else _STREAMS
        return max(_FEWEST_STREAMS, min(_STREAMS, most))
    piece = PIECE_NBYTES * min(memory_limit, _ROOMY_NBYTES) // _ROOMY_NBYTES
    return max(1, min(_STREAMS, memory_limit // 2 // (max(spec.open_nbytes, spec.decoding.page_nbytes) + piece)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What an epoch is read with."""

    threads: int = 0
    """Without threads, blocks are made when they are asked for."""
    ahead: int = 1
    memory_limit: int
    stall_limit_s: float = STALL_LIMIT_S
    is_paced: bool = False
    """Whether rows wait for workers, which take longer than decoding: no more are decoded than workers can use."""

    def shared(self, number: int) -> ReadOptions:
        """Return what each of several has. Not paced: whose rows workers take next is not known to any of them."""
        return replace(self, memory_limit=self.memory_limit // number, is_paced=False)


def read_blocks(order: Order, spec: ReadSpec, position: int, options: ReadOptions) -> Blocks:
    """Start an epoch at a position and return its blocks in order."""
    memory_limit = options.memory_limit
    threads = min(options.threads, max(1, memory_limit // _THREAD_NBYTES))
    decoding = replace(spec.decoding, limits=ReadLimits.of(memory_limit, threads))
    if memory_limit < _ROOMY_NBYTES:  # every open fragment holds a piece
        rows = max(1, decoding.piece_rows * memory_limit // _ROOMY_NBYTES)
        decoding = replace(decoding, piece_rows=rows)
    first = round_at(order, position)
    round_nbytes = max(1, _in_flight_nbytes(memory_limit) // ((options.ahead if threads else 1) + 1))
    arena = Arena(memory_limit // 4)
    producer = Producer(order, decoding, spec.block, arena, first, round_nbytes=round_nbytes)
    blocks = _started(producer, spec, threads, options) if threads else InlineBlocks(producer)
    # A round is made as a whole: what was delivered of it before is left out again.
    return blocks if position == order.start(first) else StridedBlocks(blocks, skip=position - order.start(first))


def _in_flight_nbytes(memory_limit: int) -> int:
    """Return what decoded rows may take; the rest is left to open fragments and to what allocators keep."""
    return memory_limit * 5 // 8


def _started(producer: Producer, spec: ReadSpec, threads: int, options: ReadOptions) -> ThreadedBlocks:
    order, memory_limit, stall_limit_s = producer.order, options.memory_limit, options.stall_limit_s
    rounds = threads * options.ahead if not order.is_shuffled else options.ahead
    nbytes = _in_flight_nbytes(memory_limit)
    if options.is_paced:
        nbytes //= 2  # rows that wait for workers exist twice: here, and in shared memory
        if not order.is_shuffled:
            nbytes = min(nbytes, WINDOW_NBYTES)
    limits = FlightLimits(nbytes=nbytes, rounds_ahead=rounds, is_paced=options.is_paced)
    return ThreadedBlocks(
        producer, threads=threads, limits=limits, row_nbytes=spec.row_nbytes, stall_limit_s=stall_limit_s
    )


def parse_limit(limit: int | str | None, name: str = "memory_limit") -> int:
    """Return a number of bytes for ``memory_limit=``: bytes, text such as ``"256MB"`` or ``"1GiB"``, or the default."""
    if limit is None:
        return max(machine_memory() // SHARE, 64 << 20)
    nbytes = -1
    if isinstance(limit, int) and not isinstance(limit, bool):
        nbytes = limit
    elif isinstance(limit, str) and (match := _SIZE.fullmatch(limit)):
        nbytes = int(float(match[1]) * _UNITS[(match[2] or "").lower()])
    if nbytes < _LEAST:
        raise ConfigError(
            f"{name}={limit!r} is not an amount of memory of at least 1 MB",
            hint='give bytes, or text such as "256MB" or "2GiB"',
            argument=name,
        )
    return nbytes


def machine_memory() -> int:
    """Return the bytes of memory that this process may use: the machine's, or less in a container."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([total, *memory_limits()])
