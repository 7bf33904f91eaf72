"""A saved position against the loader that is to go on from it: what differs, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from antifreeze.core._errors import StateMismatch
from antifreeze.core._logs import get_logger

logger = get_logger()

Differences = dict[str, tuple[Any, Any]]
"""What the state says and what the loader has, by name."""


def check_kind(state: object, *, kind: str, version: int) -> None:
    """Raise StateMismatch unless this is a state of this kind of loader, in a version that it knows."""
    if not isinstance(state, Mapping) or not isinstance(state.get("version"), int) or "kind" not in state:
        found = f"a {type(state).__name__}" if not isinstance(state, Mapping) else f"a dict of {_keys(state)}"
        raise StateMismatch(
            f"this is not a state of an antifreeze {kind}: it is {found}",
            hint="give load_state_dict() what state_dict() of the same loader returned",
        )
    if state["kind"] != kind:
        raise StateMismatch(
            f"the state was saved by another kind of loader: {state['kind']}, this one is {kind}",
            hint="a state fits loaders of the kind that saved it; begin anew, or use that kind",
            differences={"kind": (state["kind"], kind)},
        )
    if state["version"] > version:
        raise StateMismatch(
            f"the state has version {state['version']}, this antifreeze knows versions up to {version}",
            hint="it was saved by a newer antifreeze; install that one",
            differences={"version": (state["version"], version)},
        )


def _keys(state: Mapping[Any, Any]) -> str:
    names = [repr(name) for name in list(state)[:4]]
    return ", ".join(names) + (", ..." if len(state) > len(names) else "") if names else "nothing"


def compare(saved: Mapping[str, Any], here: Mapping[str, Any]) -> Differences:
    """Return the facts that the loader has and that the state says otherwise, or not at all."""
    return {name: (saved.get(name), value) for name, value in here.items() if saved.get(name) != value}


def settle(differences: Differences, *, strict: bool, lost: str, hint: str = "") -> None:
    """Raise StateMismatch if anything differs; with ``strict=False`` only warn, and say what is lost by going on."""
    if not differences:
        return
    words = "; ".join(
        f"the state was saved with {name}={before!r:.200}, this loader has {now!r:.200}"
        for name, (before, now) in differences.items()
    )
    if strict:
        raise StateMismatch(
            f"the state does not fit this loader: {words}",
            hint=hint or f"make the loader as it was, or go on with load_state_dict(state, strict=False): {lost}",
            differences=differences,
        )
    logger.warning("antifreeze: going on from a state that does not fit this loader: %s. What is lost: %s", words, lost)
