"""The one pickler for what goes to a worker, with all that it adds to cloudpickle.

Large buffers are put beside the pickle, in shared memory. Objects that belong to one process are taken apart by the
reducers of ``antifreeze.worker``. Functions and classes of modules that workers cannot import travel by value.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import inspect
import io
import itertools
import mmap
import multiprocessing.context
import operator
import pickle
import sys
import types
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from typing import Any

import cloudpickle
import numpy as np

from antifreeze.core import NotPicklable
from antifreeze.ipc import Mappings, is_tensor, reduce_memmap, reduce_mmap, reduce_tensor
from antifreeze.payload._patches import original
from antifreeze.payload._process_local import HandleTransfer
from antifreeze.payload._reopen import PER_WORKER
from antifreeze.payload._replacements import is_original
from antifreeze.payload._shared_list import LARGE, SentList, buffers_of, encode, with_buffers

_SMALL = 1 << 12
_CODE = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)
_Reduce = Callable[[Any], Any]


class _Beside:
    """Buffers that stand beside a pickle."""

    def __init__(self, transfer: HandleTransfer) -> None:
        self.mappings = Mappings(transfer.duplicate_for_child)
        self.raws: list[Any] = []

    def leave_inside(self, buffer: pickle.PickleBuffer) -> bool:
        """Take a buffer, unless it is small and nobody else writes to it."""
        raw = buffer.raw()
        if raw.nbytes < _SMALL and not self.mappings.any_shared:  # of these, a dataset may have millions
            return True
        memory = np.frombuffer(raw, np.uint8)
        if raw.nbytes < _SMALL and not self.mappings.is_shared(memory):
            return True
        self.raws.append(memory)
        return False


class Lists:
    """Large lists that travel as columns, beside the pickle."""

    def __init__(self, before: list[list[Any]], columns: list[SentList], raws: list[list[Any]]) -> None:
        self._numbers: dict[int, int | None] = {}
        self._held: list[list[Any]] = []
        self.sent: list[SentList] = []
        self.raws: list[list[Any]] = []
        self.snapshots: list[list[Any]] = []
        self._before = list(zip(before, columns, raws, strict=True))

    def number_of(self, items: list[Any]) -> int | None:
        """Return the number of a list that travels as columns; None if it has to be pickled."""
        if id(items) not in self._numbers:
            self._held.append(items)  # so that no other one gets its id
            self._numbers[id(items)] = self._take(items)
        return self._numbers[id(items)]

    def _take(self, items: list[Any]) -> int | None:
        number = len(self.sent)
        if number < len(self._before):
            before, sent, raws = self._before[number]
            if len(before) == len(items) and all(map(operator.is_, before, items)):
                self._add(before, sent, raws)
                return number
        column = encode(items)
        if column is None:
            return None
        self._add(list(items), SentList(with_buffers(column, itertools.repeat(None)), len(items)), buffers_of(column))
        return number

    def _add(self, snapshot: list[Any], sent: SentList, raws: list[Any]) -> None:
        self.snapshots.append(snapshot)
        self.sent.append(sent)
        self.raws.append(raws)


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
    """Takes apart whatever a dataset may hold.

    Args:
        file: Where the pickle is written to.
        handing: Takes descriptors that come along.
        lists: Takes large lists.
        replaced: Where something stands in place of what was imported, by module and name.
        is_replacement: Whether what is taken apart is to take such a place in a worker.
    """

    def __init__(
        self,
        file: Any,
        transfer: HandleTransfer,
        lists: Lists | None = None,
        *,
        replaced: AbstractSet[tuple[str, str]] = frozenset(),
        is_replacement: bool = False,
    ) -> None:
        # Not a method of its own: the pickler would be in a cycle, and with it all that it has seen.
        self.beside = _Beside(transfer)
        super().__init__(file, protocol=5, buffer_callback=self.beside.leave_inside)
        self._transfer = transfer
        self._replaced, self._is_replacement = replaced, is_replacement
        self._reducers: dict[type, _Reduce | None] = {}
        self.lists = lists or Lists([], [], [])
        self.modules: dict[str, None] = {}
        """Those that a worker imports, in the order in which they were found."""
        self.per_worker_reason = ""
        """Why the payload has to be loaded in each worker, and not in a process that workers are forked from."""
        self.last: Any = None
        """What was taken apart last. If that fails, it is what cannot be sent."""

    def persistent_id(self, obj: Any) -> int | None:
        # Asked for every object there is: nothing else may come first.
        return self.lists.number_of(obj) if type(obj) is list and len(obj) >= LARGE else None

    def reducer_override(self, obj: Any) -> Any:
        # Order: called for every object that is no number, text or plain container. A dataset may have millions of
        # them, of a few kinds, and nearly all are left to pickle.
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
        if not self.per_worker_reason and reduced[0] in PER_WORKER:
            what = PER_WORKER[reduced[0]]
            self.per_worker_reason = f"the dataset holds {what}, which each worker has to open for itself"
        return reduced

    def _find(self, kind: type) -> _Reduce | None:
        """Return what takes apart objects of a kind, if pickle does not; it may turn out to know better."""
        if kind.__name__ in ("Tensor", "Parameter") and kind.__module__.partition(".")[0] == "torch":
            self.modules["torch"] = None
            return lambda obj: reduce_tensor(obj) if is_tensor(obj) else NotImplemented
        if kind is np.memmap:
            return lambda obj: reduce_memmap(obj) if obj.size and not obj.dtype.hasobject else NotImplemented
        if issubclass(kind, mmap.mmap):
            return lambda obj: reduce_mmap(obj) or NotImplemented
        return self._transfer.reducer(kind) or (_left_to_cloudpickle if issubclass(kind, _CODE) else None)

    def _reduce_code(self, obj: Any) -> Any:
        if is_original(obj, self._replaced):
            return original, (obj.__module__, obj.__qualname__)
        if self._is_replacement and isinstance(obj, types.FunctionType) and _place(obj) in self._replaced:
            # It has taken the name of what it replaces (functools.wraps): in a worker that is another function.
            return self._dynamic_function_reduce(obj)
        module = obj.__name__ if isinstance(obj, types.ModuleType) else getattr(obj, "__module__", None)
        self.modules[str(module or obj.__name__)] = None
        reduced = super().reducer_override(obj)
        if isinstance(obj, types.FunctionType) and isinstance(reduced, tuple):
            _add_names_of_classes(obj, reduced)
        return reduced


def _place(function: Any) -> tuple[str, str]:
    return function.__module__, function.__qualname__


def _left_to_cloudpickle(_: Any) -> Any:
    return NotImplemented


def _add_names_of_classes(function: types.FunctionType, reduced: tuple[Any, ...]) -> None:
    """Have a function bring along what classes that it defines look up in their bodies: cloudpickle leaves it out."""
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


def dump_replacement(value: Any, replaced: AbstractSet[tuple[str, str]]) -> bytes:
    """Return the pickle of a function, class or mock that is to take the place of another in a worker."""
    transfer, file = HandleTransfer(), io.BytesIO()
    pickler = Pickler(file, transfer, replaced=replaced, is_replacement=True)
    try:
        with spawning(transfer):
            pickler.dump(value)
        if pickler.beside.raws or pickler.lists.raws or transfer.fds:
            raise NotPicklable("it holds large arrays or handles", path="")
        if isinstance(value, functools._lru_cache_wrapper) and _place(value) in replaced:
            raise NotPicklable("its cache has taken the name of what it replaces", path="")
    finally:
        transfer.close()
    return file.getvalue()


@contextlib.contextmanager
def spawning(transfer: HandleTransfer) -> Iterator[None]:
    """Let queues and shared values of multiprocessing be taken apart: they refuse unless a process is being started."""
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
    # In a process that multiprocessing has spawned, the script's own classes are of this module.
    modules = [sys.modules[name] for name in {*by_value, "__mp_main__"} if name in sys.modules]
    fresh = [m for m in modules if m.__name__ not in cloudpickle.list_registry_pickle_by_value()]
    for module in fresh:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in fresh:
            cloudpickle.unregister_pickle_by_value(module)
