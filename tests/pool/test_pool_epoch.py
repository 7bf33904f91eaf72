"""A result counts only for the run that asked for it."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

from antifreeze.diagnosis import History
from antifreeze.ipc import Inbox, Packed
from antifreeze.pool._pool_epoch import PoolEpoch
from antifreeze.pool._prefetch import PrefetchTuner
from antifreeze.pool._task_sources import ShardTasks
from antifreeze.pool._task_table import TaskTable
from antifreeze.worker import Result

SLOTS = 2
MADE = Packed(b"", [])


def test_answers_to_what_was_asked_before_an_error_are_not_taken() -> None:
    """A persistent worker gets new tasks; what it sent before may say that its shard has ended."""
    pool: Any = SimpleNamespace(runs=itertools.count(), config=SimpleNamespace(stall_limit_s=None, num_workers=SLOTS))
    worker: Any = SimpleNamespace(inbox=Inbox(), name="worker 1")
    source, task_table = ShardTasks(SLOTS, epoch=0, seed=0, dataset="D"), TaskTable(SLOTS)
    tuner, history = PrefetchTuner(2), History(SLOTS, 8)
    first = PoolEpoch(pool, source, task_table, tuner, history, number=0, decide=None)
    for _ in range(2 * SLOTS):
        found = source.next()
        assert found is not None
        task_table.add(*found)
    task_table.give(1, 2)
    task_table.reclaim()
    source.begun_again({})
    second = PoolEpoch(pool, source, task_table, tuner, history, number=0, decide=None)
    assert [task.step for task in task_table.give(1, 2)] == [1, 3]

    assert not second.on_result(1, Result(0, 3, packed=MADE, ended=True, run=first.run), worker)
    assert [task_table.holds(1, step) for step in (1, 3)] == [True, True]
    assert not source.is_over(1)
    assert second.on_result(1, Result(0, 1, packed=MADE, run=second.run), worker)
    assert [task_table.holds(1, step) for step in (1, 3)] == [False, True]
