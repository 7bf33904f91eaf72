"""The pickler for everything that is sent to a worker; extends cloudpickle.

Large buffers are stored out of band, in shared memory. Objects that belong to one process are handled by the
reducers of this package. Functions and classes of modules that workers cannot import are sent by value.
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
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

import cloudpickle
import numpy as np

from antifreeze.core import NotPicklable
from antifreeze.ipc import Mappings
from antifreeze.payload._process_local import HandleTransfer
from antifreeze.payload._reducers import reducer_of
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
        with spawning(transfer):
            pickler.dump(value)
        if pickler.out_of_band.raws or pickler.lists.taken or transfer.fds:
            raise NotPicklable("it holds large arrays or handles", path="")
        if isinstance(value, functools._lru_cache_wrapper) and _key(value) in replaced:
            raise NotPicklable("it is a cached function with the name of what it replaces", path="")
    finally:
        transfer.close()
    return file.getvalue()


@contextlib.contextmanager
def spawning(transfer: HandleTransfer) -> Iterator[None]:
    """Allow pickling of multiprocessing's queues and shared values, which they refuse unless a process is spawned."""
    context: Any = multiprocessing.context
    before = context.get_spawning_popen()
    context.set_spawning_popen(transfer)
    try:
        yield
    finally:
        context.set_spawning_popen(before)


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
