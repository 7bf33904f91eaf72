"""What was found, as text for a person under stress, or as JSON for a program."""

from __future__ import annotations

import json
from collections.abc import Sequence

from antifreeze.core import clean_block, one_line
from antifreeze.doctor._terminal import Paper, clean_values
from antifreeze.doctor.check._finding import CheckFinding

MOST = 6
"""More than these nobody reads at once."""


def as_text(findings: Sequence[CheckFinding], notes: Sequence[str], paper: Paper, *, everything: bool) -> str:
    """Return the findings, the most important first, wrapped to the width of the terminal."""
    shown = findings if everything else findings[:MOST]
    blocks = [_block(finding, paper) for finding in shown]
    left = len(findings) - len(shown)
    if left:
        blocks.append(f"{left} more: --all shows {'it' if left == 1 else 'them'}.\n")
    blocks += [paper.wrap(f"note: {note}", "", "  ") for note in notes]
    return "\n".join(blocks)


def _block(finding: CheckFinding, paper: Paper) -> str:
    strong = paper.red if finding.code.weight == 0 else paper.bold
    head = f"{paper.bold(one_line(finding.place))}: {strong(finding.code.value)} ({finding.code.weight.words})\n"
    # Lines of code are left as they are: a diff that was wrapped cannot be applied.
    change = "".join(f"    {line}\n" for line in clean_block(finding.change).split("\n") if finding.change)
    return f"{head}{paper.wrap(finding.reason, '  ', '  ')}{change}  {paper.dim(finding.link)}\n"


def as_json(findings: Sequence[CheckFinding], notes: Sequence[str], errors: Sequence[str]) -> str:
    """Return everything as one JSON object. Its keys are a promise."""
    rows = [
        {
            "code": finding.code.value,
            "weight": finding.code.weight.name.lower(),
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
