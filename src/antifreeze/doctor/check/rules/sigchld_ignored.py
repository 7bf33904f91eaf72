"""``sigchld-ignored``: the trainer ignores SIGCHLD, by its own code or by inheritance."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from antifreeze.doctor.check._rule import MachineContext, ScriptContext, Violation, Weight, rule
from antifreeze.doctor.check._script import calls_in

_CODE = "sigchld-ignored"
_EXPLANATION = "No loader is notified that a worker was killed: it waits forever."


@rule(_CODE, Weight.FREEZE, _EXPLANATION, section="unnoticed-death")
def in_script(context: ScriptContext) -> Iterator[Violation]:
    """Find scripts that ignore the end of their child processes."""
    script = context.script
    if not any(loader.has_workers and not loader.is_ours for loader in context.loaders):
        return
    for call in calls_in(ast.walk(script.tree)):
        names = [script.name(argument) for argument in call.args]
        if script.name(call.func) == "signal.signal" and names == ["signal.SIGCHLD", "signal.SIG_IGN"]:
            yield Violation(call, "the script ignores SIGCHLD.", f"- {ast.unparse(call)}")


@rule(_CODE, Weight.FREEZE, _EXPLANATION, section="unnoticed-death")
def inherited(context: MachineContext) -> Iterator[Violation]:
    """Find a shell or launcher that ignores SIGCHLD: jobs inherit that."""
    if context.facts.sigchld_ignored and context.loaders != []:
        change = "start the job from a shell that does not ignore it"
        yield Violation(None, "SIGCHLD is ignored here, and jobs inherit that.", change)
