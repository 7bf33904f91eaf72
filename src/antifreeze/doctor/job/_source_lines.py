"""Edits of the user's source files, as diffs for ``patch``. Files are read, never run and never written."""

from __future__ import annotations

import ast
import difflib
import io
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from antifreeze.core import read_regular
from antifreeze.diagnosis import Frame, is_user
from antifreeze.doctor.check import CannotCheck, is_loader, parse

_MAX_NBYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class SourceLines:
    """A source file of the user."""

    path: str
    shown: str
    """Its name in a diff, relative to the job's working directory: ``patch`` refuses absolute names."""
    text: str
    tree: ast.Module
    name: Callable[[ast.AST], str]
    """Returns the full name of a node."""

    def calls(self) -> Iterator[tuple[ast.Call, str]]:
        """Yield all calls with their full names."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call):
                yield node, self.name(node.func)

    @property
    def lines(self) -> list[str]:
        """Its lines with their ends, split as Python splits them."""
        return lines_of(self.text)

    @property
    def end(self) -> str:
        """Its line end."""
        return "\r\n" if "\r\n" in self.text else "\n"

    def loaders(self) -> list[ast.Call]:
        """Return the calls that create torch loaders."""
        return [call for call, name in self.calls() if is_loader(name) and not name.startswith("antifreeze.")]


def read_source(frame: Frame, folder: str) -> SourceLines | None:
    """Return the file of a frame, if it is readable Python."""
    path = Path(os.path.normpath(Path(folder, frame.file)))
    try:
        if path.suffix != ".py":
            return None
        text = read_regular(path, _MAX_NBYTES).decode()
        if "\r" in text.replace("\r\n", ""):  # ``patch`` does not accept it as the end of a line
            return None
        script = parse(str(path), text)
    except (OSError, ValueError, CannotCheck):  # no file, not text, not Python
        return None
    shown = path.relative_to(folder) if folder and path.is_relative_to(folder) else path
    return SourceLines(str(path), str(shown), text, script.tree, script.name)


def lines_of(text: str) -> list[str]:
    """Return the lines of a file of Python, with their ends."""
    return list(io.StringIO(text, newline=""))


def sources_of(frames: tuple[Frame, ...], folder: str) -> list[SourceLines]:
    """Return the user's files in a stack, innermost first."""
    files = dict.fromkeys(frame.file for frame in frames if is_user(frame))
    found = (read_source(Frame(file=file, line=0, function=""), folder) for file in files)
    return [source for source in found if source is not None]


def with_argument(source: SourceLines, calls: list[ast.Call], argument: str) -> str:
    """Return the file with an argument added to calls that do not have it."""
    name = argument.partition("=")[0]
    lines = source.lines
    for call in sorted(calls, key=lambda call: (call.end_lineno or 0, call.end_col_offset or 0), reverse=True):
        if any(keyword.arg in (name, None) for keyword in call.keywords):
            continue
        parts: list[ast.expr | ast.keyword] = [*call.args, *call.keywords, call.func]
        last = max((part.end_lineno or 0, part.end_col_offset or 0) for part in parts)
        row = last[0] - 1
        raw, at, new = lines[row].encode(), last[1], f", {argument}"
        if not (call.args or call.keywords):
            at, new = raw.find(b"(", at) + 1, argument
        elif call.end_lineno == last[0]:  # there may be brackets around the last argument
            at += raw[at : (call.end_col_offset or 1) - 1].rfind(b")") + 1
        lines[row] = (raw[:at] + new.encode() + raw[at:]).decode()
    return "".join(lines)


def diff(source: SourceLines, changed: str) -> str:
    """Return the difference for ``patch -p0``; nothing if there is none, or if the result is not valid Python."""
    try:
        parse(source.path, changed)
    except CannotCheck:
        return ""
    rows = difflib.unified_diff(source.lines, lines_of(changed), source.shown, source.shown, n=1)
    return "".join(row if row.endswith("\n") else row + "\n\\ No newline at end of file\n" for row in rows)
