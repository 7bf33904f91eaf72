"""``no-timeout``: a network call that can wait forever."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from antifreeze.doctor.check._rule import ScriptContext, Violation, Weight, rule
from antifreeze.doctor.check._script import Function, Script, calls_in, keyword, self_attribute

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
