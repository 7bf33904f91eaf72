"""The loaders that a script creates, and the dataset classes that they read.

Of a loader, its arguments are known; of a dataset, what runs once in the trainer, and what runs for each sample in a
worker.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from antifreeze.doctor.check._facts import Facts
from antifreeze.doctor.check._script import (
    AnyFunction,
    Function,
    Script,
    calls_in,
    in_scope,
    is_none,
    keyword,
    number,
    parameters,
    self_attribute,
    targets_of,
    text,
)

_ORDER = (
    "dataset batch_size shuffle sampler batch_sampler num_workers collate_fn pin_memory drop_last timeout "
    "worker_init_fn multiprocessing_context generator"
)
_LOADERS = {"DataLoader", "StreamingDataLoader", "StatefulDataLoader"}
_OTHERS = {"tensorflow", "tf", "spdl", "grain", "jax"}
METHODS = {"fork", "spawn", "forkserver"}
_PER_SAMPLE = ("__getitem__", "__getitems__", "__iter__", "__next__")
_ITERABLE = {"IterableDataset", "IterDataPipe"}
_BASES = re.compile(r"(Dataset|DataPipe|ImageFolder|DatasetFolder)$")
_LIKELY = re.compile(r"(dataset|data|ds)$", re.IGNORECASE)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetClass:
    """One class, together with what it inherits from other classes of the same file."""

    node: ast.ClassDef
    is_iterable: bool
    methods: dict[str, Function]
    setup: tuple[Function, ...]
    """``__init__`` and what it calls: it runs in the trainer."""
    per_sample: tuple[Function, ...]
    """``__getitem__``, ``__iter__`` and what they call: it runs in workers."""
    loaders: tuple[Loader, ...]
    """The loaders of this file that read it. Empty: its loaders are unknown."""

    @property
    def can_be_in_workers(self) -> bool:
        """True if some loader of it has workers, or may have because it is not in this file."""
        return not self.loaders or any(loader.has_workers for loader in self.loaders)

    def is_used_per_sample(self, attribute: str) -> bool:
        """True if code that runs for each sample reads ``self.attribute``."""
        nodes = (node for function in self.per_sample for node in ast.walk(function))
        read = (node for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load))
        return any(self_attribute(node) == attribute for node in read)

    def initial_values(self) -> dict[str, tuple[ast.expr, Function]]:
        """Return the last value that ``__init__``, or what it calls, assigns to each attribute, with the function."""
        found: dict[str, tuple[ast.expr, Function]] = {}
        for function in reversed(self.setup):  # what __init__ itself does counts most
            for node in ast.walk(function):
                for target, value in targets_of(node):
                    if name := self_attribute(target):
                        found[name] = (value, function)
                for target in node.targets if isinstance(node, ast.Delete) else []:
                    found.pop(self_attribute(target), None)
        return {name: pair for name, pair in found.items() if not is_none(pair[0])}

    def is_set_in_worker(self, attribute: str, script: Script) -> bool:
        """True if each worker sets ``self.attribute`` itself, so that the trainer's value does not matter."""
        own = {id(function) for function in self.setup}
        later = (function for function in self.per_sample if id(function) not in own)
        if any(self_attribute(t) == attribute for f in later for n in ast.walk(f) for t, _ in targets_of(n)):
            return True
        if self.loaders and not any("worker_init_fn" in loader.arguments for loader in self.loaders):
            return False
        # worker_init_fn, or any other function that is given a dataset
        mine = {id(node) for node in ast.walk(self.node)}
        pairs = (pair for node in ast.walk(script.tree) if id(node) not in mine for pair in targets_of(node))
        return any(isinstance(target, ast.Attribute) and target.attr == attribute for target, _ in pairs)


def find_datasets(script: Script, loaders: list[Loader]) -> list[DatasetClass]:
    """Return the dataset classes of a script in their order."""
    loaded = {name for loader in loaders for name in loader.classes}
    found = [node for node in script.classes.values() if _is_dataset(node, script, loaded)]
    return [_dataset(node, script, loaders) for node in sorted(found, key=lambda n: n.lineno)]


def _bases(node: ast.ClassDef, script: Script) -> set[str]:
    """Return the last names of all bases that are not of this file."""
    bases = [base.value if isinstance(base, ast.Subscript) else base for c in script.lineage(node) for base in c.bases]
    return {script.name(base).rpartition(".")[2] for base in bases} - script.classes.keys()


def _is_dataset(node: ast.ClassDef, script: Script, loaded: set[str]) -> bool:
    names = {f.name for c in script.lineage(node) for f in c.body if isinstance(f, ast.FunctionDef)}
    if not names & set(_PER_SAMPLE):
        return node.name in loaded and bool(_bases(node, script))  # its base calls what it defines
    if any(_BASES.search(base) for base in _bases(node, script)):
        return True
    # Anything with an index can be a dataset, and most things with an index are not.
    return node.name in loaded or ({"__getitem__", "__len__"} <= names and bool(_LIKELY.search(node.name)))


def _dataset(node: ast.ClassDef, script: Script, loaders: list[Loader]) -> DatasetClass:
    functions = [f for member in script.lineage(node) for f in member.body if isinstance(f, Function)]
    methods: dict[str, Function] = {}
    for function in functions:
        methods.setdefault(function.name, function)
    called = [methods[name] for name in _PER_SAMPLE if name in methods]
    iterable = bool(_bases(node, script) & _ITERABLE) or (bool(called) and "__getitem__" not in methods)
    # Without any of them, a base from another file has them, and calls methods of this class.
    called = called or [function for name, function in methods.items() if not name.startswith("__")]
    # Each __init__ of the lineage usually calls the next one.
    initialisers = [f for f in functions if isinstance(f, ast.FunctionDef) and f.name == "__init__"]
    return DatasetClass(
        node=node,
        is_iterable=iterable,
        methods=methods,
        setup=tuple(_reach(initialisers, methods, script)),
        per_sample=tuple(_reach(called, methods, script)),
        loaders=tuple(loader for loader in loaders if node.name in loader.classes),
    )


def _of_class(node: ast.AST, script: Script) -> str:
    """Return the name of ``Class.name``, ``type(self).name`` or ``super().name``, or nothing."""
    if not isinstance(node, ast.Attribute):
        return ""
    owner = node.value
    by_call = isinstance(owner, ast.Call) and script.name(owner.func) in ("type", "super")
    return node.attr if by_call or script.name(owner) in script.classes else ""


def _reach(first: Sequence[Function], methods: dict[str, Function], script: Script) -> Iterator[Function]:
    """Yield functions, and the methods and functions of this file that they lead to."""
    todo = list(first)
    seen = {id(function) for function in todo}
    while todo:
        function = todo.pop(0)
        yield function
        for node in ast.walk(function):
            called = methods.get(self_attribute(node) or _of_class(node, script))
            if called is None and isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                called = script.functions.get(node.func.id)
            if called is not None and id(called) not in seen:
                seen.add(id(called))
                todo.append(called)
