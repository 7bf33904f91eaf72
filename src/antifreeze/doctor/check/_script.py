"""A script as its syntax tree, with what every rule needs to know about it. It is never imported and never run."""

from __future__ import annotations

import ast
import io
import tokenize
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from antifreeze.core import read_regular

Function = ast.FunctionDef | ast.AsyncFunctionDef
# No script that a person wrote is as large.
_MAX_NBYTES = 8 << 20
EXITS = {"sys.exit", "os._exit", "exit", "quit", "os.abort"}
"""What ends the process."""
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


class CannotCheck(Exception):
    """The script cannot be read, or is not valid Python of this version."""


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

    def name(self, node: ast.AST) -> str:
        """Return the full name of a node; see ``dotted``."""
        return dotted(node, self.imports)

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the nodes around a node, from the inside to the outside."""
        while (parent := self.parents.get(node)) is not None:
            yield parent
            node = parent

    def function_of(self, node: ast.AST) -> ast.AST:
        """Return the innermost function around a node, or the module."""
        return next((n for n in self.above(node) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)), self.tree)

    def is_local(self, node: ast.AST) -> bool:
        """True if it is defined inside a function, so that pickle cannot find it by its name."""
        return self.function_of(node) is not self.tree


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
    for node in ast.walk(tree):
        for child in ast.iter_child_nodes(node):
            script.parents[child] = node
        if isinstance(node, ast.ClassDef):
            script.classes.setdefault(node.name, node)
        for target, value in targets_of(node):
            if isinstance(target, ast.Name):
                script.values.setdefault(target.id, []).append(value)
    mark_self(tree, script.parents)
    for node in in_scope(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            script.functions[node.name] = node
    return script


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


def dotted(node: ast.AST, imports: Mapping[str, str]) -> str:
    """Return the full name of ``a.b.c`` with imports resolved, or nothing if it is no plain name.

    A name that is not imported is returned as it is: a builtin, or something of this file.
    """
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    parts.append(imports.get(node.id, node.id))
    return ".".join(reversed(parts))


_MARK = "of_own_object"


def mark_self(tree: ast.AST, parents: Mapping[ast.AST, ast.AST]) -> None:
    """Mark every attribute of a method's first parameter, whatever that is called, for ``self_attribute``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            vars(node)[_MARK] = is_self(node.value, parents)


def is_self(name: ast.Name, parents: Mapping[ast.AST, ast.AST]) -> bool:
    """True if a name is the first parameter of the method around it; nested functions see it, too."""
    node = parents.get(name)
    while node is not None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and name.id in parameters(node):
            return isinstance(parents.get(node), ast.ClassDef) and self_name(node) == name.id
        node = parents.get(node)
    return False


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> list[str]:
    """Return the names of a function's parameters, those that can be given by position first."""
    given = function.args
    rest = [argument for argument in (given.vararg, given.kwarg) if argument is not None]
    return [argument.arg for argument in (*given.posonlyargs, *given.args, *given.kwonlyargs, *rest)]


def self_name(function: ast.AST) -> str:
    """Return the name of a method's own object; nothing for a static method."""
    if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
        return ""
    given = [*function.args.posonlyargs, *function.args.args]
    static = any(dotted(decorator, {}) == "staticmethod" for decorator in function.decorator_list)
    return given[0].arg if given and not static else ""


def self_attribute(node: ast.AST) -> str:
    """Return the name of ``self.name``, or nothing. ``mark_self`` found out what is called ``self``."""
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
    wanted, values = ast.dump(_load(node)), []
    for statement in ast.walk(function):
        for target, value in targets_of(statement):
            if value.lineno < node.lineno and ast.dump(_load(target)) == wanted:
                values.append(value)
    return sorted(values, key=lambda v: v.lineno)[-1:]


def _load(node: ast.expr) -> ast.expr:
    """Return a name or attribute as if it was read, so that a target can be compared with a use."""
    if isinstance(node, ast.Name):
        return ast.Name(node.id, ast.Load())
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return ast.Attribute(ast.Name(node.value.id, ast.Load()), node.attr, ast.Load())
    return ast.Constant(None)


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
