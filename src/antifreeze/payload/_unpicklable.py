"""Finds which part of a program cannot be sent to a worker, how it is reached, and what to do about it."""

from __future__ import annotations

import dis
import functools
import io
import types
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from antifreeze.core import NotPicklable
from antifreeze.payload._modules import attributes, class_members, slots
from antifreeze.payload._pickler import Pickler, spawning
from antifreeze.payload._process_local import HandleTransfer

_MAX_DEPTH = 20
_CODE = (type, types.FunctionType, types.ModuleType, types.CodeType)
_FORK_HINT = (
    "create it, or the object it belongs to, with multiprocessing.get_context('spawn'): one that was created for forks "
    "has no name by which another process finds it, and workers are never forks of this process"
)
_HINT = (
    "open it in the worker, on first use (in __getitem__ or worker_init_fn), or leave it out in __getstate__: a "
    "connection, a generator, a handle or a file that is open for writing belongs to one process"
)


class _Found(NamedTuple):
    """An object, and how to find it in the source."""

    value: Any
    name: str
    """An expression: ``dataset.db``, or ``CHANNELS['main']`` after ``origin``."""
    origin: str = ""
    """Where that expression is used, if it does not start at the dataset: a global of a function."""
    path: str = ""
    """The whole path, for programs."""

    def member(self, suffix: str, value: Any) -> _Found:
        """Return a member of this object."""
        return _Found(value, self.name + suffix, self.origin, self.path + suffix)

    def used(self, name: str, value: Any, origin: str) -> _Found:
        """Return an object that a function or class refers to by name."""
        return _Found(value, name, origin, f"{self.path} -> {name}")


class _Failure(NamedTuple):
    """Why an object cannot be sent."""

    error: Exception
    at: Any
    """What the pickler was processing: the object, a part of it, or the result of its ``__getstate__``."""


def explained(program: Any, error: Exception) -> NotPicklable:
    """Return an error that names the part of a program that cannot be sent."""
    found, failure = _culprit(program, error)
    error, holds = failure.error, failure.at
    where = f"{found.name} (a {_kind(found.value)}){found.origin}"
    if holds is not found.value and not issubclass(type(holds), _CODE):
        where = f"{where.removesuffix(',')}, which holds a {_kind(holds)},"
    reason = error.message if isinstance(error, NotPicklable) else f"{type(error).__name__}: {error}"
    hint = error.hint if isinstance(error, NotPicklable) else _FORK_HINT if _is_semaphore(found.value) else _HINT
    return NotPicklable(f"{where} cannot be sent to a worker process: {reason}", hint=hint, path=found.path)


def _is_semaphore(value: Any) -> bool:
    return any(base.__name__ == "SemLock" for base in type(value).__mro__)


def _kind(value: Any) -> str:
    kind = type(value)
    return f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")


def _culprit(program: Any, error: Exception) -> tuple[_Found, _Failure]:
    """Return the deepest part that cannot be pickled, and how it is reached."""
    parts = (_Found(value, name.lstrip("_"), path=name.lstrip("_")) for name, value in attributes(program).items())
    found, failure = _first_failing(parts) or (_Found(program, "the dataset", path="dataset"), _Failure(error, program))
    seen = {id(found.value)}
    while failure.at is not found.value and len(seen) <= _MAX_DEPTH:
        deeper = _first_failing(part for part in _parts(found) if id(part.value) not in seen)
        if deeper is None:
            break
        found, failure = deeper
        seen.add(id(found.value))
    return found, failure


def _first_failing(parts: Iterable[_Found]) -> tuple[_Found, _Failure] | None:
    for part in parts:
        if (failure := _failure(part.value)) is not None:
            return part, failure
    return None


def _parts(found: _Found) -> Iterator[_Found]:
    """Yield the parts of an object that pickle would visit and that a person can find."""
    value, kind = found.value, type(found.value)
    if issubclass(kind, dict):
        yield from (found.member(f"[{key!r}]", each) for key, each in list(value.items()))
    elif issubclass(kind, list | tuple):
        yield from _items(found)
    elif issubclass(kind, set | frozenset):
        yield from (found.member(f", in which {each!r} is", each) for each in value)
    elif kind is types.FunctionType:
        yield from _names(found)
    elif issubclass(kind, type):
        yield from _class_parts(found)
        return
    elif kind is types.MethodType:
        yield from (found._replace(value=value.__func__), found.member(".__self__", value.__self__))
    elif issubclass(kind, functools.partial):
        yield from (found.member(f".{name}", getattr(value, name)) for name in ("func", "args", "keywords"))
    elif issubclass(kind, staticmethod | classmethod):
        yield found._replace(value=value.__func__)
    elif issubclass(kind, property):
        yield from (found._replace(value=each) for each in (value.fget, value.fset, value.fdel))
    yield from (found.member(f".{name}", each) for name, each in [*attributes(value).items(), *slots(value)])
    yield found._replace(value=kind)


def _items(found: _Found) -> Iterator[_Found]:
    """Yield the first item that cannot be sent, found by bisection: there may be millions."""
    low, high = 0, len(found.value)
    if high > low and _failure(list(found.value)) is not None:
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if _failure(found.value[low:middle]) is not None else (middle, high)
        yield found.member(f"[{low}]", found.value[low])


def _names(found: _Found) -> Iterator[_Found]:
    """Yield what a function refers to: enclosing variables, globals of its module, defaults."""
    function = found.value
    user = function.__qualname__
    if user.endswith("<lambda>"):
        user += f" of line {function.__code__.co_firstlineno}"
    for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            inside = cell.cell_contents
        except ValueError:  # not set yet
            continue
        yield found.used(variable, inside, f", a variable that {user} uses,")
    module, known = function.__module__, function.__globals__
    for name in _globals_of(function.__code__):
        if name in known:
            yield found.used(name, known[name], f", a global of {module} that {user} uses,")
    for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        yield found.used("a default argument", default, f" of {user}")


def _globals_of(code: types.CodeType) -> Iterator[str]:
    """Yield the globals that code, and the functions inside it, refer to."""
    yield from (each.argval for each in dis.get_instructions(code) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME"))
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _globals_of(inner)


def _class_parts(found: _Found) -> Iterator[_Found]:
    kind = found.value
    for name, each in class_members(kind).items():
        if not isinstance(each, types.GetSetDescriptorType | types.MemberDescriptorType):
            yield found.used(
                f"{kind.__qualname__}.{name}", each, f", an attribute of class {kind.__module__}.{kind.__qualname__},"
            )
    yield from (found._replace(value=base) for base in kind.__bases__)


def _failure(value: Any) -> _Failure | None:
    transfer = HandleTransfer()
    pickler = Pickler(io.BytesIO(), transfer)
    try:
        with spawning(transfer):
            pickler.dump(value)
    except Exception as error:  # noqa: BLE001  border: it calls the user's reducers
        return _Failure(error, pickler.last)
    finally:
        transfer.close()
    return None
