"""Renders a diagnosis as text, or as values for JSON."""

from __future__ import annotations

from typing import Any

from antifreeze.core import clean_block, one_line
from antifreeze.doctor._terminal import Paper, clean_values
from antifreeze.doctor.job._diagnosis import Diagnosis, Suspect, Verdict
from antifreeze.doctor.job._fix import Fix

_MAX_SUSPECTS = 4


def as_text(diagnosis: Diagnosis, fixes: tuple[Fix, ...], paper: Paper) -> str:
    """Return the verdict and its summary, then the evidence, then what to do."""
    shade = {Verdict.STUCK: paper.red, Verdict.SLOW: paper.yellow, Verdict.HEALTHY: paper.green}[diagnosis.verdict]
    head = paper.wrap(f"{diagnosis.verdict.value.upper()}: {diagnosis.summary}")
    parts = [head.replace(diagnosis.verdict.value.upper(), shade(diagnosis.verdict.value.upper()), 1)]
    if diagnosis.suspects:
        parts.append(_suspect(diagnosis.suspects[0], paper))
        parts.append(_what_to_do(diagnosis.suspects[0], fixes, paper))
    others = diagnosis.suspects[1:_MAX_SUSPECTS]
    if others:
        parts.append(paper.bold("also") + "\n" + "".join(_row(suspect, paper) for suspect in others))
        left = len(diagnosis.suspects) - 1 - len(others)
        if left:
            parts[-1] += f"  and {left} more: --json has all of them\n"
    if diagnosis.notes:
        parts.append(paper.bold("seen") + "\n" + "".join(paper.wrap(note, "  ", "    ") for note in diagnosis.notes))
    return "\n".join(parts)


def _suspect(suspect: Suspect, paper: Paper) -> str:
    lines = "".join(paper.wrap(line, "  - ", "    ") for line in suspect.finding.evidence_lines)
    head = f"{paper.bold('cause')}     {suspect.cause.value} ({suspect.confidence.value})\n"
    return f"{head}{paper.bold('evidence')}\n{lines}"


def _what_to_do(suspect: Suspect, fixes: tuple[Fix, ...], paper: Paper) -> str:
    text = paper.bold("what to do") + "\n" + paper.wrap(suspect.cause.hint, "  ", "  ")
    for fix in fixes:
        text += "\n" + paper.wrap(fix.words, "  ", "  ")
        if fix.command:
            text += f"    {paper.bold(one_line(fix.command))}\n"
        # A diff that is wrapped or indented cannot be applied.
        text += "".join(_coloured(line, paper) for line in _rows(fix.diff))
    return f"{text}\n  {paper.dim(suspect.link)}\n"


def _rows(diff: str) -> list[str]:
    """Return the lines of a diff without terminal control characters."""
    return clean_block(diff).splitlines(keepends=True)


def _coloured(line: str, paper: Paper) -> str:
    if not paper.colour or not line.startswith(("+", "-")):
        return line
    return (paper.green if line[0] == "+" else paper.red)(line.rstrip("\n")) + "\n"


def _row(suspect: Suspect, paper: Paper) -> str:
    place = f", at sample {suspect.sample}" if suspect.sample else ""
    place += f", at {suspect.frames[0]}" if suspect.frames else ""
    text = f"{suspect.name} {suspect.finding.title}{place} ({suspect.cause.value}, {suspect.confidence.value})"
    return paper.wrap(text, "  - ", "    ")


def as_values(diagnosis: Diagnosis, fixes: tuple[Fix, ...], pid: int) -> dict[str, Any]:
    """Return the diagnosis as JSON values. The keys are public."""
    values = {
        "pid": pid,
        "verdict": diagnosis.verdict.value,
        "summary": diagnosis.summary,
        "looked_s": round(diagnosis.looked_s, 3),
        "findings": [
            {
                "cause": suspect.cause.value,
                "confidence": suspect.confidence.value,
                "pid": suspect.pid,
                "name": suspect.name,
                "title": suspect.finding.title,
                "sample": suspect.sample,
                "still_s": round(suspect.still_s, 3),
                "evidence": list(suspect.finding.evidence_lines),
                "frames": [{"file": f.file, "line": f.line, "function": f.function} for f in suspect.frames],
                "hint": suspect.cause.hint,
                "link": suspect.link,
            }
            for suspect in diagnosis.suspects
        ],
        "fixes": [{"words": fix.words, "diff": fix.diff, "command": fix.command} for fix in fixes],
        "notes": list(diagnosis.notes),
    }
    cleaned: dict[str, Any] = clean_values(values)
    return cleaned
