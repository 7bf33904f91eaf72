"""What each name of a script is bound to, scope by scope, and where functions are called."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from antifreeze.doctor.check._script import Script, in_scope, keyword, parameters, self_attribute, self_name, targets_of

AnyFunction = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_BRANCHES = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.Try, ast.Match)


@dataclass(frozen=True, slots=True, eq=False)
class Binding:
    """One assignment: ``name = value``, ``self.name = value``, ``with value as name``, ``for name in value``."""

    value: ast.expr
    place: ast.AST
    """The statement."""
    annotation: ast.expr | None = None


@dataclass(frozen=True, slots=True)
class Bindings:
    """All assignments of a script. ``names`` are by scope, ``attributes`` by class and then by method."""

    script: Script
    names: dict[ast.AST, dict[str, list[Binding]]] = field(default_factory=dict)
    attributes: dict[str, dict[str, dict[ast.AST, list[Binding]]]] = field(default_factory=dict)
    """By class, by attribute, by function."""
    calls: dict[str, list[ast.Call]] = field(default_factory=dict)
    """By the last part of what is called."""

    def scope_of(self, node: ast.AST) -> ast.AST:
        """Return the innermost function, class or module around a node."""
        inner = (n for n in self.script.above(node) if isinstance(n, (*_FUNCTIONS, ast.ClassDef)))
        return next(inner, self.script.tree)

    def class_of(self, function: ast.AST) -> ast.ClassDef | None:
        """Return the class that a function is a method of."""
        parent = self.script.parents.get(function)
        return parent if isinstance(parent, ast.ClassDef) else None

    def holding(self, bindings: list[Binding], node: ast.AST | None = None) -> Iterator[Binding]:
        """Yield the bindings in effect at a node or at the end: the last one, and earlier ones if it is conditional."""
        line = getattr(node, "lineno", None)
        around = {id(n) for n in self.script.above(node)} if node is not None else set()
        for binding in sorted(bindings, key=lambda b: (getattr(b.place, "lineno", 0), b.value.lineno), reverse=True):
            inside = id(binding.place) in around  # for x in frames: x.filter()
            if line is not None and binding.value.lineno >= line and not inside:
                continue
            yield binding
            above = [n for n in self.script.above(binding.place) if isinstance(n, _BRANCHES)]
            if inside or all(id(n) in around for n in above):
                return

    def arguments(self, function: AnyFunction, name: str) -> Iterator[ast.expr]:
        """Yield what callers pass for a parameter, as far as they can be seen."""
        owner = self.class_of(function)
        given = parameters(function)
        bound = bool(owner is not None and self_name(function))
        at = given.index(name) - bound
        for call in self._callers(function, owner):
            shift = 0
            if (self.script.name(call.func) or "").endswith("partial"):
                shift = 1
            if isinstance(call.func, ast.Attribute) and call.func.attr == "__init__" and _is_unbound(call):
                shift = 1  # Base.__init__(self, frame)
            found = keyword(call, name, at + shift)
            if found is not None and not any(isinstance(a, ast.Starred) for a in call.args[: at + shift + 1]):
                yield found

    def _callers(self, function: AnyFunction, owner: ast.ClassDef | None) -> Iterator[ast.Call]:
        if isinstance(function, ast.Lambda):
            return
        if owner is not None and function.name == "__init__":
            yield from self.constructions(owner)
            yield from self.calls.get("__init__", ())
            return
        yield from self.calls.get(function.name, ())
        for call in self.calls.get("partial", ()):
            if call.args and self.script.name(call.args[0]).rpartition(".")[2] == function.name:
                yield call

    def constructions(self, owner: ast.ClassDef) -> Iterator[ast.Call]:
        """Yield the calls that make an object of a class, or of a class that inherits its ``__init__``."""
        for name in (n for n, c in self.script.classes.items() if c is owner or owner in _heirs(c, self.script)):
            yield from self.calls.get(name, ())
        for function in owner.body:  # cls(frame), in a class method
            for node in in_scope(function) if isinstance(function, ast.FunctionDef) else ():
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Name)
                    and node.func.id == self_name(function)
                ):
                    yield node


def _is_unbound(call: ast.Call) -> bool:
    """True for ``Base.__init__(self, ...)``, as opposed to ``super().__init__(...)``."""
    return isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name)


def _heirs(node: ast.ClassDef, script: Script) -> list[ast.ClassDef]:
    """Return the classes of the file whose ``__init__`` a class uses as its own."""
    found: list[ast.ClassDef] = []
    todo = [node]
    while todo:
        member = todo.pop()
        if any(isinstance(f, ast.FunctionDef) and f.name == "__init__" for f in member.body):
            continue
        bases = [script.classes.get(script.name(base).rpartition(".")[2]) for base in member.bases]
        todo += (new := [base for base in bases if base is not None and base not in found])
        found += new
    return found


def bindings_of(script: Script) -> Bindings:
    """Collect all assignments and calls of a script."""
    bindings = Bindings(script)
    for node in ast.walk(script.tree):
        for target, value in _bound(node):
            _add(bindings, node, target, value)
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            bindings.calls.setdefault(name, []).append(node)
    return bindings


def _bound(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the (target, value) pairs of a statement. An iterable counts as its elements."""
    yield from targets_of(node)
    if isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield node.optional_vars, node.context_expr
    elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
        parts = node.target.elts if isinstance(node.target, ast.Tuple | ast.List) else [node.target]
        yield from ((part, node.iter) for part in parts)
    elif isinstance(node, ast.Delete):
        yield from ((target, ast.copy_location(ast.Constant(None), target)) for target in node.targets)
    elif isinstance(node, ast.AnnAssign) and node.value is None:
        yield node.target, ast.copy_location(ast.Constant(None), node.target)


def _add(bindings: Bindings, node: ast.AST, target: ast.expr, value: ast.expr) -> None:
    place = node if hasattr(node, "lineno") else value
    binding = Binding(value, place, node.annotation if isinstance(node, ast.AnnAssign) else None)
    scope = bindings.scope_of(node)
    if isinstance(target, ast.Name):
        bindings.names.setdefault(scope, {}).setdefault(target.id, []).append(binding)
        if isinstance(scope, ast.ClassDef):
            _of_class(bindings, scope, target.id).setdefault(scope, []).append(binding)
    elif name := self_attribute(target):
        method = next((n for n in bindings.script.above(target) if bindings.class_of(n) is not None), None)
        owner = bindings.class_of(method) if method is not None else None
        if owner is not None and method is not None:
            _of_class(bindings, owner, name).setdefault(method, []).append(binding)


def _of_class(bindings: Bindings, owner: ast.ClassDef, name: str) -> dict[ast.AST, list[Binding]]:
    return bindings.attributes.setdefault(owner.name, {}).setdefault(name, {})
