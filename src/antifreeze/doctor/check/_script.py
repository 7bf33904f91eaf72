"""A script as its syntax tree: what its names are bound to, and the values that are known without running it."""

from __future__ import annotations

import ast
import io
import operator
import tokenize
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from antifreeze.core import read_regular
from antifreeze.doctor.check._facts import Facts

Function = ast.FunctionDef | ast.AsyncFunctionDef
AnyFunction = Function | ast.Lambda
# No script that a person wrote is as large.
_MAX_NBYTES = 8 << 20
EXITS = {"sys.exit", "os._exit", "exit", "quit", "os.abort"}
"""What ends the process."""
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_BRANCHES = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.Try, ast.Match)
_MARK = "of_own_object"
_MAX_DEPTH = 12
_MAX_OPERAND = 1 << 62
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}
_ALL_CORES = {"os.cpu_count", "multiprocessing.cpu_count", "torch.multiprocessing.cpu_count", "psutil.cpu_count"}


class CannotCheck(Exception):
    """The script cannot be read, or is not valid Python of this version."""


@dataclass(frozen=True, slots=True, eq=False)
class Binding:
    """One assignment: ``name = value``, ``self.name = value``, ``with value as name``, ``for name in value``."""

    value: ast.expr
    place: ast.AST
    """The statement."""
    annotation: ast.expr | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """One file."""

    file: str
    tree: ast.Module
    imports: dict[str, str]
    parents: dict[ast.AST, ast.AST] = field(default_factory=dict)
    values: dict[str, list[ast.expr]] = field(default_factory=dict)
    """All values that are assigned to a plain name, in any scope."""
    functions: dict[str, Function] = field(default_factory=dict)
    """The functions at module level."""
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    """All classes, those inside functions included."""

    names: dict[tuple[ast.AST, str], list[Binding]] = field(default_factory=dict)
    """What is bound to a name, by its scope."""
    attributes: dict[tuple[str, str], dict[ast.AST, list[Binding]]] = field(default_factory=dict)
    """What is bound to an attribute of a class, by the function that does it."""
    calls: dict[str, list[ast.Call]] = field(default_factory=dict)
    """By the last part of what is called."""

    def name(self, node: ast.AST) -> str:
        """Return the full name of ``a.b.c`` with imports resolved, or nothing if it is no plain name.

        A name that is not imported is returned as it is: a builtin, or something of this file.
        """
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        parts.append(self.imports.get(node.id, node.id))
        return ".".join(reversed(parts))

    def only_value(self, node: ast.AST | None) -> ast.expr | None:
        """Return the value of a variable that is assigned once in the whole file."""
        values = self.values.get(node.id, []) if isinstance(node, ast.Name) else []
        return values[0] if len(values) == 1 else None

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the nodes around a node, from the inside to the outside."""
        while (parent := self.parents.get(node)) is not None:
            yield parent
            node = parent

    def function_of(self, node: ast.AST) -> ast.AST:
        """Return the innermost function around a node, or the module."""
        return next((n for n in self.above(node) if isinstance(n, Function)), self.tree)

    def scope_of(self, node: ast.AST) -> ast.AST:
        """Return the innermost function, class or module around a node."""
        return next((n for n in self.above(node) if isinstance(n, _SCOPES)), self.tree)

    def class_of(self, function: ast.AST) -> ast.ClassDef | None:
        """Return the class that a function is a method of."""
        parent = self.parents.get(function)
        return parent if isinstance(parent, ast.ClassDef) else None

    def is_local(self, node: ast.AST) -> bool:
        """True if it is defined inside a function, so that pickle cannot find it by its name."""
        return self.function_of(node) is not self.tree

    def is_self(self, name: ast.Name) -> bool:
        """True if a name is the first parameter of the method around it; nested functions see it, too."""
        owners = (n for n in self.above(name) if isinstance(n, AnyFunction) and name.id in parameters(n))
        function = next(owners, None)
        return function is not None and self.class_of(function) is not None and self_name(function) == name.id

    def lineage(self, node: ast.ClassDef) -> list[ast.ClassDef]:
        """Return a class and its bases of the same file, nearest first."""
        line = [node]
        for member in line:
            bases = [self.classes.get(self.name(base).rpartition(".")[2]) for base in member.bases]
            line += [base for base in bases if base is not None and base not in line]
        return line

    def holding(self, bindings: list[Binding], node: ast.AST | None = None) -> Iterator[Binding]:
        """Yield the bindings in effect at a node or at the end: the last one, and earlier ones if it is conditional."""
        line = getattr(node, "lineno", None)
        around = {id(n) for n in self.above(node)} if node is not None else set()
        for binding in sorted(bindings, key=lambda b: (getattr(b.place, "lineno", 0), b.value.lineno), reverse=True):
            inside = id(binding.place) in around  # for x in frames: x.filter()
            if line is not None and binding.value.lineno >= line and not inside:
                continue
            yield binding
            above = [n for n in self.above(binding.place) if isinstance(n, _BRANCHES)]
            if inside or all(id(n) in around for n in above):
                return

    def arguments(self, function: AnyFunction, name: str) -> Iterator[ast.expr]:
        """Yield what callers pass for a parameter, as far as they can be seen."""
        is_method = self.class_of(function) is not None and bool(self_name(function))
        position = parameters(function).index(name) - is_method
        for call in self._callers(function):
            # partial(function, frame), Base.__init__(self, frame)
            at = position + (self.name(call.func).endswith("partial") or _is_unbound_init(call))
            found = keyword(call, name, at)
            if found is not None and not any(isinstance(a, ast.Starred) for a in call.args[: at + 1]):
                yield found

    def _callers(self, function: AnyFunction) -> Iterator[ast.Call]:
        if isinstance(function, ast.Lambda):
            return
        yield from self.calls.get(function.name, ())
        owner = self.class_of(function)
        if owner is not None and function.name == "__init__":
            yield from self.constructions(owner)
            return
        for call in self.calls.get("partial", ()):
            if call.args and self.name(call.args[0]).rpartition(".")[2] == function.name:
                yield call

    def constructions(self, owner: ast.ClassDef) -> Iterator[ast.Call]:
        """Yield the calls that make an object of a class, or of a class that inherits its ``__init__``."""
        for name, node in self.classes.items():
            line = self.lineage(node)
            first = next((i for i, member in enumerate(line) if _defines_init(member)), len(line))
            if owner in line[: first + 1]:
                yield from self.calls.get(name, ())
        for function in owner.body:  # cls(frame), in a class method
            for call in calls_in(in_scope(function)) if isinstance(function, ast.FunctionDef) else ():
                if isinstance(call.func, ast.Name) and call.func.id == self_name(function):
                    yield call


def _is_unbound_init(call: ast.Call) -> bool:
    """True for ``Base.__init__(self, ...)``, as opposed to ``super().__init__(...)``."""
    function = call.func
    return isinstance(function, ast.Attribute) and function.attr == "__init__" and isinstance(function.value, ast.Name)


def _defines_init(node: ast.ClassDef) -> bool:
    return any(isinstance(function, ast.FunctionDef) and function.name == "__init__" for function in node.body)


def parse(file: str, text: str) -> Script:
    """Return the script, or raise ``CannotCheck`` with the invalid line."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes and the like are not our business
            tree = ast.parse(text, filename=file)
    except SyntaxError as error:
        raise CannotCheck(f"{file}:{error.lineno or 0}: invalid syntax: {error.msg}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise CannotCheck(f"{file}: cannot be parsed: {error or type(error).__name__}") from error
    script = Script(file=file, tree=tree, imports=imports_of(tree))
    nodes = list(ast.walk(tree))
    script.parents.update((child, node) for node in nodes for child in ast.iter_child_nodes(node))
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            vars(node)[_MARK] = script.is_self(node.value)
    for node in nodes:
        _add(script, node)
    for node in in_scope(tree):
        if isinstance(node, Function):
            script.functions[node.name] = node
    return script


def _add(script: Script, node: ast.AST) -> None:
    """Add what a node defines, binds or calls."""
    if isinstance(node, ast.ClassDef):
        script.classes.setdefault(node.name, node)
    elif isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        script.calls.setdefault(name, []).append(node)
    for target, value in targets_of(node):
        if isinstance(target, ast.Name):
            script.values.setdefault(target.id, []).append(value)
    for target, value in _bound(node):
        place = node if hasattr(node, "lineno") else value
        binding = Binding(value, place, node.annotation if isinstance(node, ast.AnnAssign) else None)
        scope = script.scope_of(node)
        if isinstance(target, ast.Name):
            script.names.setdefault((scope, target.id), []).append(binding)
            if isinstance(scope, ast.ClassDef):
                script.attributes.setdefault((scope.name, target.id), {}).setdefault(scope, []).append(binding)
        elif name := self_attribute(target):
            method = next(n for n in script.above(target) if script.class_of(n) is not None)
            owner = getattr(script.class_of(method), "name", "")
            script.attributes.setdefault((owner, name), {}).setdefault(method, []).append(binding)


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


def read_text(file: str) -> str:
    """Return the text of a script, decoded as it declares."""
    try:
        data = io.BytesIO(read_regular(file, _MAX_NBYTES))
        encoding, _ = tokenize.detect_encoding(data.readline)
        data.seek(0)
        return io.TextIOWrapper(data, encoding).read()
    except FileNotFoundError as error:
        raise CannotCheck(f"{file}: no such file") from error
    except OSError as error:
        raise CannotCheck(f"{file}: cannot be read: {error.strerror or error}") from error
    except (SyntaxError, UnicodeDecodeError) as error:
        raise CannotCheck(f"{file}: cannot be decoded in the encoding that it declares: {error}") from error


def is_silenced(text_line: str) -> bool:
    """True if a line carries the comment that silences findings."""
    _, mark, comment = text_line.partition("#")
    return bool(mark) and "antifreeze: ok" in comment


def in_scope(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function, class or module without those of nested functions and classes."""
    todo = list(ast.iter_child_nodes(node))[::-1]
    while todo:
        child = todo.pop()
        yield child
        if not isinstance(child, _SCOPES):
            todo += list(ast.iter_child_nodes(child))[::-1]


def calls_in(nodes: Iterator[ast.AST]) -> Iterator[ast.Call]:
    """Yield the calls among nodes."""
    return (node for node in nodes if isinstance(node, ast.Call))


def keyword(call: ast.Call, name: str, position: int = -1) -> ast.expr | None:
    """Return an argument of a call by its name or position."""
    for argument in call.keywords:
        if argument.arg == name:
            return argument.value
    return call.args[position] if 0 <= position < len(call.args) else None


def is_generator(function: ast.AST) -> bool:
    """True if a call returns an iterator that runs the body."""
    if not isinstance(function, ast.FunctionDef) or function.decorator_list:
        return False
    return any(isinstance(node, ast.Yield | ast.YieldFrom) for node in in_scope(function))


def code_line(node: ast.AST) -> str:
    """Return a node as one line of code, for a diff."""
    text = ast.unparse(node)
    return text if len(text) <= 70 and "\n" not in text else text.splitlines()[0][:67] + "..."


_STARS = {
    "torch.utils.data": ("DataLoader", "Dataset", "IterableDataset", "TensorDataset", "get_worker_info"),
    "antifreeze": ("DataLoader", "StreamingDataLoader", "StreamingDataset"),
}
"""What ``from module import *`` imports, where it matters."""


def imports_of(tree: ast.AST) -> dict[str, str]:
    """Return the full name behind each imported name, including imports inside functions."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                # ``import a.b`` binds a; ``import a.b as c`` binds a.b
                found[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            for alias in node.names:
                names = _STARS.get(module, ()) if alias.name == "*" else (alias.name,)
                found.update({alias.asname or name: f"{module}.{name}" for name in names})
    return found


def parameters(function: AnyFunction) -> list[str]:
    """Return the names of a function's parameters, those that can be given by position first."""
    given = function.args
    rest = [argument for argument in (given.vararg, given.kwarg) if argument is not None]
    return [argument.arg for argument in (*given.posonlyargs, *given.args, *given.kwonlyargs, *rest)]


def self_name(function: ast.AST) -> str:
    """Return the name of a method's own object; nothing for a static method."""
    if not isinstance(function, Function):
        return ""
    given = [*function.args.posonlyargs, *function.args.args]
    static = any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in function.decorator_list)
    return given[0].arg if given and not static else ""


def self_attribute(node: ast.AST) -> str:
    """Return the name of ``self.name``, or nothing. ``parse`` marked what belongs to a method's own object."""
    return node.attr if isinstance(node, ast.Attribute) and getattr(node, _MARK, False) else ""


def targets_of(node: ast.AST) -> list[tuple[ast.expr, ast.expr]]:
    """Return the (target, value) pairs of an assignment; ``a, b = x, y`` gives two."""
    if isinstance(node, ast.Assign):
        pairs = [(target, node.value) for target in node.targets]
    elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
        pairs = [(node.target, node.value)]
    else:
        return []
    flat: list[tuple[ast.expr, ast.expr]] = []
    for target, value in pairs:
        if isinstance(target, (ast.Tuple, ast.List)):
            values = value.elts if isinstance(value, (ast.Tuple, ast.List)) else []
            same = len(values) == len(target.elts)
            flat += [(part, values[i] if same else value) for i, part in enumerate(target.elts)]
        else:
            flat.append((target, value))
    return flat


def assigned(node: ast.expr, function: Function) -> list[ast.expr]:
    """Return the last value that a function assigns to a variable or an attribute before it is used."""
    wanted = ast.unparse(node)
    pairs = (pair for statement in ast.walk(function) for pair in targets_of(statement))
    values = [v for target, v in pairs if v.lineno < node.lineno and ast.unparse(target) == wanted]
    return sorted(values, key=lambda v: v.lineno)[-1:]


def elements_of(node: ast.AST) -> list[ast.expr]:
    """Return the elements of a container and the outcomes of a choice."""
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return node.elts
    if isinstance(node, ast.Dict):
        return node.values
    if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp):
        return [node.elt]
    if isinstance(node, ast.DictComp):
        return [node.value]
    if isinstance(node, ast.IfExp):
        return [node.body, node.orelse]
    return []


def number(node: ast.expr | None, script: Script, facts: Facts, depth: int = _MAX_DEPTH) -> int | None:
    """Return the integer value of an expression on this machine, or None if only a run can tell."""
    if node is None or depth == 0:
        return None
    if isinstance(node, ast.Constant):
        return node.value if type(node.value) is int else None
    if isinstance(node, ast.Name):
        return number(script.only_value(node), script, facts, depth - 1)
    if isinstance(node, ast.BoolOp):  # os.cpu_count() or 1
        return number(node.values[0], script, facts, depth - 1) if isinstance(node.op, ast.Or) else None
    if isinstance(node, ast.BinOp):
        return _operation(node, script, facts, depth)
    return _call(node, script, facts, depth) if isinstance(node, ast.Call) else None


def _operation(node: ast.BinOp, script: Script, facts: Facts, depth: int) -> int | None:
    left = number(node.left, script, facts, depth - 1)
    right = number(node.right, script, facts, depth - 1)
    if left is None or right is None or max(abs(left), abs(right)) > _MAX_OPERAND:
        return None
    if isinstance(node.op, ast.FloorDiv):
        return left // right if right else None
    if isinstance(node.op, ast.Pow):
        return left**right if abs(left) <= 10 and 0 <= right <= 18 else None
    operation = _OPERATORS.get(type(node.op))
    return operation(left, right) if operation else None


def _call(node: ast.Call, script: Script, facts: Facts, depth: int) -> int | None:
    name = script.name(node.func)
    if name in _ALL_CORES and not node.args:
        return facts.machine_cores
    if name == "len" and node.args and script.name(getattr(node.args[0], "func", node)) == "os.sched_getaffinity":
        return facts.cores
    if name not in ("min", "max", "int") or node.keywords or not node.args:
        return None
    values = [number(argument, script, facts, depth - 1) for argument in node.args]
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    return min(known) if name == "min" else max(known)


def text(node: ast.expr | None, script: Script) -> str | None:
    """Return the text that an expression is, or None."""
    if isinstance(node, ast.Name):
        node = script.only_value(node)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def is_none(node: ast.AST | None) -> bool:
    """True for the literal ``None``."""
    return isinstance(node, ast.Constant) and node.value is None


def is_true(node: ast.AST | None) -> bool:
    """True for a constant that is always true."""
    return isinstance(node, ast.Constant) and bool(node.value)
