"""Orders and states are those that were pinned: a change of either is a decision, never an accident."""

from __future__ import annotations

import json
from typing import Any

import pytest

from golden import pinned


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """What this version gives, as JSON would have it."""
    facts: dict[str, Any] = json.loads(json.dumps(pinned.all_facts()))
    return facts


EXPECTED: dict[str, Any] = json.loads(pinned.EXPECTED.read_text())


@pytest.mark.parametrize("name", EXPECTED)
def test_orders_and_states_are_as_pinned(found: dict[str, Any], name: str) -> None:
    """If the change is meant: ``python tests/golden/pinned.py --write``, and a line in the changelog."""
    assert found[name] == EXPECTED[name]


def test_nothing_is_pinned_that_is_no_longer_computed(found: dict[str, Any]) -> None:
    """Nor the other way round."""
    assert sorted(found) == sorted(EXPECTED)
