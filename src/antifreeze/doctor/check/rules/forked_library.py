"""``forked-library``: a library whose threads run in the trainer is used in forked workers, which lack the threads.

Which code runs in workers and which in the trainer is worked out from the script; some code runs in both.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from antifreeze.doctor.check._loaders import Loader
from antifreeze.doctor.check._origins import Kind, NameUse, Origins, origins_of
from antifreeze.doctor.check._rule import Rule, ScriptContext, Violation, Weight
from antifreeze.doctor.check._script import Function, Script, calls_in, in_scope

_SPAWN = '+ DataLoader(..., multiprocessing_context="spawn")\nor, never forked: from antifreeze import DataLoader'
_CALLED = ("__call__", "forward", "__getitem__", "__getitems__", "__iter__", "__next__")
_GIVEN = ("dataset", "collate_fn", "worker_init_fn")
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


@dataclass(frozen=True, slots=True)
class InTrainer:
    """A use of a library in the trainer, and the node there that leads to it."""

    use: NameUse
    by: ast.AST


@dataclass(slots=True)
class CodePlacement:
    """Which code of a script runs where, as far as it uses libraries."""

    context: ScriptContext
    origins: Origins
    _workers: dict[int, list[ast.AST]] = field(default_factory=dict)
    """The functions that run in the workers of a loader, by the id of its call."""
    _trainer: list[InTrainer] | None = None

    def in_workers_of(self, loader: Loader) -> Iterator[NameUse]:
        """Yield the uses of libraries in the workers of a loader."""
        return self.origins.uses(node for function in self._functions(loader) for node in ast.walk(function))

    def in_trainer(self, loader: Loader) -> Iterator[NameUse]:
        """Yield the uses of libraries in the trainer, except those after the loader's last loop."""
        if self._trainer is None:
            self._trainer = list(self._all_in_trainer())
        home, last = self.context.script.function_of(loader.call), self._last_line(loader)
        for found in self._trainer:
            after = getattr(found.by, "lineno", 0) > last and self.context.script.function_of(found.by) is home
            if not after:
                yield found.use

    def _all_in_trainer(self) -> Iterator[InTrainer]:
        elsewhere = {id(n) for loader in self.context.loaders for f in self._functions(loader) for n in ast.walk(f)}
        elsewhere |= {id(n) for d in self.context.datasets for f in d.per_sample for n in ast.walk(f)}
        elsewhere -= {id(n) for d in self.context.datasets for f in d.setup for n in ast.walk(f)}
        nodes = [node for node in ast.walk(self.context.script.tree) if id(node) not in elsewhere]
        yield from (InTrainer(use, use.node) for use in self.origins.uses(nodes))
        roots = [(call, f) for call in calls_in(iter(nodes)) for f in self.origins.called(call)]
        known: dict[int, list[NameUse]] = {}
        for by, function in (*roots, *self._run_here(nodes)):
            if id(function) not in known:
                reached = (n for f in self._reached([function]) for n in ast.walk(f) if id(n) in elsewhere)
                known[id(function)] = list(self.origins.uses(reached))
            yield from (InTrainer(use, by) for use in known[id(function)])

    def _last_line(self, loader: Loader) -> float:
        """Return where the last loop ends that follows the loader in its function: no worker starts after it."""
        home = self.context.script.function_of(loader.call)
        if any(isinstance(n, _LOOPS) for n in self.context.script.above(loader.call)):
            return math.inf
        loops = (n for n in in_scope(home) if isinstance(n, _LOOPS) and n.lineno >= loader.call.lineno)
        return max((loop.end_lineno or math.inf for loop in loops), default=math.inf)

    def _functions(self, loader: Loader) -> list[ast.AST]:
        key = id(loader.call)
        if key not in self._workers:
            first: list[ast.AST] = [f for d in self.context.datasets if loader in d.loaders for f in d.per_sample]
            if loader.has_workers:
                first += [f for name in _GIVEN for f in self._callables(loader.arguments.get(name))]
            self._workers[key] = self._reached(first) if loader.has_workers else []
        return self._workers[key]

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
                    yield from self.origins.methods(self._owners(node.value), node.attr)
                elif isinstance(node, ast.Name) and node.id not in seen:
                    seen.add(node.id)
                    if id(node) not in called and node.id in self.context.script.functions:
                        yield self.context.script.functions[node.id]
                    todo += self.context.script.values.get(node.id, [])
                    for name in _CALLED:
                        yield from self.origins.methods(self._owners(node), name)

    def _owners(self, node: ast.expr) -> frozenset[Kind]:
        """Return what an expression can be, or the class that it names, as in ``Texts.collate`` and ``Texts(...)``."""
        named = self.context.script.classes.get(node.id) if isinstance(node, ast.Name) else None
        return self.origins.kinds(node) | ({named} if named is not None else set())

    def _reached(self, first: Iterable[ast.AST]) -> list[ast.AST]:
        """Return functions, and the functions of this file that they lead to."""
        found: list[ast.AST] = []
        todo = list(first)
        while todo:
            function = todo.pop()
            if function not in found:
                found.append(function)
                todo += [f for call in calls_in(ast.walk(function)) for f in self.origins.called(call)]
                todo += [f for node in ast.walk(function) for f in self._passed_on(node)]
        return found

    def _passed_on(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield what ``self.transform(x)`` calls, if a function was assigned to it, and the getter of a property."""
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            for method in self.origins.methods(self.origins.kinds(node.value), node.attr):
                if method.decorator_list:
                    yield method

    def _run_here(self, nodes: list[ast.AST]) -> Iterator[tuple[ast.AST, Function]]:
        """Yield what the trainer runs by ``dataset[0]``, by iterating over a dataset, or without workers."""
        for node in nodes:
            read = node.value if isinstance(node, ast.Subscript) else getattr(node, "iter", None)
            if (
                isinstance(node, ast.Call)
                and self.context.script.name(node.func) in ("iter", "next", "list")
                and node.args
            ):
                read = node.args[0]
            kinds = self.origins.kinds(read) if isinstance(read, ast.expr) else frozenset()
            yield from ((node, f) for d in self.context.datasets if d.node in kinds for f in d.per_sample)
        for loader in self.context.loaders:
            chosen = any(isinstance(n, ast.If | ast.IfExp) for n in self.context.script.above(loader.call))
            if loader.workers == 0 and not chosen:
                yield from (
                    (loader.call, f) for d in self.context.datasets if loader in d.loaders for f in d.per_sample
                )


def check(context: ScriptContext) -> Iterator[Violation]:
    """Find libraries that are used in the trainer and in forked workers: their threads exist only in the trainer."""
    placement = CodePlacement(context, origins_of(context.script))
    for loader in context.forking_loaders:
        in_workers = {use.library for use in placement.in_workers_of(loader)}
        if _reads_by_polars(context.script, loader):
            in_workers.add("Polars")
        in_trainer = [use for use in placement.in_trainer(loader) if use.library in in_workers]
        if in_trainer:
            use = min(in_trainer, key=lambda use: use.node.lineno)
            problem = f"{use.library} is used in the trainer (line {use.node.lineno}) and in these forked workers."
            yield Violation(loader.call, problem, _SPAWN)


def _reads_by_polars(script: Script, loader: Loader) -> bool:
    """True for a loader of litData over Parquet, which decodes with Polars in its workers."""
    is_litdata = script.name(loader.call.func).startswith("litdata.")
    return is_litdata and any(script.name(c.func).endswith(".ParquetLoader") for c in calls_in(ast.walk(script.tree)))


RULE = Rule(
    code="forked-library",
    weight=Weight.FREEZE,
    section="fork",
    explanation="Its threads exist only in the trainer: the first call in a worker that needs them hangs or fails.",
    check=check,
)
