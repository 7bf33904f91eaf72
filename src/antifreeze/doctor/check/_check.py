"""Runs the registered rules over a script or over the facts of a machine."""

from __future__ import annotations

from collections.abc import Sequence

from antifreeze.doctor.check._datasets import find_datasets
from antifreeze.doctor.check._facts import Facts
from antifreeze.doctor.check._loaders import Loader, find_loaders
from antifreeze.doctor.check._rule import CheckFinding, MachineContext, ScriptContext
from antifreeze.doctor.check._script import CannotCheck, Script, is_silenced
from antifreeze.doctor.check.rules import MACHINE_RULES, SCRIPT_RULES


def check_script(script: Script, text: str, facts: Facts) -> tuple[list[CheckFinding], list[Loader]]:
    """Return the findings in a script, one for each code and place, and the script's loaders."""
    lines = text.splitlines()
    found: dict[tuple[str, int, int], CheckFinding] = {}
    try:
        loaders = find_loaders(script, facts)
        context = ScriptContext(script, facts, loaders, find_datasets(script, loaders))
        for rule in SCRIPT_RULES:
            for finding in rule.findings(context, script.file):
                found.setdefault((finding.code, finding.line, finding.column), finding)
    except RecursionError as error:
        raise CannotCheck(f"{script.file}: an expression is nested too deeply") from error
    kept = [f for f in found.values() if not (0 < f.line <= len(lines) and is_silenced(lines[f.line - 1]))]
    return kept, loaders


def check_machine(facts: Facts, loaders: Sequence[Loader] | None = None) -> list[CheckFinding]:
    """Return the findings about a machine for the loaders that will run there; None: it is not known which will."""
    of_torch = None if loaders is None else [x for x in loaders if x.has_workers and not x.is_ours]
    context = MachineContext(facts, of_torch)
    return [finding for rule in MACHINE_RULES for finding in rule.findings(context)]
