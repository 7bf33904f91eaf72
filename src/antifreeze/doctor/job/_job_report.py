"""The report on a job: as text, as values for JSON, and with its evidence in a folder, to be read on other machines."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from antifreeze.core import PrivateFolder, clean_block, one_line, read_regular, redact
from antifreeze.doctor._terminal import Paper, clean_values, map_texts
from antifreeze.doctor.job._diagnosis import Diagnosis, Suspect, Verdict
from antifreeze.doctor.job._fix import Fix
from antifreeze.doctor.job._observation import Observation, from_values, to_values

_MAX_SUSPECTS = 4
_MAX_NAME_CHARS, _MAX_DIFF_CHARS = 5_000, 200_000
_SEEN, _FIXES, _TEXT = "seen.json", "fixes.json", "diagnosis.txt"
_MAX_NBYTES = 64 << 20


def as_text(diagnosis: Diagnosis, fixes: tuple[Fix, ...], paper: Paper) -> str:
    """Return the verdict and its summary, then the evidence, then what to do."""
    shade = {Verdict.STUCK: paper.red, Verdict.SLOW: paper.yellow, Verdict.HEALTHY: paper.green}[diagnosis.verdict]
    head = paper.wrap(f"{diagnosis.verdict.value.upper()}: {diagnosis.summary}")
    parts = [head.replace(diagnosis.verdict.value.upper(), shade(diagnosis.verdict.value.upper()), 1)]
    if diagnosis.suspects:
        first = diagnosis.suspects[0]
        lines = "".join(paper.wrap(line, "  - ", "    ") for line in first.finding.evidence_lines)
        cause = f"{paper.bold('cause')}     {first.cause.value} ({first.confidence.value})"
        parts += [f"{cause}\n{paper.bold('evidence')}\n{lines}", _what_to_do(first, fixes, paper)]
    others = diagnosis.suspects[1:_MAX_SUSPECTS]
    if others:
        parts.append(paper.bold("also") + "\n" + "".join(_row(suspect, paper) for suspect in others))
        left = len(diagnosis.suspects) - 1 - len(others)
        if left:
            parts[-1] += f"  and {left} more: --json has all of them\n"
    if diagnosis.notes:
        parts.append(paper.bold("seen") + "\n" + "".join(paper.wrap(note, "  ", "    ") for note in diagnosis.notes))
    return "\n".join(parts)


def _what_to_do(suspect: Suspect, fixes: tuple[Fix, ...], paper: Paper) -> str:
    text = paper.bold("what to do") + "\n" + paper.wrap(suspect.cause.hint, "  ", "  ")
    for fix in fixes:
        text += "\n" + paper.wrap(fix.words, "  ", "  ")
        if fix.command:
            text += f"    {paper.bold(one_line(fix.command))}\n"
        # A diff that is wrapped or indented cannot be applied.
        text += "".join(_coloured(line, paper) for line in clean_block(fix.diff).splitlines(keepends=True))
    return f"{text}\n  {paper.dim(suspect.link)}\n"


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
                "frames": [asdict(frame) for frame in suspect.frames],
                "hint": suspect.cause.hint,
                "link": suspect.link,
            }
            for suspect in diagnosis.suspects
        ],
        "fixes": [asdict(fix) for fix in fixes],
        "notes": list(diagnosis.notes),
    }
    cleaned: dict[str, Any] = clean_values(values)
    return cleaned


class CannotRead(Exception):
    """The folder does not contain the evidence of a job."""


def keep(folder: Path, seen: Observation, fixes: tuple[Fix, ...], text: str) -> Path:
    """Write the evidence to a new, private folder and return it: ``folder``, or ``folder-RANDOM`` if that exists."""
    rows = [asdict(fix) for fix in fixes]
    with PrivateFolder(folder) as created:
        created.write(_SEEN, _redacted(to_values(seen), _MAX_NAME_CHARS))
        created.write(_FIXES, _redacted(rows, _MAX_DIFF_CHARS))
        created.write(_TEXT, text.encode())
        return created.path


def _redacted(values: Any, max_chars: int) -> bytes:
    """Return values as JSON without what looks like a secret; texts have at most ``max_chars`` characters."""
    return json.dumps(map_texts(values, lambda text: redact(text[:max_chars])), indent=1).encode()


def read(folder: Path) -> tuple[Observation, tuple[Fix, ...]]:
    """Return the observation and the diffs: the files that they change may not be here."""
    path = folder / _SEEN if folder.is_dir() else folder
    try:
        return from_values(_json(path)), _fixes(path.with_name(_FIXES))
    except ValueError as error:
        raise CannotRead(f"{path}: {error}") from error


def _fixes(path: Path) -> tuple[Fix, ...]:
    rows = _json(path)
    try:
        fixes = tuple(Fix(**row) for row in rows)
    except TypeError as error:
        raise CannotRead(f"{path}: not a list of fixes ({error})") from error
    if not all(isinstance(part, str) for fix in fixes for part in (fix.words, fix.diff, fix.command)):
        raise CannotRead(f"{path}: not a list of fixes: expected text in every field")
    return fixes


def _json(path: Path) -> Any:
    try:
        return json.loads(read_regular(path, _MAX_NBYTES).decode())
    except FileNotFoundError as error:
        raise CannotRead(f"{path} does not exist: pass a folder that `--keep` or `doctor run` wrote") from error
    except OSError as error:
        raise CannotRead(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise CannotRead(f"{path} cannot be read: {error}") from error
