"""``tokenizers-parallelism``: the switch that disables the tokenizers' own guard against forks."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from antifreeze.doctor.check._rule import Rule, ScriptContext, Violation, Weight
from antifreeze.doctor.check._script import Script, keyword
from antifreeze.doctor.check._values import text

_SWITCH = "TOKENIZERS_PARALLELISM"
_ON = ("true", "1", "on", "yes")


def check(context: ScriptContext) -> Iterator[Violation]:
    """Find the switch in the script or in the environment."""
    script = context.script
    modules = {name.partition(".")[0] for name in script.imports.values()}
    if not modules & {"tokenizers", "transformers"}:
        return
    here = [node for node in ast.walk(script.tree) if _is_switched_on(node, script)]
    in_environment = context.facts.environment.get(_SWITCH, "").lower() in _ON
    for loader in context.forking_loaders:
        if here or in_environment:
            change = f"export {_SWITCH}=false"
            yield Violation(here[0] if here else loader.call, f"{_SWITCH} is on.", change)


def _is_switched_on(node: ast.AST, script: Script) -> bool:
    """True for ``os.environ[...] = "true"``, ``setdefault``, ``update`` and ``putenv`` of the switch."""
    pairs: list[tuple[ast.expr | None, ast.expr | None]] = []
    if isinstance(node, ast.Assign):
        subscripts = [target for target in node.targets if isinstance(target, ast.Subscript)]
        pairs = [(s.slice, node.value) for s in subscripts if script.name(s.value) == "os.environ"]
    elif isinstance(node, ast.Call) and script.name(node.func) in ("os.environ.setdefault", "os.putenv"):
        pairs = [(keyword(node, "key", 0), keyword(node, "value", 1))]
    elif isinstance(node, ast.Call) and script.name(node.func) == "os.environ.update":
        dicts = [argument for argument in node.args if isinstance(argument, ast.Dict)]
        pairs = [pair for given in dicts for pair in zip(given.keys, given.values, strict=True)]
        pairs += [(ast.Constant(k.arg), k.value) for k in node.keywords]
    on = [key for key, value in pairs if (text(value, script) or "").lower() in _ON]
    return any(text(key, script) == _SWITCH for key in on)


RULE = Rule(
    code="tokenizers-parallelism",
    weight=Weight.FREEZE,
    section="fork",
    explanation="A tokenizer that was used in the trainer then waits forever in a forked worker.",
    check=check,
)
