"""The rows of a dataset one by one, in the calling thread."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from antifreeze.api._readable import Readable, Reading
from antifreeze.api._row_code import Moment
from antifreeze.api._user_code import UserCode, error_of, inline_desk, place_of
from antifreeze.child import UserError
from antifreeze.loader import Cuts, Means, parse_limit, seeded
from antifreeze.plan import Lanes

_ROWS_AT_A_TIME = 256


def rows_of_epoch(dataset: Readable, epoch: int) -> Iterator[Any]:
    """Yield the rows of an epoch, each through the transform."""
    code, delivery, desk, first = UserCode(code=dataset._code()), dataset._delivery, inline_desk(), 0
    reading = Reading(Lanes(), dataset._shapes(1, None), dataset.shuffle, dataset.seed, epoch, 1)
    if code.code.maker.needs_tracks:
        reading, delivery = reading._replace(first_leaf=0), delivery.tracked()
    dataset._in_epoch(epoch)
    blocks = dataset._blocks(reading, 0, Means(memory_limit=parse_limit(None)))
    with contextlib.closing(blocks):
        for step, (block, start, stop) in enumerate(Cuts(iter(blocks), _ROWS_AT_A_TIME)):
            batch = delivery.batch(block, start, stop)
            try:
                with seeded(dataset.seed, epoch, step):
                    moment = Moment(dataset.seed, epoch, first)
                    rows = code.rows(delivery, batch, stop - start, desk, moment)
            except UserError as caught:
                place = place_of(lambda i: dataset._sample_name(reading, i), first, step, caught.position)
                raise error_of(caught, place, step) from caught.error
            yield from rows
            first += stop - start
