"""The loaders that a script creates, and what is known about their arguments."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from antifreeze.doctor.check._facts import Facts
from antifreeze.doctor.check._script import (
    AnyFunction,
    Script,
    calls_in,
    in_scope,
    keyword,
    parameters,
    self_attribute,
)
from antifreeze.doctor.check._values import is_none, number, text

_ORDER = (
    "dataset batch_size shuffle sampler batch_sampler num_workers collate_fn pin_memory drop_last timeout "
    "worker_init_fn multiprocessing_context generator"
)
_LOADERS = {"DataLoader", "StreamingDataLoader", "StatefulDataLoader"}
_OTHERS = {"tensorflow", "tf", "spdl", "grain", "jax"}
METHODS = {"fork", "spawn", "forkserver"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Loader:
    """One call of a loader's class."""

    call: ast.Call
    is_ours: bool
    """True if it is one of antifreeze, which never forks the trainer and sends functions by value."""
    arguments: dict[str, ast.expr]
    sometimes: frozenset[str]
    """Arguments that are passed in some runs only."""
    has_hidden_arguments: bool
    """True if there may be arguments that cannot be seen, because of ``**`` of something unknown."""
    workers: int | None
    """None: known only at run time."""
    methods: frozenset[str]
    """The start methods that are possible; empty if nothing is known."""
    classes: frozenset[str]
    """The dataset classes of this file that it reads."""

    @property
    def has_workers(self) -> bool:
        """True if it has workers: a number above 0, or something that the script computes."""
        return bool(self.workers) or (self.workers is None and "num_workers" in self.arguments)

    @property
    def can_fork(self) -> bool:
        """True if its workers can be forks of the trainer."""
        return not self.is_ours and "fork" in self.methods

    @property
    def can_spawn(self) -> bool:
        """True if its workers can be new interpreters: the dataset is pickled, and the script imported."""
        return not self.is_ours and bool(self.methods & {"spawn", "forkserver"})

    @property
    def batches_in_flight(self) -> int:
        """How many batches are in shared memory at once."""
        return (self.workers or 1) * self.constant("prefetch_factor", 2)

    def constant(self, name: str, default: int) -> int:
        """Return an argument that is written as a whole number."""
        value = getattr(self.arguments.get(name), "value", default)
        return value if type(value) is int else default


def is_loader(name: str) -> bool:
    """True if a full name is that of a loader with torch's arguments."""
    return name.rpartition(".")[2] in _LOADERS and name.partition(".")[0] not in _OTHERS


def find_loaders(script: Script, facts: Facts) -> list[Loader]:
    """Return the loaders of a script in their order."""
    default = _default_method(script, facts)
    calls = [call for call in calls_in(ast.walk(script.tree)) if is_loader(script.name(call.func))]
    return [_loader(call, script, facts, default) for call in sorted(calls, key=lambda c: (c.lineno, c.col_offset))]


def _default_method(script: Script, facts: Facts) -> str:
    """Return the default start method; nothing if it is unknown."""
    for call in calls_in(ast.walk(script.tree)):
        if script.name(call.func).endswith("multiprocessing.set_start_method"):
            method = text(keyword(call, "method", 0), script) or ""
            return method if method in METHODS else ""
    return facts.start_method


def _loader(call: ast.Call, script: Script, facts: Facts, default: str) -> Loader:
    given = dict(zip(_ORDER.split(), call.args, strict=False))
    given.update({k.arg: k.value for k in call.keywords if k.arg})
    sometimes: set[str] = set()
    hidden = any(isinstance(argument, ast.Starred) for argument in call.args)
    for argument in call.keywords:
        if argument.arg is None:
            known = _spread(argument.value, script)
            hidden = hidden or known is None
            for name, value, maybe in known or ():
                given[name] = value
                (sometimes.add if maybe else sometimes.discard)(name)
    if "num_workers" in given:
        workers = None if "num_workers" in sometimes else number(given["num_workers"], script, facts)
    else:
        workers = None if hidden else 0
    return Loader(
        call=call,
        is_ours=script.name(call.func).startswith("antifreeze."),
        arguments=given,
        sometimes=frozenset(sometimes),
        has_hidden_arguments=hidden,
        workers=workers,
        methods=_methods(given, sometimes, script, default),
        classes=frozenset(_classes_in(given.get("dataset"), script)),
    )


def _spread(node: ast.expr, script: Script) -> list[tuple[str, ast.expr, bool]] | None:
    """Return what ``**node`` passes, as (name, value, only sometimes); None if it is unknown."""
    if isinstance(node, ast.Name):
        value = script.only_value(node)
        first = _spread(value, script) if value is not None and not isinstance(value, ast.Name) else None
        return None if first is None else first + list(_later(node.id, script))
    if isinstance(node, ast.Dict):
        if not all(isinstance(key, ast.Constant) for key in node.keys):
            return None
        pairs = zip(node.keys, node.values, strict=True)
        return [(str(key.value), value, False) for key, value in pairs if isinstance(key, ast.Constant)]
    if isinstance(node, ast.Call) and script.name(node.func) == "dict" and not node.args:
        return [(k.arg, k.value, False) for k in node.keywords if k.arg]
    return None


def _later(name: str, script: Script) -> Iterator[tuple[str, ast.expr, bool]]:
    """Yield what is put into a dict of arguments by ``name["key"] = value``."""
    for node in ast.walk(script.tree):
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Subscript):
            continue
        target = node.targets[0]
        if isinstance(target.value, ast.Name) and target.value.id == name and isinstance(target.slice, ast.Constant):
            yield str(target.slice.value), node.value, any(isinstance(n, ast.If) for n in script.above(node))


def _methods(given: dict[str, ast.expr], sometimes: set[str], script: Script, default: str) -> frozenset[str]:
    node = given.get("multiprocessing_context")
    usual = {default} - {""}
    if node is None or is_none(node):
        return frozenset(usual)
    node = script.only_value(node) or node
    if isinstance(node, ast.Call) and script.name(node.func).endswith("get_context"):
        node = keyword(node, "method", 0) or node
    chosen = {text(node, script) or ""} & METHODS
    return frozenset(usual | chosen if "multiprocessing_context" in sometimes else chosen)


def _classes_in(node: ast.AST | None, script: Script) -> set[str]:
    """Return the classes of this file that an expression is made of, through variables, functions and wrappers."""
    found: set[str] = set()
    todo, seen = [node] if node is not None else [], {""}
    while todo:
        for part in ast.walk(todo.pop()):
            name = part.id if isinstance(part, ast.Name) else ast.unparse(part) if self_attribute(part) else ""
            if name not in seen:
                seen.add(name)
                found |= {name} & script.classes.keys()
                todo += _origins(part, script)
    return found


def _origins(node: ast.AST, script: Script) -> Iterator[ast.expr]:
    """Yield what a variable, an attribute or a parameter is assigned, and what a function returns."""
    if attribute := self_attribute(node):
        held = [by_function for (_, name), by_function in script.attributes.items() if name == attribute]
        yield from (b.value for by_function in held for found in by_function.values() for b in found)
    elif isinstance(node, ast.Name):
        yield from script.values.get(node.id, [])
        if node.id in script.functions:
            returns = (n for n in in_scope(script.functions[node.id]) if isinstance(n, ast.Return))
            yield from (n.value for n in returns if n.value is not None)
        for function in script.above(node):
            if isinstance(function, AnyFunction) and node.id in parameters(function):
                yield from script.arguments(function, node.id)
