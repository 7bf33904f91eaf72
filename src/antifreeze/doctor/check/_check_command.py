"""The command ``antifreeze doctor check [script.py ...]``: what it runs, and what it prints."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from antifreeze.core import clean_block, clean_lines, one_line
from antifreeze.doctor._terminal import Paper, clean_values, paper_of
from antifreeze.doctor.check._facts import Facts, read_facts
from antifreeze.doctor.check._loaders import Loader, find_datasets, find_loaders
from antifreeze.doctor.check._rule import CheckFinding, MachineContext, ScriptContext, Weight, by_weight
from antifreeze.doctor.check._script import CannotCheck, Script, is_silenced, parse, read_text
from antifreeze.doctor.check.rules import MACHINE_RULES, SCRIPT_RULES

NOTHING, FOUND, COULD_NOT = 0, 1, 2
"""The exit codes."""
MAX_FINDINGS = 6
"""More findings are printed only when asked for."""


def main(arguments: list[str]) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="antifreeze doctor check",
        description="Find what on this machine and in these scripts will freeze or slow down a data loader. "
        "Scripts are read, never run.",
        epilog="Exit codes: 0 nothing found, 1 something found, 2 something could not be checked. "
        "A line that ends with `# antifreeze: ok` is skipped.",
    )
    parser.add_argument("scripts", nargs="*", metavar="script.py", help="training scripts; none: only the machine")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--all", action="store_true", help="print all findings, not only the most important")
    options = parser.parse_intermixed_args(arguments)
    facts = read_facts()
    findings, errors = check(options.scripts, facts)
    remarks = notes(facts)
    if options.json:
        print(as_json(findings, remarks, errors))
    else:
        for error in errors:
            print(f"could not check {one_line(error)}", file=sys.stderr)
        print(as_text(findings, remarks, paper_of(sys.stdout), everything=options.all), end="")
        if not findings and not errors:
            print(f"nothing found: {', '.join([*clean_lines(options.scripts), 'this machine'])}")
    return COULD_NOT if errors else FOUND if findings else NOTHING


def check(files: Sequence[str], facts: Facts) -> tuple[list[CheckFinding], list[str]]:
    """Return the findings in scripts and on this machine, and why scripts could not be checked."""
    findings: list[CheckFinding] = []
    errors: list[str] = []
    loaders: list[Loader] = []
    for file in files:
        try:
            text = read_text(file)
            found, made = check_script(parse(file, text), text, facts)
        except CannotCheck as error:
            errors.append(str(error))
            continue
        findings += found
        loaders += made
    # Without a loader, it is unknown what the machine is for, and it is checked for the usual needs.
    return by_weight([*findings, *check_machine(facts, loaders or None)]), errors


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


def notes(facts: Facts) -> list[str]:
    """Return what is good to know and not a finding."""
    if not facts.ptrace_scope or facts.is_root:
        return []
    scope = f"ptrace_scope is {facts.ptrace_scope}"
    if facts.ptrace_scope > 1:
        return [f"{scope}: `antifreeze doctor` can inspect no process without sudo."]
    only_children = f"{scope}: `antifreeze doctor PID` can inspect only its own children without sudo."
    return [f"{only_children} `antifreeze doctor run -- python train.py` works."]


def as_text(findings: Sequence[CheckFinding], notes: Sequence[str], paper: Paper, *, everything: bool) -> str:
    """Return the findings, the most important first, wrapped to the terminal's width."""
    shown = findings if everything else findings[:MAX_FINDINGS]
    blocks = [_block(finding, paper) for finding in shown]
    left = len(findings) - len(shown)
    if left:
        blocks.append(f"{left} more: --all shows {'it' if left == 1 else 'them'}.\n")
    blocks += [paper.wrap(f"note: {note}", "", "  ") for note in notes]
    return "\n".join(blocks)


def _block(finding: CheckFinding, paper: Paper) -> str:
    strong = paper.red if finding.rule.weight is Weight.FREEZE else paper.bold
    head = f"{paper.bold(one_line(finding.place))}: {strong(finding.code)} ({finding.rule.weight.consequence})\n"
    # Lines of code are left as they are: a diff that was wrapped cannot be applied.
    change = "".join(f"    {line}\n" for line in clean_block(finding.change).split("\n") if finding.change)
    return f"{head}{paper.wrap(finding.reason, '  ', '  ')}{change}  {paper.dim(finding.link)}\n"


def as_json(findings: Sequence[CheckFinding], notes: Sequence[str], errors: Sequence[str]) -> str:
    """Return everything as one JSON object. Its keys are a promise."""
    rows = [
        {
            "code": finding.code,
            "weight": finding.rule.weight.name.lower(),
            "file": finding.file,
            "line": finding.line,
            "column": finding.column,
            "reason": finding.reason,
            "change": finding.change,
            "link": finding.link,
        }
        for finding in findings
    ]
    return json.dumps(clean_values({"findings": rows, "notes": list(notes), "errors": list(errors)}), indent=2)
