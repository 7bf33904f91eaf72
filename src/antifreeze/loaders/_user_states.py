"""States of the user's own objects, given back to them: what they cannot take is a state that does not fit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from antifreeze.core import AntifreezeError, StateMismatch


@contextmanager
def loading(owner: str) -> Iterator[None]:
    """Raise StateMismatch if ``load_state_dict()`` of a user's object fails in this block; its error is the cause."""
    try:
        yield
    except AntifreezeError:
        raise
    except Exception as error:
        raise StateMismatch(
            f"load_state_dict() of {owner} refused its part of the state: {type(error).__name__}: {error!s:.300}",
            hint="give load_state_dict() what state_dict() of the same loader returned; the cause is above",
        ) from error
