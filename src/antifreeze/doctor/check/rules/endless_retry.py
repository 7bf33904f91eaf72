"""``endless-retry``: a loop that tries again until it works."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from antifreeze.doctor.check._rule import ScriptContext, Violation, Weight, rule
from antifreeze.doctor.check._script import Script, in_scope, targets_of

_BOUNDED = """\
+ for attempt in range(5):
      try: ...
      except OSError:
+         if attempt == 4:
+             raise"""


@rule("endless-retry", Weight.FREEZE, "When a file is gone or a server is down, it never ends.", section="retrying")
def endless_retry(context: ScriptContext) -> Iterator[Violation]:
    """Find loops that retry until they succeed, however long that takes."""
    for function in (f for dataset in context.datasets for f in dataset.per_sample):
        for loop in in_scope(function):
            if not isinstance(loop, ast.While | ast.For):
                continue
            if _is_unbounded(loop, context.script) and _retries_until_success(loop):
                yield Violation(loop, "this loop retries without a limit.", _BOUNDED)


def _is_unbounded(loop: ast.While | ast.For, script: Script) -> bool:
    """True if nothing but success ends the loop."""
    if isinstance(loop, ast.For):
        return isinstance(loop.iter, ast.Call) and script.name(loop.iter.func) == "itertools.count"
    if any(isinstance(node, ast.Call) for node in ast.walk(loop.test)):
        return False  # it checks a clock or some other state
    names = {node.id for node in ast.walk(loop.test) if isinstance(node, ast.Name)}
    return not names & set(_changed_after_failure(loop))


def _changed_after_failure(loop: ast.While) -> Iterator[str]:
    """Yield the variables that change although the attempt failed, such as a counter."""
    todo: list[ast.AST] = [*loop.body, *loop.orelse]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        yield from (target.id for target, _ in targets_of(node) if isinstance(target, ast.Name))
        todo += [*node.handlers, *node.finalbody] if isinstance(node, ast.Try) else list(ast.iter_child_nodes(node))


def _retries_until_success(loop: ast.While | ast.For) -> bool:
    """True if an error leads to another round, and only success leads out."""
    inside = [node for statement in loop.body for node in (statement, *in_scope(statement))]
    tries = [statement for statement in loop.body if isinstance(statement, ast.Try)]
    handlers = [handler for t in tries for handler in t.handlers]
    if not handlers or any(isinstance(node, ast.Yield | ast.YieldFrom) for node in inside):
        return False  # a generator that skips bad input
    if any("StopIteration" in ast.unparse(h.type) for h in handlers if h.type is not None):
        return False  # an input that starts over at its end
    attempts = {id(node) for t in tries for s in (*t.body, *t.orelse) for node in (s, *in_scope(s))}
    outside = [node for node in inside if id(node) not in attempts]
    if any(isinstance(node, ast.Raise) for node in outside):
        return False
    guarded = {id(n) for s in loop.body if isinstance(s, ast.If) for n in in_scope(s)}
    guarded |= {id(n) for h in handlers for n in in_scope(h)}
    if any(isinstance(node, ast.Return | ast.Break) and id(node) in guarded for node in outside):
        return False  # it can give up
    by_condition = isinstance(loop, ast.While) and not isinstance(loop.test, ast.Constant)
    return by_condition or any(isinstance(node, ast.Return | ast.Break) for node in inside)
