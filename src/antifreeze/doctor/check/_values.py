"""Numbers and texts that can be known without running the script."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable

from antifreeze.doctor.check._facts import Facts
from antifreeze.doctor.check._script import Script

_MAX_DEPTH = 12
_MAX_OPERAND = 1 << 62
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}
_ALL_CORES = {"os.cpu_count", "multiprocessing.cpu_count", "torch.multiprocessing.cpu_count", "psutil.cpu_count"}


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
