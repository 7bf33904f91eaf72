"""Arguments are checked where they are given: the error names the argument, what was given and what is wanted."""

from __future__ import annotations

import operator

from antifreeze.core import ConfigError

_START_METHODS = ("fork", "forkserver", "spawn")


def integer(name: str, value: object, least: int | None = None) -> int:
    """Return an integer of at least ``least``."""
    number: int | None = None
    if not isinstance(value, bool):
        try:
            number = operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            number = None
    if number is None or (least is not None and number < least):
        bound = "" if least is None else f" of at least {least}"
        raise ConfigError(f"{name}={value!r} is not an integer{bound}", hint=f"pass {name} as one", argument=name)
    return number


def flag(name: str, value: object) -> bool:
    """Return True or False. Text is refused: ``"no"`` would be true."""
    if type(value).__name__ not in ("bool", "bool_"):
        raise ConfigError(f"{name}={value!r} is neither True nor False", hint=f"pass {name}=True", argument=name)
    return bool(value)


def seconds(name: str, value: object) -> float:
    """Return a number of seconds."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
        raise ConfigError(f"{name}={value!r} is not a number of seconds", hint="0 is the default", argument=name)
    return float(value)


def amount(name: str, value: object) -> float:
    """Return a fraction of the rows; above 1, they are repeated."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
        hint = "give a fraction, such as 0.1; above 1, rows are repeated"
        raise ConfigError(f"{name}={value!r} is not a fraction of the rows", hint=hint, argument=name)
    return float(value)


def function(name: str, value: object) -> None:
    """Raise unless the value is a function or None."""
    if value is not None and not callable(value):
        kind = type(value).__name__
        raise ConfigError(f"{name}={value!r} is a {kind}, not a function", hint=f"leave {name} out", argument=name)


def start_method(name: str, value: object) -> object:
    """Return what was given, if it is the name of a start method or a context of multiprocessing."""
    method = value if value is None or isinstance(value, str) else getattr(value, "_name", value)
    if method is not None and method not in _START_METHODS:
        hint = f"it is one of {', '.join(_START_METHODS)}, or a context of multiprocessing; it can be left out"
        raise ConfigError(f"{name}={value!r} is not a start method", hint=hint, argument=name)
    return value
