"""``forked-library``: a library whose threads run in the trainer is used in forked workers, which lack the threads.

Which code runs in workers and which in the trainer is worked out from the script; some code runs in both.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable, Iterator

from antifreeze.doctor.check._loaders import Loader
from antifreeze.doctor.check._origins import Kind, NameUse, Origins
from antifreeze.doctor.check._rule import ScriptContext, Violation, Weight, rule
from antifreeze.doctor.check._script import Function, calls_in, in_scope

_SPAWN = '+ DataLoader(..., multiprocessing_context="spawn")\nor, never forked: from antifreeze import DataLoader'
_CALLED = ("__call__", "forward", "__getitem__", "__getitems__", "__iter__", "__next__")
_GIVEN = ("dataset", "collate_fn", "worker_init_fn")
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


class CodePlacement:
    """Which code of a script runs where, as far as it uses libraries."""

    def __init__(self, context: ScriptContext) -> None:
        self._context = context
        self._script = context.script
        self._origins = Origins(context.script)
        self._workers = {id(x.call): self._reached(self._given(x)) for x in context.loaders if x.has_workers}
        """The functions that run in the workers of a loader, by the id of its call."""
        self._trainer = list(self._all_in_trainer())

    def in_workers_of(self, loader: Loader) -> Iterator[NameUse]:
        """Yield the uses of libraries in the workers of a loader."""
        return self._origins.uses(node for function in self._workers[id(loader.call)] for node in ast.walk(function))

    def in_trainer(self, loader: Loader) -> Iterator[NameUse]:
        """Yield the uses of libraries in the trainer, except those after the loader's last loop."""
        home, last = self._script.function_of(loader.call), self._last_line(loader)
        for use, by in self._trainer:
            if getattr(by, "lineno", 0) <= last or self._script.function_of(by) is not home:
                yield use

    def _all_in_trainer(self) -> Iterator[tuple[NameUse, ast.AST]]:
        """Yield each use of a library in the trainer with the node there that leads to it."""
        datasets = self._context.datasets
        elsewhere = {id(n) for functions in self._workers.values() for f in functions for n in ast.walk(f)}
        elsewhere |= {id(n) for d in datasets for f in d.per_sample for n in ast.walk(f)}
        elsewhere -= {id(n) for d in datasets for f in d.setup for n in ast.walk(f)}
        nodes = [node for node in ast.walk(self._script.tree) if id(node) not in elsewhere]
        yield from ((use, use.node) for use in self._origins.uses(nodes))
        roots = [(call, f) for call in calls_in(iter(nodes)) for f in self._origins.called(call)]
        known: dict[int, list[NameUse]] = {}
        for by, function in (*roots, *self._run_here(nodes)):
            if id(function) not in known:
                reached = (n for f in self._reached([function]) for n in ast.walk(f) if id(n) in elsewhere)
                known[id(function)] = list(self._origins.uses(reached))
            yield from ((use, by) for use in known[id(function)])

    def _last_line(self, loader: Loader) -> float:
        """Return where the last loop ends that follows the loader in its function: no worker starts after it."""
        home = self._script.function_of(loader.call)
        if any(isinstance(n, _LOOPS) for n in self._script.above(loader.call)):
            return math.inf
        loops = (n for n in in_scope(home) if isinstance(n, _LOOPS) and n.lineno >= loader.call.lineno)
        return max((loop.end_lineno or math.inf for loop in loops), default=math.inf)

    def _given(self, loader: Loader) -> Iterator[ast.AST]:
        yield from (f for dataset in self._context.datasets_of(loader) for f in dataset.per_sample)
        yield from (f for name in _GIVEN for f in self._callables(loader.arguments.get(name)))

    def _callables(self, given: ast.expr | None) -> Iterator[ast.AST]:
        """Yield the functions, and the methods of objects, that an argument hands over, through variables."""
        todo, seen = [given] if given is not None else [], {""}
        while todo:
            expression = todo.pop()
            called = {id(call.func) for call in calls_in(ast.walk(expression))}
            for node in ast.walk(expression):
                if isinstance(node, ast.Lambda):
                    yield node
                elif isinstance(node, ast.Attribute) and id(node) not in called:
                    yield from self._origins.methods(self._owners(node.value), node.attr)
                elif isinstance(node, ast.Name) and node.id not in seen:
                    seen.add(node.id)
                    if id(node) not in called and node.id in self._script.functions:
                        yield self._script.functions[node.id]
                    todo += self._script.values.get(node.id, [])
                    for name in _CALLED:
                        yield from self._origins.methods(self._owners(node), name)

    def _owners(self, node: ast.expr) -> frozenset[Kind]:
        """Return what an expression can be, or the class that it names, as in ``Texts.collate`` and ``Texts(...)``."""
        named = self._script.classes.get(node.id) if isinstance(node, ast.Name) else None
        return self._origins.kinds(node) | ({named} if named is not None else set())

    def _reached(self, first: Iterable[ast.AST]) -> list[ast.AST]:
        """Return functions, and the functions of this file that they lead to."""
        found: list[ast.AST] = []
        todo = list(first)
        while todo:
            function = todo.pop()
            if function not in found:
                found.append(function)
                todo += [f for call in calls_in(ast.walk(function)) for f in self._origins.called(call)]
                todo += [f for node in ast.walk(function) for f in self._getters(node)]
        return found

    def _getters(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the functions of a property that is read."""
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            methods = self._origins.methods(self._origins.kinds(node.value), node.attr)
            yield from (method for method in methods if method.decorator_list)

    def _run_here(self, nodes: list[ast.AST]) -> Iterator[tuple[ast.AST, Function]]:
        """Yield what the trainer runs by ``dataset[0]``, by iterating over a dataset, or without workers."""
        for node in nodes:
            read = node.value if isinstance(node, ast.Subscript) else getattr(node, "iter", None)
            if isinstance(node, ast.Call) and self._script.name(node.func) in ("iter", "next", "list") and node.args:
                read = node.args[0]
            kinds = self._origins.kinds(read) if isinstance(read, ast.expr) else frozenset()
            yield from ((node, f) for d in self._context.datasets if d.node in kinds for f in d.per_sample)
        for loader in self._context.loaders:
            chosen = any(isinstance(n, ast.If | ast.IfExp) for n in self._script.above(loader.call))
            if loader.workers == 0 and not chosen:
                yield from ((loader.call, f) for d in self._context.datasets_of(loader) for f in d.per_sample)


@rule(
    "forked-library",
    Weight.FREEZE,
    "Its threads exist only in the trainer: the first call in a worker that needs them hangs or fails.",
    section="fork",
)
def forked_library(context: ScriptContext) -> Iterator[Violation]:
    """Find libraries that are used in the trainer and in forked workers: their threads exist only in the trainer."""
    if not any(context.forking_loaders):
        return
    script = context.script
    placement = CodePlacement(context)
    # Over Parquet, loaders of litData decode with Polars in their workers.
    by_polars = any(script.name(call.func).endswith(".ParquetLoader") for call in calls_in(ast.walk(script.tree)))
    for loader in context.forking_loaders:
        in_workers = {use.library for use in placement.in_workers_of(loader)}
        if by_polars and script.name(loader.call.func).startswith("litdata."):
            in_workers.add("Polars")
        in_trainer = [use for use in placement.in_trainer(loader) if use.library in in_workers]
        if in_trainer:
            use = min(in_trainer, key=lambda use: use.node.lineno)
            problem = f"{use.library} is used in the trainer (line {use.node.lineno}) and in these forked workers."
            yield Violation(loader.call, problem, _SPAWN)
