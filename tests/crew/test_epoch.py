"""What comes back counts only for whoever has asked for it."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

from antifreeze.child import Result
from antifreeze.crew._epoch import Epoch
from antifreeze.crew._history import History
from antifreeze.crew._ledger import Ledger
from antifreeze.crew._pace import Pace
from antifreeze.crew._sources import ShareSource
from antifreeze.supervise import Limits
from antifreeze.transport import Inbox, Packed

SLOTS = 2
MADE = Packed(b"", [])


def test_answers_to_what_was_asked_before_an_error_are_not_taken() -> None:
    """A worker that stays is told anew what to make; what it had sent before may say that its share has ended."""
    crew: Any = SimpleNamespace(runs=itertools.count(), terms=SimpleNamespace(limits=Limits(), num_workers=SLOTS))
    member: Any = SimpleNamespace(inbox=Inbox(), name="worker 1")
    source, ledger = ShareSource(SLOTS, epoch=0, seed=0, dataset="D"), Ledger(SLOTS)
    pace, history = Pace(2), History(SLOTS, 8)
    first = Epoch(crew, source, ledger, pace, history, number=0, decide=None)
    for _ in range(2 * SLOTS):
        found = source.next()
        assert found is not None
        ledger.add(*found)
    ledger.give(1, 2)
    ledger.reclaim()
    source.begun_again({})
    second = Epoch(crew, source, ledger, pace, history, number=0, decide=None)
    assert [task.step for task in ledger.give(1, 2)] == [1, 3]

    assert not second.came_back(1, Result(0, 3, packed=MADE, ended=True, run=first.run), member)
    assert [ledger.holds(1, step) for step in (1, 3)] == [True, True]
    assert not source.is_over(1)
    assert second.came_back(1, Result(0, 1, packed=MADE, run=second.run), member)
    assert [ledger.holds(1, step) for step in (1, 3)] == [False, True]
