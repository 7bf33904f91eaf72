"""Validates states from outside before any number in them is used, and compares them with the loader that resumes.

A state is read from a checkpoint that may be cut, edited, of another program, or written by somebody who wishes to do
harm. So no number of it is used for a loop, an allocation or an index before a form has seen it.

Guarantees. A form raises ``StateMismatch`` or returns; it takes time in proportion to the entries that a valid state
may have, never to the size of what was given: lists and mappings are measured before they are walked, and what is
nested deeper than the form says is not looked at. Messages have a few hundred characters whatever was given.

A form is a function of a value and of the name that messages call it by. Forms are made once, from each other:

    fields({"step": whole(), "missing": items(row(whole(), whole(1)), most=65_536)})(state, "state")

# Invariant: types are compared exactly. ``True`` is not 1, and an integer of NumPy is not one of JSON.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from antifreeze.core._errors import StateMismatch
from antifreeze.core._logs import get_logger

logger = get_logger()

Form = Callable[[Any, str], None]
"""Raises StateMismatch unless a value, which messages call by a name, has this form."""
Forms = Mapping[str, Form]

MAX_WHOLE = (1 << 63) - 1
_MAX_FACT_BITS = 1024
_MAX_FACT_CHARS = 1 << 20
_MAX_OTHERS = 64
MAX_NAME_CHARS = 200
_SHOWN_CHARS, _SHOWN_BITS, _SHOWN_NAMES = 200, 512, 4
_NO_FORMS: Forms = MappingProxyType({})
HINT = "give load_state_dict() what state_dict() of the same loader returned"


def whole(least: int = 0, most: int = MAX_WHOLE) -> Form:
    """Return the form of an integer between two bounds."""
    bound = f"an integer >= {least}" if most == MAX_WHOLE else f"an integer from {least} to {most}"

    def check(value: Any, name: str) -> None:
        if type(value) is not int or not least <= value <= most:
            raise unexpected(name, bound, value)

    return check


def flag(value: Any, name: str) -> None:
    """Check that a value is True or False."""
    if type(value) is not bool:
        raise unexpected(name, "True or False", value)


def text(most: int = _MAX_FACT_CHARS, *, among: tuple[str, ...] = ()) -> Form:
    """Return the form of a string of at most ``most`` characters, or of one of a few strings."""
    bound = f"one of {', '.join(among)}" if among else f"a text of at most {most} characters"

    def check(value: Any, name: str) -> None:
        if type(value) is not str or len(value) > most or (among and value not in among):
            raise unexpected(name, bound, value)

    return check


def fact(value: Any, name: str) -> None:
    """Check that a value can be compared and shown: None, a flag, an integer or a text, none of them huge."""
    is_small = type(value) is int and value.bit_length() <= _MAX_FACT_BITS
    is_short = type(value) is str and len(value) <= _MAX_FACT_CHARS
    if not (value is None or type(value) is bool or is_small or is_short):
        raise unexpected(name, "None, True, False, a number or a short text", value)


def anything(value: Any, name: str) -> None:
    """Let everything pass: a state that user code has made, and that user code will read."""


def maybe(form: Form) -> Form:
    """Return the form of a value that may be None."""

    def check(value: Any, name: str) -> None:
        if value is not None:
            form(value, name)

    return check


def items(form: Form, *, most: int) -> Form:
    """Return the form of a list of at most ``most`` values of one form."""

    def check(value: Any, name: str) -> None:
        if type(value) not in (list, tuple) or len(value) > most:
            raise unexpected(name, f"a list of at most {most} entries", value)
        for number, item in enumerate(value):
            form(item, f"{name}[{number}]")

    return check


def row(*forms: Form, least: int | None = None) -> Form:
    """Return the form of a list with one value for each of these forms; those after ``least`` may be missing."""
    fewest = len(forms) if least is None else least
    bound = f"a list of {len(forms)} entries" if fewest == len(forms) else f"a list of {fewest} to {len(forms)} entries"

    def check(value: Any, name: str) -> None:
        if type(value) not in (list, tuple) or not fewest <= len(value) <= len(forms):
            raise unexpected(name, bound, value)
        for number, (item, form) in enumerate(zip(value, forms, strict=False)):
            form(item, f"{name}[{number}]")

    return check


def fields(required: Forms, optional: Forms = _NO_FORMS, *, others: Form | None = None) -> Form:
    """Return the form of a mapping from texts: what it must have, what it may have, and the form of anything else.

    Without ``others``, only names with an underscore in front pass unseen: frameworks add their own entries.
    """

    def check(value: Any, name: str) -> None:
        if not isinstance(value, Mapping):
            raise unexpected(name, "a dict", value)
        if len(value) > len(required) + len(optional) + _MAX_OTHERS:
            raise unexpected(name, f"a dict of {len(required)} to {len(required) + len(optional)} entries", value)
        for key in required:
            if key not in value:
                raise unexpected(name, f"an entry {key!r}", value)
        for key, item in value.items():
            if type(key) is not str or len(key) > MAX_NAME_CHARS:
                raise unexpected(f"a name in {name}", f"a text of at most {MAX_NAME_CHARS} characters", key)
            form = required.get(key) or optional.get(key) or others
            if form is not None:
                form(item, f"{name}[{key!r}]")
            elif not key.startswith("_"):
                known = ", ".join([*required, *optional])
                raise unexpected(f"a name in {name}", f"one of {known}", key)

    return check


def unexpected(name: str, expected: str, value: Any) -> StateMismatch:
    """Return the error for a state with an impossible value."""
    got = shown(value)
    return StateMismatch(
        f"the state is damaged: {name}: expected {expected}, got {got}", hint=HINT, differences={name: (got, expected)}
    )


def shown(value: Any) -> str:
    """Return a value for a message, in at most a few hundred characters, whatever it is."""
    kind = type(value)
    if value is None or kind in (bool, float):
        return repr(value)
    if kind is int:
        return repr(value) if value.bit_length() <= _SHOWN_BITS else f"an integer of {value.bit_length()} bits"
    if kind in (str, bytes):
        start = repr(value[:_SHOWN_CHARS])
        return start if len(value) <= _SHOWN_CHARS else f"{start} and {len(value) - _SHOWN_CHARS} more"
    if isinstance(value, Mapping):
        return f"a dict of {names_of(value)}"
    if kind in (list, tuple) and all(type(item) in (bool, int, str) or item is None for item in value[:_SHOWN_NAMES]):
        parts = ", ".join(shown(item) for item in value[:_SHOWN_NAMES])
        return f"[{parts}{', ...' if len(value) > _SHOWN_NAMES else ''}]"
    return f"a {kind.__name__:.100}"


def names_of(state: Mapping[Any, Any]) -> str:
    """Return the first names in a mapping, for a message."""
    first = itertools.islice(state, _SHOWN_NAMES)
    names = [shown(name) if type(name) in (str, int) else f"a {type(name).__name__:.100}" for name in first]
    return ", ".join(names) + (", ..." if len(state) > len(names) else "") if names else "nothing"


# -- comparing -----------------------------------------------------------------------------------------------------

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
