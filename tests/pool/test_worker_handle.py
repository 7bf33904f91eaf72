"""States of a worker: every state can be left, and nothing brings a lost worker back."""

from __future__ import annotations

import itertools

import pytest

from antifreeze.pool._worker_handle import NEXT, WorkerEvent, WorkerState

REQUESTED, LOADING, READY, GONE = WorkerState
SPAWNED, LOADED, LOST = WorkerEvent


def walk(*events: WorkerEvent) -> WorkerState:
    state = REQUESTED
    for event in events:
        state = NEXT.get((state, event), state)
    return state


def test_every_state_can_be_left() -> None:
    """A state without a way out is a freeze by design."""
    assert {state for state, _ in NEXT} == set(WorkerState) - {GONE}


def test_every_state_can_be_reached() -> None:
    assert {walk(), walk(SPAWNED), walk(SPAWNED, LOADED), walk(LOST)} == set(WorkerState)


@pytest.mark.parametrize("before", [(), (SPAWNED,), (LOADED,), (SPAWNED, LOADED), (LOADED, SPAWNED)])
def test_a_lost_worker_stays_lost(before: tuple[WorkerEvent, ...]) -> None:
    """A message that was on its way when the worker was lost must not bring it back."""
    for late in itertools.product(WorkerEvent, repeat=3):
        assert walk(*before, LOST, *late) is GONE


def test_the_order_of_two_messages_does_not_matter() -> None:
    """The fork server reports that a worker was spawned, the worker that it has loaded: either may arrive first."""
    assert walk(SPAWNED, LOADED) is walk(LOADED, SPAWNED) is READY
