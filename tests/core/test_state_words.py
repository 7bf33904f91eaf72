"""What does not fit between a state and a loader is said in words."""

from __future__ import annotations

import logging
import pickle
from typing import Any

import pytest

from antifreeze.core import StateMismatch, check_kind, compare, settle


def test_only_what_the_loader_has_is_compared() -> None:
    """A state may say more than this version knows of."""
    assert compare({"a": 1, "b": 2, "new": 3}, {"a": 1, "b": 4, "c": 5}) == {"b": (2, 4), "c": (None, 5)}


def test_every_difference_is_named() -> None:
    """In the message, and as facts."""
    differences = {"batch_size": (32, 64), "seed": (1, 2)}
    with pytest.raises(StateMismatch) as caught:
        settle(differences, strict=True, lost="nothing")
    assert "saved with batch_size=32, this loader has 64; the state was saved with seed=1, this loader has 2" in str(
        caught.value
    )
    assert "strict=False) to continue anyway: nothing" in caught.value.hint
    assert caught.value.differences == differences
    assert pickle.loads(pickle.dumps(caught.value)).differences == differences  # noqa: S301
    settle({}, strict=True, lost="nothing")


def test_who_goes_on_all_the_same_is_warned(caplog: pytest.LogCaptureFixture) -> None:
    """With the differences and what they cost."""
    with caplog.at_level(logging.WARNING, "antifreeze"):
        settle({"batch_size": (32, 64)}, strict=False, lost="half of it")
        settle({}, strict=False, lost="nothing")
    (record,) = caplog.records
    assert "batch_size=32, this loader has 64. What is lost: half of it" in record.getMessage()


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (None, "not a state of an antifreeze Loader: it is a NoneType"),
        ({}, "it is a dict of nothing"),
        ({"model": 1, "b": 2, "c": 3, "d": 4, "e": 5}, "a dict of 'model', 'b', 'c', 'd', ..."),
        ({"version": "1", "kind": "Loader"}, "a dict of 'version', 'kind'"),
        ({"version": 1, "kind": "Other"}, "another kind of loader: Other, this one is Loader"),
        ({"version": 3, "kind": "Loader"}, "version 3, this antifreeze supports versions up to 2"),
    ],
)
def test_what_is_no_state_of_this_loader_is_refused(state: Any, words: str) -> None:
    """Older versions are read."""
    with pytest.raises(StateMismatch) as caught:
        check_kind(state, kind="Loader", version=2)
    assert words in caught.value.message
    assert caught.value.differences.keys() <= {"kind", "version"}
    check_kind({"version": 1, "kind": "Loader"}, kind="Loader", version=2)
