"""``no-timeout``, ``endless-retry``, ``sigchld-ignored``: code that waits forever for what may never happen."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from antifreeze.doctor.check._rule import MachineContext, ScriptContext, Violation, Weight, rule
from antifreeze.doctor.check._script import Function, Script, calls_in, in_scope, keyword, self_attribute, targets_of

_VERBS = {"get", "post", "put", "head", "delete", "patch", "options", "request"}
_SESSIONS = {"requests.Session", "requests.session"}
_TIMEOUT_POSITIONS = {
    "urllib.request.urlopen": 2,
    "socket.create_connection": 1,
    "http.client.HTTPConnection": 2,
    "http.client.HTTPSConnection": -1,
    "urllib.request.urlretrieve": -1,
    "socket.socket": -1,
}
"""Calls of the standard library that wait for ``socket.getdefaulttimeout()``, by default forever."""
_CHANGES = {
    "socket.socket": "+ sock.settimeout(30)",
    "urllib.request.urlretrieve": "+ socket.setdefaulttimeout(30)  # urlretrieve itself takes none",
}
_BOUNDED = """\
+ for attempt in range(5):
      try: ...
      except OSError:
+         if attempt == 4:
+             raise"""
_SIGCHLD = "sigchld-ignored"
_UNNOTICED = "No loader is notified that a worker was killed: it waits forever."


@rule("no-timeout", Weight.FREEZE, "If the other side does not answer, the worker waits forever.", section="network")
def no_timeout(context: ScriptContext) -> Iterator[Violation]:
    """Find network calls without a timeout."""
    script = context.script
    has_default = any(script.name(c.func) == "socket.setdefaulttimeout" for c in calls_in(ast.walk(script.tree)))
    for dataset in context.datasets:
        made = {name: value for name, (value, _) in dataset.initial_values().items() if isinstance(value, ast.Call)}
        sessions = {name for name, call in made.items() if script.name(call.func) in _SESSIONS}
        for function in dataset.per_sample:
            for call in calls_in(ast.walk(function)):
                if name := _unlimited_call(call, script, sessions, function, has_default):
                    change = _CHANGES.get(name, f"+ {name}(..., timeout=30)")
                    yield Violation(call, f"{name} has no timeout.", change)


def _unlimited_call(call: ast.Call, script: Script, sessions: set[str], function: Function, has_default: bool) -> str:
    """Return the name of a network call that has no timeout, or nothing."""
    if any(argument.arg in ("timeout", None) for argument in call.keywords):
        return ""
    name = script.name(call.func)
    module, _, verb = name.rpartition(".")
    if module == "requests" and verb in _VERBS:
        return name
    is_of_session = isinstance(call.func, ast.Attribute) and self_attribute(call.func.value) in sessions
    if is_of_session and verb in _VERBS:
        return ast.unparse(call.func)
    if name not in _TIMEOUT_POSITIONS or has_default or keyword(call, "timeout", _TIMEOUT_POSITIONS[name]) is not None:
        return ""
    if name in ("socket.socket", "socket.create_connection"):
        limits = (node for node in ast.walk(function) if isinstance(node, ast.Attribute))
        return "" if any(node.attr in ("settimeout", "setblocking") for node in limits) else name
    return name


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


@rule(_SIGCHLD, Weight.FREEZE, _UNNOTICED, section="unnoticed-death")
def sigchld_ignored(context: ScriptContext) -> Iterator[Violation]:
    """Find scripts that ignore the end of their child processes."""
    script = context.script
    if not any(loader.has_workers and not loader.is_ours for loader in context.loaders):
        return
    for call in calls_in(ast.walk(script.tree)):
        names = [script.name(argument) for argument in call.args]
        if script.name(call.func) == "signal.signal" and names == ["signal.SIGCHLD", "signal.SIG_IGN"]:
            yield Violation(call, "the script ignores SIGCHLD.", f"- {ast.unparse(call)}")


@rule(_SIGCHLD, Weight.FREEZE, _UNNOTICED, section="unnoticed-death")
def sigchld_inherited(context: MachineContext) -> Iterator[Violation]:
    """Find a shell or launcher that ignores SIGCHLD: jobs inherit that."""
    if context.facts.sigchld_ignored and context.loaders != []:
        change = "start the job from a shell that does not ignore it"
        yield Violation(None, "SIGCHLD is ignored here, and jobs inherit that.", change)
