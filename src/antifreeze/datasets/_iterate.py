"""The rows of a dataset one by one, in the calling thread."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from antifreeze.datasets._memory_limit import parse_limit
from antifreeze.datasets._reading import ReadOptions
from antifreeze.datasets._row_code import Moment
from antifreeze.datasets._row_source import ReadRequest, RowDataset, RowSource
from antifreeze.datasets._user_code import RowBatch, UserCode, error_of, inline_context, row_location
from antifreeze.decode import Rebatcher
from antifreeze.plan import Lanes

_ROWS_AT_A_TIME = 256


def rows_of_epoch(dataset: RowDataset, source: RowSource, epoch: int) -> Iterator[Any]:
    """Yield the rows of an epoch, each through the transform."""
    from antifreeze.worker import UserError, seeded

    code, delivery, context, first = UserCode(code=dataset.row_code()), source.delivery, inline_context(), 0
    reading = ReadRequest(Lanes(), source.shapes(1, None), dataset.shuffle, dataset.seed, epoch, 1)
    if code.code.maker.needs_tracks:
        reading, delivery = reading._replace(first_leaf=0), delivery.tracked()
    source.in_epoch(epoch)
    blocks = source.blocks(reading, 0, ReadOptions(memory_limit=parse_limit(None)))
    with contextlib.closing(blocks):
        for step, (block, start, stop) in enumerate(Rebatcher(iter(blocks), _ROWS_AT_A_TIME)):
            batch = delivery.batch(block, start, stop)
            try:
                with seeded(dataset.seed, epoch, step):
                    moment = Moment(dataset.seed, epoch, first)
                    rows = code.rows(RowBatch(delivery, batch, stop - start, moment), context)
            except UserError as caught:
                place = row_location(lambda i: source.sample_name(reading, i), first, step, caught.position)
                raise error_of(caught, place, step) from caught.error
            yield from rows
            first += stop - start
