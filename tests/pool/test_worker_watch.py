"""Workers that are gone are told of in the order in which they were lost, whoever of them is heard of first."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

from antifreeze.core import WorkerDied
from antifreeze.diagnosis import History
from antifreeze.ipc import Heartbeat, Stage
from antifreeze.pool._task_sources import IndexTasks
from antifreeze.pool._task_table import TaskTable
from antifreeze.pool._worker_watch import WorkerFailures, WorkerWatch

KILLED = -9
RECORD = Heartbeat(since_s=1, stage=Stage.FETCH, step=0, sample=-3, position=1, slowest_s=0, num_samples=1, name="")


def member_of(slot: int) -> Any:
    return SimpleNamespace(
        slot=slot,
        token=slot,
        pid=1000 + slot,
        name=f"worker {slot}",
        record=RECORD,
        finding=None,
        sample=None,
        exited_early=False,
        stacks=-1,
    )


def pool_of(max_restarts: int) -> Any:
    config = SimpleNamespace(num_workers=2, stall_limit_s=None, max_restarts=max_restarts, on_error="raise")
    return SimpleNamespace(config=config, early_exits=Counter(), cannot_start=False, fatal=None)


def failures_of(pool: Any) -> tuple[WorkerFailures, TaskTable, History]:
    """Return what handles the lost workers of an epoch with one task."""
    source, task_table, history = IndexTasks(iter([[7, 13]]), epoch=0, seed=0, dataset="D"), TaskTable(2), History(2, 2)
    found = source.next()
    assert found is not None
    task_table.add(*found)
    watch = WorkerWatch(pool, source, task_table, history)
    return WorkerFailures(pool, source, task_table, watch, history, 0), task_table, history


def test_the_second_at_a_place_does_not_end_the_epoch_before_the_first_is_told_of() -> None:
    """Exit codes come in any order, and the error that follows from the second ends everything."""
    failures, task_table, history = failures_of(pool_of(max_restarts=100))
    for slot in (1, 0):
        task_table.give(slot, 1)
        failures.lost(member_of(slot))

    failures.on_exit_code(0, KILLED)
    assert task_table.take() is None
    assert failures.unexplained == 2
    failures.on_exit_code(1, KILLED)

    assert [restart.worker for restart in history.restarts] == [1, 0]
    assert {restart.sample for restart in history.restarts} == {"sample 13 of D"}
    error = task_table.take()
    assert isinstance(error, WorkerDied)
    assert "sample 13 of D" in error.message


def test_the_evidence_of_the_last_loss_has_its_own_lines() -> None:
    """A line break in a message would be shown as two letters."""
    pool = pool_of(max_restarts=0)
    failures, task_table, _ = failures_of(pool)
    task_table.give(0, 1)
    failures.lost(member_of(0))
    failures.on_exit_code(0, None)

    assert isinstance(pool.fatal, WorkerDied)
    assert "\\n" not in str(pool.fatal)
    assert [line.strip() for line in pool.fatal.lines] == ["how it ended is not known"]
