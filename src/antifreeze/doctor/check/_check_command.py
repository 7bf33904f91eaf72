"""The command ``antifreeze doctor check [script.py ...]``: what will bite, before it does."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from antifreeze.core import clean_lines, one_line
from antifreeze.doctor._terminal import paper_of
from antifreeze.doctor.check._check import check_script
from antifreeze.doctor.check._facts import Facts
from antifreeze.doctor.check._finding import CheckFinding, by_weight
from antifreeze.doctor.check._loaders import Loader
from antifreeze.doctor.check._machine import check_machine, notes
from antifreeze.doctor.check._read_facts import read_facts
from antifreeze.doctor.check._render_findings import as_json, as_text
from antifreeze.doctor.check._script import CannotCheck, parse, read_text

NOTHING, FOUND, COULD_NOT = 0, 1, 2
"""The exit codes."""


def main(arguments: list[str]) -> int:
    """Run the command and return its exit code."""
    options = _parser().parse_intermixed_args(arguments)
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
    """Check scripts and the machine that they would run on; return what was found, and what could not be checked."""
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
    # Without a loader to look at, nobody knows what the machine is for, and it is checked for the usual needs.
    return by_weight([*findings, *check_machine(facts, loaders or None)]), errors


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="antifreeze doctor check",
        description="Say what on this machine and in these scripts will freeze or slow down a data loader. Scripts are "
        "read, never run.",
        epilog="Exit codes: 0 nothing found, 1 something found, 2 something could not be checked. "
        "A line that ends with `# antifreeze: ok` is left alone.",
    )
    parser.add_argument("scripts", nargs="*", metavar="script.py", help="training scripts; none: only the machine")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--all", action="store_true", help="print all findings, not only the most important")
    return parser
