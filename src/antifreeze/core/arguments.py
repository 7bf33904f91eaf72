"""Checks arguments where they are passed: the error names the argument, what was expected and what was given."""

from __future__ import annotations

import difflib
import functools
import inspect
import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar

from antifreeze.core._errors import ConfigError

P = ParamSpec("P")
R = TypeVar("R")

_NONE: Mapping[str, str] = MappingProxyType({})

SUBSET_HINT = (
    "choose rows with dataset.subset(...), by their numbers or by a mask with one bool for each row; read the columns "
    "that the choice depends on with StreamingDataset(path, columns=[...]) or pyarrow"
)
_START_METHODS = ("fork", "forkserver", "spawn")


def integer(name: str, value: object, least: int | None = None, most: int | None = None) -> int:
    """Return an integer of at least ``least`` and at most ``most``."""
    number: int | None = None
    if not isinstance(value, bool):
        try:
            number = operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            number = None
    if number is None or (least is not None and number < least):
        bound = "" if least is None else f" of at least {least}"
        raise ConfigError(f"{name}={value!r} is not an integer{bound}", hint=f"pass {name} as one", argument=name)
    if most is not None and number > most:
        got = number if number.bit_length() < 1 << 10 else f"an integer of {number.bit_length()} bits"
        problem = f"{name} is too large: expected an integer from {least} to {most}, got {got}"
        raise ConfigError(problem, hint=f"pass a smaller {name}, or leave it out", argument=name)
    return number


def flag(name: str, value: object) -> bool:
    """Return True or False. Text is refused: ``"no"`` would be true."""
    if type(value).__name__ not in ("bool", "bool_"):
        raise ConfigError(f"{name}={value!r} is neither True nor False", hint=f"pass {name}=True", argument=name)
    return bool(value)


def seconds(name: str, value: object) -> float:
    """Return a number of seconds."""
    return _finite(name, value, "a number of seconds", hint="0 is the default")


def amount(name: str, value: object) -> float:
    """Return a fraction of the rows; above 1, they are repeated."""
    return _finite(
        name, value, "a fraction of the rows", hint="give a fraction, such as 0.1; above 1, rows are repeated"
    )


def _finite(name: str, value: object, expected: str, hint: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
        raise ConfigError(f"{name}={value!r} is not {expected}", hint=hint, argument=name)
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


def unused(name: str, value: object, why: str, hint: str) -> None:
    """Raise if an unsupported feature is requested; None, False, 0 and empty values request nothing."""
    if value is not None and (value or not isinstance(value, (bool, int, str, dict, list, tuple))):
        raise ConfigError(f"{name}={value!r:.200} is not supported: {why}", hint=hint, argument=name)


def explained(
    what: str, *, instead: Mapping[str, str] = _NONE, renamed: Mapping[str, str] = _NONE
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Turn arguments that a function lacks, or that other libraries name differently, into errors with a hint.

    ``instead`` says what to do instead of an argument, ``renamed`` gives the name that an argument has here. The
    signature stays what it is, for people and for type checkers.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        parameters = inspect.signature(function).parameters
        by_place = [name for name, p in parameters.items() if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
        by_name = [name for name, p in parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY]

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            given: dict[str, Any] = kwargs
            for old in [name for name in given if name in renamed and renamed[name] not in given]:
                given[renamed[old]] = given.pop(old)
            for name in given:
                if name not in parameters:
                    raise _unknown(what, name, instead, list(parameters))
            if len(args) > len(by_place):
                raise ConfigError(
                    f"{what} takes at most {len(by_place) - (by_place[0] == 'self')} arguments by position",
                    hint=f"give these by name: {', '.join(by_name)}",
                    argument=by_name[0] if by_name else "",
                )
            return function(*args, **kwargs)

        return call

    return decorate


def _unknown(what: str, name: str, instead: Mapping[str, str], known: list[str]) -> ConfigError:
    near = difflib.get_close_matches(name, [k for k in known if k != "self"], n=1)
    hint = instead.get(name) or (f"did you mean {near[0]}?" if near else "leave it out")
    return ConfigError(f"{what} has no argument {name!r}", hint=hint, argument=name)
