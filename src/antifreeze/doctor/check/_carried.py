"""Rules about what a dataset carries from the trainer into its workers."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from antifreeze.doctor.check._datasets import DatasetClass
from antifreeze.doctor.check._finding import CheckFinding, Code
from antifreeze.doctor.check._handles import OpenedHandle, handle_of
from antifreeze.doctor.check._loaders import Loader
from antifreeze.doctor.check._names import self_attribute, self_name, targets_of
from antifreeze.doctor.check._script import Function, Script, code_line, in_scope
from antifreeze.doctor.check._values import is_none

_GENERATORS = {"numpy.random.default_rng", "numpy.random.RandomState", "random.Random", "torch.Generator"}
_GLOBAL_CODES = {Code.SHARED_FILE, Code.SHARED_CONNECTION, Code.SHARED_THREAD}


def carried_handles(script: Script, dataset: DatasetClass) -> Iterator[CheckFinding]:
    """Find what is opened in ``__init__`` and used for each sample."""
    if dataset.never_in_workers:
        return
    for name, (value, function) in set_up(dataset).items():
        if not dataset.uses(name) or dataset.sets_later(name) or _set_at_start(name, dataset, script):
            continue
        handle = handle_of(value, script, function) or _own_generator(value, dataset)
        if handle is None or (dataset.only_ours and handle.code in (Code.SHARED_LOCK, Code.SHARED_THREAD)):
            continue
        what = f"{self_name(function)}.{name}"
        yield script.finding(handle.code, handle.node, _reason(what, handle), _change(what, value, handle))


def set_up(dataset: DatasetClass) -> dict[str, tuple[ast.expr, Function]]:
    """Return the last value that ``__init__``, or what it calls, gives to each attribute."""
    found: dict[str, tuple[ast.expr, Function]] = {}
    for function in reversed(dataset.setup):  # what __init__ itself does counts most
        for node in ast.walk(function):
            for target, value in targets_of(node):
                if name := self_attribute(target):
                    found[name] = (value, function)
            for target in node.targets if isinstance(node, ast.Delete) else []:
                found.pop(self_attribute(target), None)
    return {name: pair for name, pair in found.items() if not is_none(pair[0])}


def _own_generator(value: ast.expr, dataset: DatasetClass) -> OpenedHandle | None:
    """Return the handle of ``self.rows = self.read_rows()`` where that is a generator of the class."""
    method = dataset.methods.get(self_attribute(value.func)) if isinstance(value, ast.Call) else None
    if method is None or not any(isinstance(node, ast.Yield | ast.YieldFrom) for node in in_scope(method)):
        return None
    return OpenedHandle(code=Code.SHARED_ITERATOR, made_by=f"the generator {method.name}()", node=value)


def _set_at_start(attribute: str, dataset: DatasetClass, script: Script) -> bool:
    """Whether each worker sets the attribute in ``worker_init_fn``, or in any function that is given a dataset."""
    if not any("worker_init_fn" in loader.arguments for loader in dataset.loaders) and dataset.loaders:
        return False
    mine = {id(node) for node in ast.walk(dataset.node)}
    pairs = (pair for node in ast.walk(script.tree) if id(node) not in mine for pair in targets_of(node))
    return any(isinstance(target, ast.Attribute) and target.attr == attribute for target, _ in pairs)


def _reason(what: str, handle: OpenedHandle) -> str:
    made = f"{what} is made by {handle.made_by} in the trainer and used for each sample in the workers."
    if handle.code is Code.SHARED_FILE:
        if handle.made_by == "lmdb.open":
            return f"{made} LMDB forbids an environment that was opened before a fork, and it cannot be pickled."
        if handle.made_by == "h5py.File":
            return f"{made} It cannot be pickled (spawn, forkserver), and forked workers share its open files."
        return f"{made} Forked workers share its position and read what another one has asked for."
    if handle.code is Code.SHARED_CONNECTION:
        return f"{made} Once it is connected, workers talk over the same connection and read each other's answers."
    if handle.code is Code.SHARED_THREAD:
        return (
            f"{made} A fork copies no threads: work that is given to it is never done, and the loader waits for ever."
        )
    if handle.code is Code.SHARED_ITERATOR:
        return f"{made} It cannot be pickled, and forked workers all begin at the same place."
    if handle.between_processes:
        return (
            f"{made} Nobody frees it when the worker that holds it is killed, and all others wait for ever. Reading "
            "needs no lock: each worker is a process and opens files of its own."
        )
    return (
        f"{made} If any thread holds it when workers are forked, it is never free again; it cannot be pickled either."
    )


def _change(what: str, value: ast.expr, handle: OpenedHandle) -> str:
    if handle.code is Code.SHARED_LOCK:
        return f"- {what} = {code_line(value)}\n- with {what}:\n(leave the lock out)"
    opened = f"{handle.made_by}(...)" if handle.made_by.replace(".", "").isidentifier() else "..."
    lazy = f"- {what} = {code_line(value)}\n+ {what} = None\n"
    first = "and where a sample is made:\n"
    return f"{lazy}{first}+ if {what} is None:  # once in each worker\n+     {what} = {opened}"


def carried_globals(script: Script, dataset: DatasetClass) -> Iterator[CheckFinding]:
    """Find files, connections and pools of the module that forked workers use."""
    if not any(loader.has_workers and loader.forks for loader in dataset.loaders):
        return
    used = {node.id for f in dataset.per_sample for node in ast.walk(f) if isinstance(node, ast.Name)}
    for node in in_scope(script.tree):
        for target, value in targets_of(node):
            handle = handle_of(value, script, None) if isinstance(target, ast.Name) and target.id in used else None
            if handle is not None and handle.code in _GLOBAL_CODES and isinstance(target, ast.Name):
                change = f"make {target.id} when a worker first needs it, not when the script starts"
                yield script.finding(handle.code, handle.node, _reason(target.id, handle), change)


def same_random(script: Script, dataset: DatasetClass) -> Iterator[CheckFinding]:
    """Find a random generator that every worker gets the same copy of.

    torch seeds ``random``, ``numpy.random`` (since 1.9) and itself differently in each worker, so these need nothing.
    """
    if dataset.iterable or dataset.never_in_workers or (dataset.loaders and not dataset.in_workers):
        return
    for name, (value, function) in set_up(dataset).items():
        if not isinstance(value, ast.Call) or script.name(value.func) not in _GENERATORS or not dataset.uses(name):
            continue
        if dataset.sets_later(name) or _set_at_start(name, dataset, script) or _asks_worker(dataset, script):
            continue
        what = f"{self_name(function)}.{name}"
        reason = f"{what} is made in __init__, so every worker draws the same numbers from a copy of it."
        change = f"in __getitem__, in place of {what}:\n+ rng = np.random.default_rng((seed, index))"
        yield script.finding(Code.SAME_RANDOM, value, reason, change)


def _asks_worker(dataset: DatasetClass, script: Script) -> bool:
    nodes = (node for function in dataset.per_sample for node in ast.walk(function))
    return any(script.name(node).endswith("get_worker_info") for node in nodes)


def not_picklable(script: Script, dataset: DatasetClass) -> Iterator[CheckFinding]:
    """Find functions that a dataset holds and that new interpreters cannot be sent."""
    if (
        not any(loader.has_workers and loader.pickles for loader in dataset.loaders)
        or "__getstate__" in dataset.methods
    ):
        return
    for name, (value, function) in set_up(dataset).items():
        if isinstance(value, ast.Lambda):
            reason = f"{self_name(function)}.{name} is a lambda, which cannot be sent to a worker that is not forked."
            yield script.finding(Code.NOT_PICKLABLE, value, reason, "make it a function at module level, or a method")


def passed_functions(script: Script, loader: Loader) -> Iterator[CheckFinding]:
    """Find lambdas and inner functions among the arguments of a loader whose workers are new interpreters."""
    if not (loader.has_workers and loader.pickles):
        return
    inner = {
        n.name: n for n in ast.walk(script.tree) if isinstance(n, ast.FunctionDef | ast.ClassDef) and script.is_local(n)
    }
    inner = {name: node for name, node in inner.items() if name not in script.functions}
    for argument in ("collate_fn", "worker_init_fn", "dataset"):
        given = loader.arguments.get(argument)
        for node in ast.walk(given) if given is not None else ():
            local = isinstance(node, ast.Name) and node.id in inner
            if local or isinstance(node, ast.Lambda):
                what = (
                    f"{node.id}, which is defined inside a function,"
                    if isinstance(node, ast.Name)
                    else "a lambda, which"
                )
                reason = f"{argument} is or holds {what} cannot be pickled, and these workers are not forked."
                yield script.finding(Code.NOT_PICKLABLE, node, reason, "define it at module level, with a name")
