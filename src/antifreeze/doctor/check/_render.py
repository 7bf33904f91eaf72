"""What was found, as text for a person under stress, or as JSON for a program."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence

from antifreeze.doctor.check._finding import Finding

MOST = 6
"""More than these nobody reads at once."""
_BOLD, _RED, _DIM, _END = "\x1b[1m", "\x1b[31m", "\x1b[2m", "\x1b[0m"


def as_text(findings: Sequence[Finding], notes: Sequence[str], *, width: int, colour: bool, everything: bool) -> str:
    """Return the findings, the most important first, wrapped to the width of the terminal."""
    shown = findings if everything else findings[:MOST]
    blocks = [_block(finding, width, colour) for finding in shown]
    left = len(findings) - len(shown)
    if left:
        blocks.append(f"{left} more: --all shows {'it' if left == 1 else 'them'}.\n")
    blocks += [_wrap(f"note: {note}", width, "", "  ") for note in notes]
    return "\n".join(blocks)


def _block(finding: Finding, width: int, colour: bool) -> str:
    bold, red, dim, end = (_BOLD, _RED, _DIM, _END) if colour else ("", "", "", "")
    strong = red if finding.code.weight == 0 else bold
    head = f"{bold}{finding.place}{end}: {strong}{finding.code.value}{end} ({finding.code.weight.words})\n"
    # Lines of code are left as they are: a diff that was wrapped cannot be applied.
    change = "".join(f"    {line}\n" for line in finding.change.splitlines())
    return f"{head}{_wrap(finding.reason, width, '  ', '  ')}{change}  {dim}{finding.link}{end}\n"


def _wrap(text: str, width: int, first: str, others: str) -> str:
    wrapper = textwrap.TextWrapper(width, first, others, break_long_words=False, break_on_hyphens=False)
    return wrapper.fill(text) + "\n"


def as_json(findings: Sequence[Finding], notes: Sequence[str], errors: Sequence[str]) -> str:
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
    return json.dumps({"findings": rows, "notes": list(notes), "errors": list(errors)}, indent=2)
