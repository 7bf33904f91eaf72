"""A script as its syntax tree, with what every rule needs to know of it. It is never imported and never run."""

from __future__ import annotations

import ast
import io
import tokenize
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field

from antifreeze.core import read_regular
from antifreeze.doctor.check._finding import CheckFinding, Code
from antifreeze.doctor.check._names import dotted, imports_of, mark_self, targets_of

Function = ast.FunctionDef | ast.AsyncFunctionDef
# No script that a person has written is as large.
_MAX_NBYTES = 8 << 20
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


class CannotCheck(Exception):
    """The script cannot be read or is no Python of this version."""


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
        """Return the full name of what stands there; see ``dotted``."""
        return dotted(node, self.imports)

    def finding(self, code: Code, node: ast.AST, reason: str, change: str) -> CheckFinding:
        """Return a finding at the place of a node."""
        line, column = getattr(node, "lineno", 0), getattr(node, "col_offset", 0)
        return CheckFinding(code=code, file=self.file, line=line, column=column + 1, reason=reason, change=change)

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """Give the nodes around a node, from the inside to the outside."""
        while (parent := self.parents.get(node)) is not None:
            yield parent
            node = parent

    def function_of(self, node: ast.AST) -> ast.AST:
        """Return the innermost function around a node, or the module."""
        return next((n for n in self.above(node) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)), self.tree)

    def is_local(self, node: ast.AST) -> bool:
        """Whether it is defined inside a function, so that pickle cannot find it by its name."""
        return self.function_of(node) is not self.tree


def parse(file: str, text: str) -> Script:
    """Return the script, or raise ``CannotCheck`` with the line that is no Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes and the like are not ours to report
            tree = ast.parse(text, filename=file)
    except SyntaxError as error:
        raise CannotCheck(f"{file}:{error.lineno or 0}: this is no valid Python: {error.msg}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise CannotCheck(f"{file}: this cannot be parsed: {error or type(error).__name__}") from error
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
    """Read a script from a file, in the encoding that it names."""
    try:
        data = io.BytesIO(read_regular(file, _MAX_NBYTES))
        encoding, _ = tokenize.detect_encoding(data.readline)
        data.seek(0)
        return io.TextIOWrapper(data, encoding).read()
    except FileNotFoundError as error:
        raise CannotCheck(f"{file}: there is no such file") from error
    except OSError as error:
        raise CannotCheck(f"{file}: this cannot be read: {error.strerror or error}") from error
    except (SyntaxError, UnicodeDecodeError) as error:
        raise CannotCheck(f"{file}: this is no text in the encoding that it names: {error}") from error


def silenced(text_line: str) -> bool:
    """Whether a line says that it is meant as it is."""
    _, mark, comment = text_line.partition("#")
    return bool(mark) and "antifreeze: ok" in comment


def in_scope(node: ast.AST) -> Iterator[ast.AST]:
    """Give what stands in a function, class or module, but not what stands in functions and classes inside of it."""
    todo = list(ast.iter_child_nodes(node))[::-1]
    while todo:
        child = todo.pop()
        yield child
        if not isinstance(child, _SCOPES):
            todo += list(ast.iter_child_nodes(child))[::-1]


def calls_in(nodes: Iterator[ast.AST]) -> Iterator[ast.Call]:
    """Give the calls among nodes."""
    return (node for node in nodes if isinstance(node, ast.Call))


def keyword(call: ast.Call, name: str, position: int = -1) -> ast.expr | None:
    """Return an argument of a call by its name or position."""
    for argument in call.keywords:
        if argument.arg == name:
            return argument.value
    return call.args[position] if 0 <= position < len(call.args) else None


def is_generator(function: ast.AST) -> bool:
    """Whether calling it gives an iterator that runs its body."""
    if not isinstance(function, ast.FunctionDef) or function.decorator_list:
        return False
    return any(isinstance(node, ast.Yield | ast.YieldFrom) for node in in_scope(function))


def code_line(node: ast.AST) -> str:
    """Return a node as one line of code, for a diff."""
    text = ast.unparse(node)
    return text if len(text) <= 70 and "\n" not in text else text.splitlines()[0][:67] + "..."
