"""Rules about code that can wait for ever while it makes a sample."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from antifreeze.doctor.check._carried import set_up
from antifreeze.doctor.check._datasets import DatasetClass
from antifreeze.doctor.check._finding import CheckFinding, Code
from antifreeze.doctor.check._names import self_attribute, targets_of
from antifreeze.doctor.check._script import Function, Script, calls_in, in_scope, keyword

_VERBS = {"get", "post", "put", "head", "delete", "patch", "options", "request"}
_SESSIONS = {"requests.Session", "requests.session"}
_TAKES_TIMEOUT = {
    "urllib.request.urlopen": 2,
    "socket.create_connection": 1,
    "http.client.HTTPConnection": 2,
    "http.client.HTTPSConnection": -1,
    "urllib.request.urlretrieve": -1,
    "socket.socket": -1,
}
"""Calls of the standard library that wait as long as ``socket.getdefaulttimeout()`` says: by default, for ever."""


_BOUNDED = """\
+ for attempt in range(5):
      try: ...
      except OSError:
+         if attempt == 4:
+             raise"""


def endless_retries(script: Script, dataset: DatasetClass) -> Iterator[CheckFinding]:
    """Find loops that try again until it works, however long that takes."""
    for function in dataset.per_sample:
        for loop in in_scope(function):
            if isinstance(loop, ast.While | ast.For) and _is_unbounded(loop, script) and _tries_until_it_works(loop):
                reason = (
                    "this loop tries again whatever happens: when a file is gone or a server is down, it never ends."
                )
                change = _BOUNDED
                yield script.finding(Code.ENDLESS_RETRY, loop, reason, change)


def _is_unbounded(loop: ast.While | ast.For, script: Script) -> bool:
    """Whether nothing but success ends the loop."""
    if isinstance(loop, ast.For):
        return isinstance(loop.iter, ast.Call) and script.name(loop.iter.func) == "itertools.count"
    if any(isinstance(node, ast.Call) for node in ast.walk(loop.test)):
        return False  # it looks at a clock, or asks somebody
    names = {node.id for node in ast.walk(loop.test) if isinstance(node, ast.Name)}
    return not names & set(_changed_outside_of_try(loop))


def _changed_outside_of_try(loop: ast.While) -> Iterator[str]:
    """Give the variables that change although the attempt has failed, such as a counter."""
    todo: list[ast.AST] = [*loop.body, *loop.orelse]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        yield from (target.id for target, _ in targets_of(node) if isinstance(target, ast.Name))
        todo += [*node.handlers, *node.finalbody] if isinstance(node, ast.Try) else list(ast.iter_child_nodes(node))


def _tries_until_it_works(loop: ast.While | ast.For) -> bool:
    """Whether an error leads to another round, and only success leads out."""
    inside = [node for statement in loop.body for node in (statement, *in_scope(statement))]
    tries = [statement for statement in loop.body if isinstance(statement, ast.Try)]
    handlers = [handler for t in tries for handler in t.handlers]
    if not handlers or any(isinstance(node, ast.Yield | ast.YieldFrom) for node in inside):
        return False  # a generator that goes through its input, and skips what is bad
    if any("StopIteration" in ast.unparse(h.type) for h in handlers if h.type is not None):
        return False  # an input that begins again at its end
    attempts = {id(node) for t in tries for s in (*t.body, *t.orelse) for node in (s, *in_scope(s))}
    outside = [node for node in inside if id(node) not in attempts]
    if any(isinstance(node, ast.Raise) for node in outside):
        return False
    guarded = {id(n) for s in loop.body if isinstance(s, ast.If) for n in in_scope(s)}
    guarded |= {id(n) for h in handlers for n in in_scope(h)}
    if any(isinstance(node, ast.Return | ast.Break) and id(node) in guarded for node in outside):
        return False  # it can give up
    leaving = ast.Return | ast.Break
    by_condition = isinstance(loop, ast.While) and not isinstance(loop.test, ast.Constant)
    return by_condition or any(isinstance(node, leaving) for node in inside)


def no_timeouts(script: Script, dataset: DatasetClass) -> Iterator[CheckFinding]:
    """Find network calls without a timeout."""
    names = {script.name(call.func) for call in calls_in(ast.walk(script.tree))}
    has_default = "socket.setdefaulttimeout" in names
    sessions = {
        name
        for name, (value, _) in set_up(dataset).items()
        if isinstance(value, ast.Call) and script.name(value.func) in _SESSIONS
    }
    for function in dataset.per_sample:
        for call in calls_in(ast.walk(function)):
            if name := _waits_for_ever(call, script, sessions, function, has_default):
                reason = f"{name} has no timeout: if the other side does not answer, the worker waits for ever."
                yield script.finding(Code.NO_TIMEOUT, call, reason, _TIMEOUTS.get(name, f"+ {name}(..., timeout=30)"))


_TIMEOUTS = {
    "socket.socket": "+ sock.settimeout(30)",
    "urllib.request.urlretrieve": "+ socket.setdefaulttimeout(30)  # urlretrieve itself takes none",
}


def _waits_for_ever(call: ast.Call, script: Script, sessions: set[str], function: Function, has_default: bool) -> str:
    """Return the name of a network call that has no timeout, or nothing."""
    if any(argument.arg in ("timeout", None) for argument in call.keywords):
        return ""
    name = script.name(call.func)
    module, _, verb = name.rpartition(".")
    if module == "requests" and verb in _VERBS:
        return name
    if isinstance(call.func, ast.Attribute) and verb_of_session(call.func, sessions):
        return ast.unparse(call.func)
    if name not in _TAKES_TIMEOUT or has_default or keyword(call, "timeout", _TAKES_TIMEOUT[name]) is not None:
        return ""
    if name in ("socket.socket", "socket.create_connection"):
        limits = (node for node in ast.walk(function) if isinstance(node, ast.Attribute))
        return "" if any(node.attr in ("settimeout", "setblocking") for node in limits) else name
    return name


def verb_of_session(function: ast.Attribute, sessions: set[str]) -> bool:
    """Whether it is a call of ``requests`` over a session of the dataset."""
    return function.attr in _VERBS and self_attribute(function.value) in sessions
