"""The pickler for everything that is sent to a worker; extends cloudpickle.

Large buffers are stored out of band, in shared memory. Objects that belong to one process are handled by the
reducers of this package. Functions and classes of modules that workers cannot import are sent by value. What cannot be
sent is named, with how it is reached and what to do about it.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import inspect
import io
import multiprocessing.context
import operator
import pickle
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

import cloudpickle
import numpy as np

from antifreeze.core import NotPicklable
from antifreeze.ipc import Mappings
from antifreeze.payload._modules import attributes, class_members, slots
from antifreeze.payload._reducers import HandleTransfer, reducer_of
from antifreeze.payload._reopen import PER_WORKER
from antifreeze.payload._replacements import Patch, find_replacements, is_original, original, packed
from antifreeze.payload._shared_list import LARGE, Column, encode

_SMALL = 1 << 12
_CODE = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)
_Reduce = Callable[[Any], Any]


class _OutOfBand:
    """Out-of-band buffers of a pickle."""

    def __init__(self, transfer: HandleTransfer) -> None:
        self.mappings = Mappings(transfer.duplicate_for_child)
        self.raws: list[Any] = []

    def keep_in_band(self, buffer: pickle.PickleBuffer) -> bool:
        """Store a buffer out of band, unless it is small and not shared with other processes."""
        raw = buffer.raw()
        if raw.nbytes < _SMALL and not self.mappings.any_shared:  # a dataset may have millions of these
            return True
        memory = np.frombuffer(raw, np.uint8)
        if raw.nbytes < _SMALL and not self.mappings.is_shared(memory):
            return True
        self.raws.append(memory)
        return False


class TakenList(NamedTuple):
    """A large list that is sent as columns. The items are immutable: a list with the same items is the same list."""

    items: list[Any]
    column: Column


class Lists:
    """Encodes large lists, except those that have the same items as before."""

    def __init__(self, before: Sequence[TakenList]) -> None:
        self._before = before
        self._columns: dict[int, Column | None] = {}
        self._held: list[list[Any]] = []
        self.taken: list[TakenList] = []

    def column_of(self, items: list[Any]) -> Column | None:
        """Return a list as columns; None if it has to be pickled."""
        if id(items) not in self._columns:
            self._held.append(items)  # so that its id is not reused
            taken = self._take(items)
            self.taken += taken
            self._columns[id(items)] = taken[0].column if taken else None
        return self._columns[id(items)]

    def _take(self, items: list[Any]) -> Sequence[TakenList]:
        before = self._before[len(self.taken) : len(self.taken) + 1]
        if before and len(before[0].items) == len(items) and all(map(operator.is_, before[0].items, items)):
            return before
        column = encode(items)
        return [] if column is None else [TakenList(list(items), column)]


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
    """Pickles whatever a dataset may hold.

    Args:
        file: Where the pickle is written.
        transfer: Collects descriptors that are sent along.
        before: Large lists of the previous payload.
        replaced: Module and name of everything that was replaced since its import.
        is_replacement: Whether the object replaces another one in a worker.
    """

    def __init__(
        self,
        file: Any,
        transfer: HandleTransfer,
        before: Sequence[TakenList] = (),
        *,
        replaced: AbstractSet[tuple[str, str]] = frozenset(),
        is_replacement: bool = False,
    ) -> None:
        # Not a bound method of this class: the pickler would be in a reference cycle, with everything it has seen.
        self.out_of_band = _OutOfBand(transfer)
        super().__init__(file, protocol=5, buffer_callback=self.out_of_band.keep_in_band)
        self._transfer = transfer
        self._replaced, self._is_replacement = replaced, is_replacement
        self._reducers: dict[type, _Reduce | None] = {}
        self.lists = Lists(before)
        self.modules: dict[str, None] = {}
        """Modules that a worker imports, in the order in which they were found."""
        self.per_worker_reason = ""
        """Why the payload has to be loaded in each worker, and not in a template process."""
        self.rebuilt: dict[type, None] = {}
        """Types of objects that a worker rebuilds in a way of ours: opened again, mapped again, or fresh."""
        self.last: Any = None
        """The object being pickled. After an error, it is the one that cannot be sent."""

    def dump(self, obj: Any) -> None:
        """Pickle an object."""
        # Queues and shared values of multiprocessing refuse to be pickled unless a process is being spawned.
        context: Any = multiprocessing.context
        before = context.get_spawning_popen()
        context.set_spawning_popen(self._transfer)
        try:
            super().dump(obj)
        finally:
            context.set_spawning_popen(before)

    def persistent_id(self, obj: Any) -> Column | None:
        # Called for every object: the cheapest check comes first. The columns are pickled instead of the list.
        return self.lists.column_of(obj) if type(obj) is list and len(obj) >= LARGE else None

    def reducer_override(self, obj: Any) -> Any:
        # Order: called for every object that is not a number, string or plain container. A dataset may have millions of
        # them, of a few types, and nearly all are left to pickle.
        self.last = obj
        try:
            reduce = self._reducers[type(obj)]
        except KeyError:
            reduce = self._reducers[type(obj)] = self._find(type(obj))
        if reduce is None:
            return NotImplemented
        reduced = reduce(obj)
        if reduced is NotImplemented:
            return self._reduce_code(obj) if issubclass(type(obj), _CODE) else NotImplemented
        self.rebuilt[type(obj)] = None
        if not self.per_worker_reason and reduced[0] in PER_WORKER:
            what = PER_WORKER[reduced[0]]
            self.per_worker_reason = f"the dataset holds {what}, which each worker has to open itself"
        return reduced

    def _find(self, kind: type) -> _Reduce | None:
        """Return a reducer for objects of a type, or None; the reducer may return NotImplemented."""
        if kind.__name__ in ("Tensor", "Parameter") and kind.__module__.partition(".")[0] == "torch":
            self.modules["torch"] = None
        return reducer_of(kind, self._transfer) or (_left_to_cloudpickle if issubclass(kind, _CODE) else None)

    def _reduce_code(self, obj: Any) -> Any:
        if is_original(obj, self._replaced):
            return original, (obj.__module__, obj.__qualname__)
        if self._is_replacement and isinstance(obj, types.FunctionType) and _key(obj) in self._replaced:
            # It has the name of what it replaces (functools.wraps), which in a worker is another function.
            return self._dynamic_function_reduce(obj)
        module = obj.__name__ if isinstance(obj, types.ModuleType) else getattr(obj, "__module__", None)
        self.modules[str(module or obj.__name__)] = None
        reduced = super().reducer_override(obj)
        if isinstance(obj, types.FunctionType) and isinstance(reduced, tuple):
            _add_names_of_classes(obj, reduced)
        return reduced


def _key(function: Any) -> tuple[str, str]:
    return function.__module__, function.__qualname__


def _left_to_cloudpickle(_: Any) -> Any:
    return NotImplemented


def _add_names_of_classes(function: types.FunctionType, reduced: tuple[Any, ...]) -> None:
    """Add the globals that classes defined in a function use in their bodies: cloudpickle omits them."""
    state = reduced[2] if len(reduced) > 2 else None
    known = state[1].get("__globals__") if isinstance(state, tuple) and isinstance(state[1], dict) else None
    if isinstance(known, dict):
        values = function.__globals__
        known.update({name: values[name] for name in _names_in_classes(function.__code__) if name in values})


def _names_in_classes(code: types.CodeType) -> Iterator[str]:
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _names_in_classes(inner)
            if not inner.co_flags & inspect.CO_OPTIMIZED:  # the body of a class
                yield from (i.argval for i in dis.get_instructions(inner) if i.opname == "LOAD_NAME")


def find_patches(by_value: set[str]) -> tuple[frozenset[tuple[str, str]], tuple[Patch, ...]]:
    """Return module and name of what was replaced in this process, and the patches for it that workers apply."""
    found = find_replacements(by_value)
    replaced = frozenset((each.module, each.name) for each in found)
    with registered(by_value):
        return replaced, packed(found, functools.partial(_dump_replacement, replaced=replaced))


def _dump_replacement(value: Any, replaced: AbstractSet[tuple[str, str]]) -> bytes:
    """Return the pickle of a function, class or mock that replaces another one in a worker."""
    transfer, file = HandleTransfer(), io.BytesIO()
    pickler = Pickler(file, transfer, replaced=replaced, is_replacement=True)
    try:
        pickler.dump(value)
        if pickler.out_of_band.raws or pickler.lists.taken or transfer.fds:
            raise NotPicklable("it holds large arrays or handles", path="")
        if isinstance(value, functools._lru_cache_wrapper) and _key(value) in replaced:
            raise NotPicklable("it is a cached function with the name of what it replaces", path="")
    finally:
        transfer.close()
    return file.getvalue()


@contextlib.contextmanager
def registered(by_value: set[str]) -> Iterator[None]:
    """Send functions and classes of these modules by value."""
    # In a process that multiprocessing has spawned, the classes of the script are in this module.
    modules = [sys.modules[name] for name in {*by_value, "__mp_main__"} if name in sys.modules]
    fresh = [m for m in modules if m.__name__ not in cloudpickle.list_registry_pickle_by_value()]
    for module in fresh:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in fresh:
            cloudpickle.unregister_pickle_by_value(module)


# -- what cannot be sent ----------------------------------------------------------------------------------------------

_MAX_DEPTH = 20
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
    if holds is not found.value and not issubclass(type(holds), (*_CODE, types.CodeType)):
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
        pickler.dump(value)
    except Exception as error:  # noqa: BLE001  border: it calls the user's reducers
        return _Failure(error, pickler.last)
    finally:
        transfer.close()
    return None
