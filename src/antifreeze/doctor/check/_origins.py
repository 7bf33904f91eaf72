"""What a value of a script is: of which kind of a library's, or an object of which class of the file.

Variables, attributes, parameters, return values and containers are followed within the file. A value that cannot be
followed has no kind, and no rule reports it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from antifreeze.doctor.check._bindings import AnyFunction, Binding, Bindings, bindings_of
from antifreeze.doctor.check._datasets import lineage
from antifreeze.doctor.check._libraries import KINDS, NUMBA, function_named
from antifreeze.doctor.check._script import Function, Script, elements_of, in_scope, is_self, parameters

_DEPTH = 60
_TRANSPARENT_NAMES = """
list tuple set dict iter next enumerate zip sorted reversed copy.copy copy.deepcopy functools.partial
itertools.chain typing.cast
"""
_TRANSPARENT = frozenset(_TRANSPARENT_NAMES.split())
"""Their result is made of what they are given."""
NOTHING: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class NameUse:
    """A call that needs the threads of a library."""

    library: str
    node: ast.expr


@dataclass(slots=True)
class Origins:
    """Answers for one script. A kind is a key of ``KINDS``; an object of a class of the file is ``class Name``."""

    script: Script
    bindings: Bindings
    _known: dict[int, frozenset[str]] = field(default_factory=dict)
    _depth: int = 0

    def kinds(self, node: ast.AST | None) -> frozenset[str]:
        """Return what an expression can be; nothing if that is not known."""
        if node is None or self._depth >= _DEPTH:
            return NOTHING
        if id(node) in self._known:
            return self._known[id(node)]
        self._known[id(node)] = NOTHING  # a value that is made of itself adds nothing
        self._depth += 1
        try:
            found = self._kinds(node)
        finally:
            self._depth -= 1
        self._known[id(node)] = found
        return found

    def uses(self, nodes: Iterable[ast.AST]) -> Iterator[NameUse]:
        """Give the calls among nodes that need a library's threads."""
        for node in nodes:
            if isinstance(node, ast.Call):
                yield from self._used_by(node)
            elif isinstance(node, ast.Subscript) and _picks_rows(node, self.script):
                if "polars frame" in self.kinds(node.value):
                    yield NameUse(KINDS["polars frame"].library, node)
            elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
                kinds = (KINDS[kind] for kind in self.kinds(node.iter) if kind in KINDS)
                yield from (NameUse(kind.library, node.iter) for kind in kinds if kind.iterates)

    def _used_by(self, call: ast.Call) -> Iterator[NameUse]:
        name = self.script.name(call.func)
        if (known := function_named(name)) is not None:
            if known.runs:
                yield NameUse(known.library, call)
            return
        if isinstance(call.func, ast.Name) and _is_parallel(self.script.functions.get(call.func.id), self.script):
            yield NameUse(NUMBA, call)
        if isinstance(call.func, ast.Attribute):
            for kind in self.kinds(call.func.value) & KINDS.keys():
                if KINDS[kind].runs.match(call.func.attr):
                    yield NameUse(KINDS[kind].library, call)

    def called(self, call: ast.Call) -> Iterator[Function]:
        """Give the functions and methods of this file that a call can lead to."""
        if isinstance(call.func, ast.Name):
            if call.func.id in self.script.functions:
                yield self.script.functions[call.func.id]
                return
            yield from self.methods(self.kinds(call.func), "__call__")
        elif isinstance(call.func, ast.Attribute):
            owners = self.kinds(call.func.value)
            if isinstance(call.func.value, ast.Name) and call.func.value.id in self.script.classes:
                owners |= {f"class {call.func.value.id}"}  # a static method
            yield from self.methods(owners, call.func.attr)
            yield from self.methods(self.kinds(call.func), "__call__")

    def methods(self, owners: Iterable[str], name: str) -> Iterator[Function]:
        """Give the methods of a name that objects have."""
        for member in self._members(owners):
            for function in member.body:
                if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and function.name == name:
                    yield function

    def _members(self, owners: Iterable[str]) -> Iterator[ast.ClassDef]:
        for owner in owners:
            node = self.script.classes.get(owner.removeprefix("class ")) if owner.startswith("class ") else None
            if node is not None:
                yield from lineage(node, self.script)

    def _kinds(self, node: ast.AST) -> frozenset[str]:
        if isinstance(node, ast.Name):
            return self._of_name(node)
        if isinstance(node, ast.Attribute):
            return self._of_attribute(node)
        if isinstance(node, ast.Call):
            return self._of_call(node)
        if isinstance(node, ast.Subscript):
            inner = self.kinds(node.value)
            by_name = isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str)
            if by_name and "polars frame" in inner and not isinstance(node.value, ast.Dict):
                return inner - {"polars frame"} | {"polars column"}
            return inner
        return self._union(_parts(node))

    def _union(self, nodes: Iterable[ast.AST | None]) -> frozenset[str]:
        return NOTHING.union(*(self.kinds(node) for node in nodes))

    def _of_name(self, name: ast.Name) -> frozenset[str]:
        scope = self.bindings.scope_of(name)
        inner = True
        while True:
            here = self.bindings.names.get(scope, {}).get(name.id, [])
            if isinstance(scope, AnyFunction) and name.id in parameters(scope) and not here:
                return self._of_parameter(scope, name)
            if here and (inner or not isinstance(scope, ast.ClassDef)):
                held = [*self.bindings.holding(here, name if inner else None)]
                if held or not isinstance(scope, AnyFunction):
                    return self._held(held)
                return self._of_parameter(scope, name) if name.id in parameters(scope) else NOTHING
            if scope is self.script.tree:
                return NOTHING
            inner, scope = False, self.bindings.scope_of(scope)

    def _of_parameter(self, function: AnyFunction, name: ast.Name) -> frozenset[str]:
        owner = self.bindings.class_of(function)
        if owner is not None and is_self(name, self.script.parents):
            return frozenset({f"class {owner.name}"})
        given = function.args
        annotations = [a.annotation for a in (*given.posonlyargs, *given.args, *given.kwonlyargs) if a.arg == name.id]
        return self._annotated(annotations) | self._union(self.bindings.arguments(function, name.id))

    def _held(self, bindings: Iterable[Binding]) -> frozenset[str]:
        return NOTHING.union(*(self.kinds(b.value) | self._annotated([b.annotation]) for b in bindings))

    def _annotated(self, annotations: Iterable[ast.expr | None]) -> frozenset[str]:
        """Return the kinds that an annotation names: ``pl.DataFrame``, ``pl.DataFrame | None``, ``"pl.DataFrame"``."""
        found: set[str] = set()
        for annotation in annotations:
            for node in ast.walk(_parsed(annotation)) if annotation is not None else ():
                if isinstance(node, ast.Attribute | ast.Name):
                    known = function_named(self.script.name(node))
                    found |= {known.kind} if known is not None and known.kind else set()
                    found |= (
                        {f"class {node.id}"} if isinstance(node, ast.Name) and node.id in self.script.classes else set()
                    )
        return frozenset(found)

    def _of_attribute(self, node: ast.Attribute) -> frozenset[str]:
        owners = self.kinds(node.value)
        found = NOTHING.union(*({KINDS[k].becomes.get(node.attr, k)} - {""} for k in owners & KINDS.keys()))
        for member in {m for owner in owners for m in self._family(owner)}:
            for function, values in self.bindings.attributes.get(member.name, {}).get(node.attr, {}).items():
                same = function in self.script.above(node)
                found |= self._held(self.bindings.holding(values, node if same else None))
        for method in self.methods(owners, node.attr):
            if method.decorator_list:  # a property
                found |= self._returned(method)
        return found | self._union(self._fields(owners, node.attr))

    def _family(self, owner: str) -> Iterator[ast.ClassDef]:
        """Give a class, its bases, and the classes that inherit from it."""
        own = list(self._members([owner]))
        yield from own
        if own:
            yield from (c for c in self.script.classes.values() if own[0] in lineage(c, self.script)[1:])

    def _fields(self, owners: Iterable[str], name: str) -> Iterator[ast.expr]:
        """Give what is passed for a field of a class without ``__init__``, as dataclasses and named tuples are."""
        for owner in self._members(owners):
            names = [n.target.id for n in owner.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)]
            if name in names and not list(self.methods([f"class {owner.name}"], "__init__")):
                for call in self.bindings.constructions(owner):
                    given = {k.arg: k.value for k in call.keywords if k.arg} | dict(zip(names, call.args, strict=False))
                    if name in given:
                        yield given[name]

    def _of_call(self, call: ast.Call) -> frozenset[str]:
        name = self.script.name(call.func)
        if (known := function_named(name)) is not None:
            return frozenset({known.kind} - {""})
        if name in _TRANSPARENT:
            return self._union(call.args)
        if name in self.script.classes:
            return frozenset({f"class {name}"})
        if isinstance(call.func, ast.Name) and is_self(call.func, self.script.parents):  # cls(frame)
            return self.kinds(call.func)
        found = NOTHING
        if isinstance(call.func, ast.Attribute):
            for kind in self.kinds(call.func.value) & KINDS.keys():
                found |= {KINDS[kind].becomes.get(call.func.attr, KINDS[kind].gives)} - {""}
        return found.union(*(self._returned(function) for function in self.called(call)))

    def _returned(self, function: Function) -> frozenset[str]:
        values = [n.value for n in in_scope(function) if isinstance(n, ast.Return | ast.Yield | ast.YieldFrom)]
        return self._annotated([function.returns]) | self._union(values)


def origins_of(script: Script) -> Origins:
    """Return the answers for a script."""
    return Origins(script, bindings_of(script))


def _parts(node: ast.AST) -> Sequence[ast.expr]:
    """Return what a value is made of: the elements of a container, the outcomes of a choice."""
    if isinstance(node, ast.BoolOp):
        return node.values
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    if isinstance(node, ast.Starred | ast.Await | ast.NamedExpr):
        return [node.value]
    return elements_of(node)


def _parsed(annotation: ast.expr) -> ast.expr:
    """Return an annotation that is written as a text."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        try:
            return ast.parse(annotation.value, mode="eval").body
        except (SyntaxError, ValueError):
            return annotation
    return annotation


def _picks_rows(node: ast.Subscript, script: Script) -> bool:
    """True for ``frame[[1, 2, 3]]`` and, in ``__getitems__``, ``frame[indices]``: several rows by number."""
    picked = node.slice.elts if isinstance(node.slice, ast.List) else []
    if isinstance(node.slice, ast.List):
        return not any(isinstance(e, ast.Constant) and isinstance(e.value, str) for e in picked)
    function = script.function_of(node)
    plural = isinstance(function, ast.FunctionDef) and function.name == "__getitems__"
    names = parameters(function)[1:] if plural and isinstance(function, ast.FunctionDef) else []
    return isinstance(node.slice, ast.ListComp) or (isinstance(node.slice, ast.Name) and node.slice.id in names)


def _is_parallel(function: Function | None, script: Script) -> bool:
    """True for a function that Numba runs in threads: ``@njit(parallel=True)``."""
    for decorator in function.decorator_list if function is not None else ():
        if isinstance(decorator, ast.Call) and script.name(decorator.func).startswith("numba."):
            given = {k.arg: k.value for k in decorator.keywords}.get("parallel")
            if isinstance(given, ast.Constant) and given.value:
                return True
    return False
