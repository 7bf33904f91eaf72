"""A folder with the evidence and the diagnosis of a job, to be read later and on other machines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from antifreeze.core import PrivateFolder, read_regular, redact
from antifreeze.doctor.job._fix import Fix
from antifreeze.doctor.job._observation import Observation, from_values, to_values

_MAX_NAME_CHARS, _MAX_DIFF_CHARS = 5_000, 200_000
_SEEN, _FIXES, _TEXT = "seen.json", "fixes.json", "diagnosis.txt"
_MAX_NBYTES = 64 << 20


class CannotRead(Exception):
    """The folder does not contain the evidence of a job."""


def keep(folder: Path, seen: Observation, fixes: tuple[Fix, ...], text: str) -> Path:
    """Write the evidence to a new, private folder and return it: ``folder``, or ``folder-RANDOM`` if that exists."""
    rows = [{"words": fix.words, "diff": fix.diff, "command": fix.command} for fix in fixes]
    with PrivateFolder(folder) as created:
        created.write(_SEEN, json.dumps(_redacted(to_values(seen), _MAX_NAME_CHARS), indent=1).encode())
        created.write(_FIXES, json.dumps(_redacted(rows, _MAX_DIFF_CHARS), indent=1).encode())
        created.write(_TEXT, text.encode())
        return created.path


def _redacted(values: Any, max_chars: int) -> Any:
    """Return values without what looks like a secret; texts have at most ``max_chars`` characters."""
    if isinstance(values, str):
        return redact(values[:max_chars])
    if isinstance(values, dict):
        return {name: _redacted(value, max_chars) for name, value in values.items()}
    return [_redacted(value, max_chars) for value in values] if isinstance(values, list | tuple) else values


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
