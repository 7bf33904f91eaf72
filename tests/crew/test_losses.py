"""Workers that are gone are told of in the order in which they were lost, whoever of them is heard of first."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

from antifreeze.core import WorkerDied
from antifreeze.crew._history import History
from antifreeze.crew._ledger import Ledger
from antifreeze.crew._losses import Losses
from antifreeze.crew._sources import IndexSource
from antifreeze.crew._watch import Watch
from antifreeze.supervise import Limits
from antifreeze.transport import Record, Stage

KILLED = -9
RECORD = Record(since_s=1, stage=Stage.FETCH, step=0, sample=-3, position=1, slowest_s=0, num_samples=1, name="")


def member_of(slot: int) -> Any:
    return SimpleNamespace(
        slot=slot,
        token=slot,
        pid=1000 + slot,
        name=f"worker {slot}",
        record=RECORD,
        finding=None,
        sample=None,
        died_early=False,
        read_stacks=lambda: "",
    )


def test_the_second_at_a_place_does_not_end_the_epoch_before_the_first_is_told_of() -> None:
    """Exit codes come in any order, and the error that follows from the second ends everything."""
    terms = SimpleNamespace(num_workers=2, max_restarts=100, on_error="raise")
    crew: Any = SimpleNamespace(terms=terms, exits={}, early_deaths=Counter(), cannot_start=False, fatal=None)
    source, ledger, history = IndexSource(iter([[7, 13]]), epoch=0, seed=0, dataset="D"), Ledger(2), History(2, 2)
    found = source.next()
    assert found is not None
    ledger.add(*found)
    watch = Watch(Limits(), history, lambda record: source.name(ledger.task(0), "", record.position))
    losses = Losses(crew, source, ledger, watch, history, 0)
    for slot in (1, 0):
        ledger.give(slot, 1)
        losses.lost(member_of(slot))

    crew.exits.pop(0)(KILLED)
    assert ledger.take() is None
    assert losses.unexplained == 2
    crew.exits.pop(1)(KILLED)

    assert [restart.worker for restart in history.restarts] == [1, 0]
    assert {restart.sample for restart in history.restarts} == {"sample 13 of D"}
    error = ledger.take()
    assert isinstance(error, WorkerDied)
    assert "sample 13 of D" in error.message
