"""What a value of a script is: an object of a library, or of a class of the same file.

Variables, attributes, parameters, return values and containers are followed within the file. A value that cannot be
followed has no kind, and no rule reports it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from antifreeze.doctor.check._libraries import KINDS, NUMBA, LibraryKind, function_named
from antifreeze.doctor.check._script import AnyFunction, Binding, Function, Script, elements_of, in_scope, parameters

_MAX_DEPTH = 60
_TRANSPARENT_NAMES = """
list tuple set dict iter next enumerate zip sorted reversed copy.copy copy.deepcopy functools.partial
itertools.chain typing.cast
"""
_TRANSPARENT = frozenset(_TRANSPARENT_NAMES.split())
"""Their result is made of their arguments."""
Kind = str | ast.ClassDef
"""A key of ``KINDS``, or the class of this file that a value is an object of."""
NO_KINDS: frozenset[Kind] = frozenset()


@dataclass(frozen=True, slots=True)
class NameUse:
    """A call that needs the threads of a library."""

    library: str
    node: ast.expr


@dataclass(slots=True)
class Origins:
    """Answers for one script."""

    script: Script
    _known: dict[int, frozenset[Kind]] = field(default_factory=dict)
    _depth: int = 0

    def kinds(self, node: ast.AST | None) -> frozenset[Kind]:
        """Return what an expression can be; nothing if that is not known."""
        if node is None or self._depth >= _MAX_DEPTH:
            return NO_KINDS
        if id(node) in self._known:
            return self._known[id(node)]
        self._known[id(node)] = NO_KINDS  # a value made of itself adds nothing
        self._depth += 1
        try:
            found = self._kinds(node)
        finally:
            self._depth -= 1
        self._known[id(node)] = found
        return found

    def uses(self, nodes: Iterable[ast.AST]) -> Iterator[NameUse]:
        """Yield the calls among nodes that need a library's threads."""
        for node in nodes:
            if isinstance(node, ast.Call):
                yield from self._used_by(node)
            elif isinstance(node, ast.Subscript) and _picks_rows(node, self.script):
                if "polars frame" in self.kinds(node.value):
                    yield NameUse(KINDS["polars frame"].library, node)
            elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
                kinds = self._library_kinds(node.iter)
                yield from (NameUse(kind.library, node.iter) for kind in kinds if kind.runs_by_iteration)

    def _used_by(self, call: ast.Call) -> Iterator[NameUse]:
        name = self.script.name(call.func)
        if (known := function_named(name)) is not None:
            if known.runs:
                yield NameUse(known.library, call)
            return
        if isinstance(call.func, ast.Name) and _is_parallel(self.script.functions.get(call.func.id), self.script):
            yield NameUse(NUMBA, call)
        if isinstance(call.func, ast.Attribute):
            for kind in self._library_kinds(call.func.value):
                if kind.runs.match(call.func.attr):
                    yield NameUse(kind.library, call)

    def called(self, call: ast.Call) -> Iterator[Function]:
        """Yield the functions and methods of this file that a call can lead to."""
        if isinstance(call.func, ast.Name):
            if call.func.id in self.script.functions:
                yield self.script.functions[call.func.id]
                return
            yield from self.methods(self.kinds(call.func), "__call__")
        elif isinstance(call.func, ast.Attribute):
            owners = self.kinds(call.func.value)
            if isinstance(call.func.value, ast.Name) and call.func.value.id in self.script.classes:
                owners |= {self.script.classes[call.func.value.id]}  # a static method
            yield from self.methods(owners, call.func.attr)
            yield from self.methods(self.kinds(call.func), "__call__")

    def methods(self, owners: Iterable[Kind], name: str) -> Iterator[Function]:
        """Yield the methods of a name that objects have."""
        for member in self._members(owners):
            for function in member.body:
                if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and function.name == name:
                    yield function

    def _members(self, owners: Iterable[Kind]) -> Iterator[ast.ClassDef]:
        """Yield the classes among kinds, each with its bases."""
        for owner in owners:
            if isinstance(owner, ast.ClassDef):
                yield from self.script.lineage(owner)

    def _library_kinds(self, node: ast.AST) -> Iterator[LibraryKind]:
        return (KINDS[kind] for kind in self.kinds(node) if isinstance(kind, str))

    def _kinds(self, node: ast.AST) -> frozenset[Kind]:
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

    def _union(self, nodes: Iterable[ast.AST | None]) -> frozenset[Kind]:
        return NO_KINDS.union(*(self.kinds(node) for node in nodes))

    def _of_name(self, name: ast.Name) -> frozenset[Kind]:
        scope = self.script.scope_of(name)
        inner = True
        while True:
            here = self.script.names.get((scope, name.id), [])
            if isinstance(scope, AnyFunction) and name.id in parameters(scope) and not here:
                return self._of_parameter(scope, name)
            if here and (inner or not isinstance(scope, ast.ClassDef)):
                held = [*self.script.holding(here, name if inner else None)]
                if held or not isinstance(scope, AnyFunction):
                    return self._held(held)
                return self._of_parameter(scope, name) if name.id in parameters(scope) else NO_KINDS
            if scope is self.script.tree:
                return NO_KINDS
            inner, scope = False, self.script.scope_of(scope)

    def _of_parameter(self, function: AnyFunction, name: ast.Name) -> frozenset[Kind]:
        owner = self.script.class_of(function)
        if owner is not None and self.script.is_self(name):
            return frozenset({owner})
        given = function.args
        annotations = [a.annotation for a in (*given.posonlyargs, *given.args, *given.kwonlyargs) if a.arg == name.id]
        return self._annotated(annotations) | self._union(self.script.arguments(function, name.id))

    def _held(self, bindings: Iterable[Binding]) -> frozenset[Kind]:
        return NO_KINDS.union(*(self.kinds(b.value) | self._annotated([b.annotation]) for b in bindings))

    def _annotated(self, annotations: Iterable[ast.expr | None]) -> frozenset[Kind]:
        """Return the kinds that an annotation names: ``pl.DataFrame``, ``pl.DataFrame | None``, ``"pl.DataFrame"``."""
        found: set[Kind] = set()
        for annotation in annotations:
            for node in ast.walk(_parsed(annotation)) if annotation is not None else ():
                if isinstance(node, ast.Attribute | ast.Name):
                    known = function_named(self.script.name(node))
                    found |= {known.kind} if known is not None and known.kind else set()
                    if isinstance(node, ast.Name) and node.id in self.script.classes:
                        found.add(self.script.classes[node.id])
        return frozenset(found)

    def _of_attribute(self, node: ast.Attribute) -> frozenset[Kind]:
        owners = self.kinds(node.value)
        of_library = (kind for kind in owners if isinstance(kind, str))
        found = NO_KINDS.union(*({KINDS[kind].becomes.get(node.attr, kind)} - {""} for kind in of_library))
        for member in {m for owner in owners for m in self._family(owner)}:
            for function, values in self.script.attributes.get((member.name, node.attr), {}).items():
                same = function in self.script.above(node)
                found |= self._held(self.script.holding(values, node if same else None))
        for method in self.methods(owners, node.attr):
            if method.decorator_list:  # a property
                found |= self._returned(method)
        return found | self._union(self._fields(owners, node.attr))

    def _family(self, owner: Kind) -> Iterator[ast.ClassDef]:
        """Yield a class, its bases, and the classes that inherit from it."""
        own = list(self._members([owner]))
        yield from own
        if own:
            yield from (c for c in self.script.classes.values() if own[0] in self.script.lineage(c)[1:])

    def _fields(self, owners: Iterable[Kind], name: str) -> Iterator[ast.expr]:
        """Yield what is passed for a field of a class without ``__init__``, as dataclasses and named tuples are."""
        for owner in self._members(owners):
            names = [n.target.id for n in owner.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)]
            if name in names and not list(self.methods([owner], "__init__")):
                for call in self.script.constructions(owner):
                    given = {k.arg: k.value for k in call.keywords if k.arg} | dict(zip(names, call.args, strict=False))
                    if name in given:
                        yield given[name]

    def _of_call(self, call: ast.Call) -> frozenset[Kind]:
        name = self.script.name(call.func)
        if (known := function_named(name)) is not None:
            return frozenset({known.kind} - {""})
        if name in _TRANSPARENT:
            return self._union(call.args)
        if name in self.script.classes:
            return frozenset({self.script.classes[name]})
        if isinstance(call.func, ast.Name) and self.script.is_self(call.func):  # cls(frame)
            return self.kinds(call.func)
        found = NO_KINDS
        if isinstance(call.func, ast.Attribute):
            for kind in self._library_kinds(call.func.value):
                found |= {kind.becomes.get(call.func.attr, kind.returns)} - {""}
        return found.union(*(self._returned(function) for function in self.called(call)))

    def _returned(self, function: Function) -> frozenset[Kind]:
        values = [n.value for n in in_scope(function) if isinstance(n, ast.Return | ast.Yield | ast.YieldFrom)]
        return self._annotated([function.returns]) | self._union(values)


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
    if isinstance(node.slice, ast.List):
        return not any(isinstance(e, ast.Constant) and isinstance(e.value, str) for e in node.slice.elts)
    function = script.function_of(node)
    is_plural = isinstance(function, ast.FunctionDef) and function.name == "__getitems__"
    names = parameters(function)[1:] if isinstance(function, ast.FunctionDef) and is_plural else []
    return isinstance(node.slice, ast.ListComp) or (isinstance(node.slice, ast.Name) and node.slice.id in names)


def _is_parallel(function: Function | None, script: Script) -> bool:
    """True for a function that Numba runs in threads: ``@njit(parallel=True)``."""
    for decorator in function.decorator_list if function is not None else ():
        if isinstance(decorator, ast.Call) and script.name(decorator.func).startswith("numba."):
            given = {k.arg: k.value for k in decorator.keywords}.get("parallel")
            if isinstance(given, ast.Constant) and given.value:
                return True
    return False
