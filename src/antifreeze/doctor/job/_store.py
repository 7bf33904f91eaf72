"""A folder with all that was seen of a job and what was said of it, to be read later and elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from antifreeze.doctor.job._fix import Fix
from antifreeze.doctor.job._seen import Observation, from_values, to_values

_SEEN, _FIXES, _TEXT = "seen.json", "fixes.json", "diagnosis.txt"


class CannotRead(Exception):
    """The folder does not hold what was seen of a job."""


def keep(folder: Path, seen: Observation, fixes: tuple[Fix, ...], text: str) -> None:
    """Write everything into a folder, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _SEEN).write_text(json.dumps(to_values(seen), indent=1))
    rows = [{"words": fix.words, "diff": fix.diff, "command": fix.command} for fix in fixes]
    (folder / _FIXES).write_text(json.dumps(rows, indent=1))
    (folder / _TEXT).write_text(text)


def read(folder: Path) -> tuple[Observation, tuple[Fix, ...]]:
    """Return what was kept: the diffs, too, for the files that they change are not here."""
    path = folder / _SEEN if folder.is_dir() else folder
    seen = _json(path)
    fixes = _json(path.with_name(_FIXES))
    try:
        return from_values(seen), tuple(Fix(**row) for row in fixes)
    except (ValueError, TypeError) as error:
        raise CannotRead(f"{path}: {error}") from error


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError as error:
        raise CannotRead(f"{path} does not exist: give a folder that `--keep` or `doctor run` has written") from error
    except (OSError, ValueError) as error:
        raise CannotRead(f"{path} cannot be read: {error}") from error
