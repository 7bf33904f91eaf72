"""The dataset classes of a script: what runs once in the trainer, and what runs for each sample in a worker."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from antifreeze.doctor.check._loaders import Loader
from antifreeze.doctor.check._script import Function, Script, self_attribute, targets_of
from antifreeze.doctor.check._values import is_none

_PER_SAMPLE = ("__getitem__", "__getitems__", "__iter__", "__next__")
_ITERABLE = {"IterableDataset", "IterDataPipe"}
_BASES = re.compile(r"(Dataset|DataPipe|ImageFolder|DatasetFolder)$")
_LIKELY = re.compile(r"(dataset|data|ds)$", re.IGNORECASE)


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
    def is_never_in_workers(self) -> bool:
        """True if every loader of it states ``num_workers=0``."""
        return bool(self.loaders) and all(x.workers == 0 and "num_workers" in x.arguments for x in self.loaders)

    @property
    def can_be_in_workers(self) -> bool:
        """True if some loader of it has workers, or may have because it is not in this file."""
        return not self.loaders or any(loader.has_workers for loader in self.loaders)

    @property
    def is_only_ours(self) -> bool:
        """True if it is read by loaders of antifreeze alone."""
        return bool(self.loaders) and all(loader.is_ours for loader in self.loaders)

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
