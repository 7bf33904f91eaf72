"""Compares a saved state with the loader that should resume from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from antifreeze.core._errors import StateMismatch
from antifreeze.core._logs import get_logger
from antifreeze.core.forms import HINT, MAX_NAME_CHARS, names_of, shown, whole

logger = get_logger()

Differences = dict[str, tuple[Any, Any]]
"""The value in the state and the value of the loader, by name."""


def check_kind(state: object, *, kind: str, version: int) -> None:
    """Raise StateMismatch unless this is a state of this kind of loader, in a version that it knows."""
    if not isinstance(state, Mapping) or type(state.get("version")) is not int or type(state.get("kind")) is not str:
        found = f"a dict of {names_of(state)}" if isinstance(state, Mapping) else f"a {type(state).__name__:.100}"
        raise StateMismatch(f"this is not a state of an antifreeze {kind}: it is {found}", hint=HINT)
    saved, number = state["kind"], state["version"]
    if saved != kind:
        raise StateMismatch(
            f"the state was saved by another kind of loader: {saved:.{MAX_NAME_CHARS}}, this one is {kind}",
            hint="load the state into the kind of loader that saved it, or start a new run",
            differences={"kind": (saved[:MAX_NAME_CHARS], kind)},
        )
    if number > version:
        raise StateMismatch(
            f"the state has version {shown(number)}, this antifreeze supports versions up to {version}",
            hint="install the newer antifreeze that saved it",
            differences={"version": (number if number < 1 << 63 else shown(number), version)},
        )
    whole(1)(number, "version")


def compare(saved: Mapping[str, Any], here: Mapping[str, Any]) -> Differences:
    """Return the facts of the loader that are different or missing in the state."""
    return {name: (saved.get(name), value) for name, value in here.items() if not _is_same(saved.get(name), value)}


def _is_same(saved: Any, here: Any) -> bool:
    return bool(saved == here) and isinstance(saved, bool) == isinstance(here, bool)


def settle(differences: Differences, *, strict: bool, lost: str, hint: str = "") -> None:
    """Raise StateMismatch if anything differs; with ``strict=False`` only warn, and name what is lost."""
    if not differences:
        return
    words = "; ".join(
        f"the state was saved with {name}={shown(before)}, this loader has {shown(now)}"
        for name, (before, now) in differences.items()
    )
    if strict:
        raise StateMismatch(
            f"the state does not fit this loader: {words}",
            hint=hint
            or f"create the loader as before, or call load_state_dict(state, strict=False) to continue anyway: {lost}",
            differences=differences,
        )
    logger.warning("antifreeze: resuming from a state that does not fit this loader: %s. What is lost: %s", words, lost)
