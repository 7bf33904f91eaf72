"""What to change: a diff of the user's own file for ``patch``, or a command. Files are read, never run or written."""

from __future__ import annotations

import ast
import difflib
import io
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from antifreeze.core import read_regular
from antifreeze.diagnosis import Cause, Frame, is_user
from antifreeze.doctor.check import CannotCheck, is_loader, parse
from antifreeze.doctor.job._diagnosis import Diagnosis, Suspect
from antifreeze.doctor.job._observation import Observation

_MAX_NBYTES = 1_000_000
_TIMEOUTS = {
    "urllib.request.urlopen": "timeout=30",
    "socket.create_connection": "timeout=30",
    "subprocess.run": "timeout=60",
    "subprocess.check_output": "timeout=60",
    "subprocess.check_call": "timeout=60",
    "subprocess.call": "timeout=60",
}
_NUM_WORKERS_POSITION = 5
"""The position of ``num_workers`` among the arguments of torch's loader."""
_CURED_BY_ANTIFREEZE = frozenset(
    {
        Cause.FORK,
        Cause.LOST_BATCH,
        Cause.SHARED_MEMORY,
        Cause.UNNOTICED_DEATH,
        Cause.STOPPED,
        Cause.SLEEPING,
        Cause.NETWORK,
        Cause.LOCK,
        Cause.CHILD,
        Cause.BUSY,
        Cause.RETRYING,
    }
)
"""What our loader prevents, or recovers from and reports with its sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """One way to fix a cause."""

    words: str
    diff: str = ""
    command: str = ""


def fixes_of(diagnosis: Diagnosis, seen: Observation) -> tuple[Fix, ...]:
    """Return the changes that fix the first cause, the best one first."""
    if not diagnosis.suspects:
        return ()
    first = diagnosis.suspects[0]
    last = seen.snapshots[-1]
    found: dict[str, SourceLines] = {}  # the user's files in the stacks of the suspect and its ancestors
    process = last.find(first.pid)
    for _ in last.processes:
        if process is None:
            break
        for frame in {frame.file: frame for frame in process.frames if is_user(frame)}.values():
            if source := read_source(frame, process.folder):
                found.setdefault(source.path, source)
        process = last.find(process.parent)
    return tuple(_fixes(first, list(found.values())))


def _fixes(suspect: Suspect, sources: list[SourceLines]) -> Iterator[Fix]:
    cause = suspect.cause
    if cause is Cause.STOPPED:
        yield Fix(words="Resume it:", command=f"kill -CONT {suspect.pid}")
    elif cause is Cause.SHARED_MEMORY:
        yield Fix(words="Give the container more shared memory:", command="docker run --shm-size=8g ...")
    elif cause is Cause.FULL_PIPE:
        yield Fix(words="Send the output to a file:", command="python train.py > train.log 2>&1")
    elif cause is Cause.FORK:
        yield from _each(
            sources,
            'Start the workers without a fork (the script needs `if __name__ == "__main__":` then):',
            _with_forkserver,
        )
        if not any(source.loaders() for source in sources):
            yield from _each(sources, "Make libraries that create loaders start workers without a fork:", _without_fork)
    elif cause is Cause.UNNOTICED_DEATH:
        yield from _each(sources, "Do not ignore SIGCHLD:", _without_sigchld)
    elif cause in (Cause.NETWORK, Cause.CHILD):
        yield from _with_timeout(suspect)
    if cause in _CURED_BY_ANTIFREEZE:
        yield from _each(
            sources,
            "antifreeze.DataLoader prevents this, or replaces the worker and names the sample. Change the import:",
            _with_ours,
        )


def _each(sources: list[SourceLines], words: str, change: Callable[[SourceLines], str]) -> Iterator[Fix]:
    """Yield a fix for the first file that can be changed."""
    for source in sources:
        if text := _diff(source, change(source)):
            yield Fix(words=words, diff=text)
            return


def _with_timeout(suspect: Suspect) -> Iterator[Fix]:
    """Yield the line that waits, with a timeout."""
    for frame in suspect.frames:
        source = read_source(frame, suspect.folder)
        if source is None:
            continue
        for call, name in source.calls():
            if not call.lineno <= frame.line <= (call.end_lineno or 0):
                continue
            limit = "timeout=30" if name.partition(".")[0] in ("requests", "httpx") else _TIMEOUTS.get(name)
            if limit and (text := _diff(source, _with_argument(source, [call], limit))):
                yield Fix(words="Add a timeout to the call:", diff=text)
                return
    if suspect.cause is Cause.NETWORK and suspect.frames:
        source = read_source(suspect.frames[0], suspect.folder)
        if source is not None and (text := _diff(source, _with_default_timeout(source))):
            yield Fix(words="Set a default timeout before sockets are created:", diff=text)


def _with_default_timeout(source: SourceLines) -> str:
    """Return the file with a default timeout for all sockets, after its imports."""
    imports = [node for node in source.tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    lines = source.lines
    at = (imports[-1].end_lineno or 0) if imports else 0
    if lines[at - 1 : at] and not lines[at - 1].endswith("\n"):
        return source.text
    known = any(isinstance(node, ast.Import) and any(a.name == "socket" for a in node.names) for node in imports)
    added = ("" if known else f"import socket{source.end}") + f"socket.setdefaulttimeout(30){source.end}"
    return "".join([*lines[:at], added, *lines[at:]])


def _with_forkserver(source: SourceLines) -> str:
    calls = [call for call in source.loaders() if _has_workers(call)]
    return _with_argument(source, calls, 'multiprocessing_context="forkserver"')


def _has_workers(call: ast.Call) -> bool:
    """True if a loader has workers: torch refuses a start method without workers."""
    given = [keyword.value for keyword in call.keywords if keyword.arg == "num_workers"]
    is_given = bool(given) and not (isinstance(given[0], ast.Constant) and given[0].value == 0)
    return is_given or len(call.args) > _NUM_WORKERS_POSITION


def _without_fork(source: SourceLines) -> str:
    """Return the file with another start method, set first when it is run."""
    lines = source.lines
    guards = [node for node in source.tree.body if isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)]
    if not guards or any(name.endswith("set_start_method") for _, name in source.calls()):
        return source.text
    first = guards[0].body[0]
    at = min([first.lineno, *(part.lineno for part in getattr(first, "decorator_list", []))]) - 1
    if at < guards[0].test.lineno:
        return source.text
    indent = lines[at][: first.col_offset]
    new = ("import multiprocessing", "", 'multiprocessing.set_start_method("forkserver")')
    lines[at:at] = [f"{indent if line else ''}{line}{source.end}" for line in new]
    return "".join(lines)


def _without_sigchld(source: SourceLines) -> str:
    lines = source.lines
    names = ("body", "orelse", "finalbody")
    blocks = [getattr(node, name, None) for node in ast.walk(source.tree) for name in names]
    for block in (block for block in blocks if isinstance(block, list)):
        for node in block:
            if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and _is_alone(node, lines)):
                continue
            said = ast.unparse(node.value)
            if source.name(node.value.func) == "signal.signal" and "SIGCHLD" in said and "SIG_IGN" in said:
                rows = range(node.lineno - 1, node.end_lineno or node.lineno)
                indent = lines[rows[0]][: node.col_offset]
                for row in rows:
                    lines[row] = ""
                if len(block) == 1:
                    lines[rows[0]] = f"{indent}pass{source.end}"
    return "".join(lines)


def _is_alone(node: ast.stmt, lines: list[str]) -> bool:
    """True if nothing but a comment shares its lines."""
    before = lines[node.lineno - 1].encode()[: node.col_offset]
    after = lines[(node.end_lineno or node.lineno) - 1].encode()[node.end_col_offset :].strip()
    return not before.strip() and (not after or after.startswith(b"#"))


def _with_ours(source: SourceLines) -> str:
    """Return the file with the loader of antifreeze in place of torch's."""
    lines = source.lines
    for node in source.tree.body:
        if isinstance(node, ast.ImportFrom) and node.module == "torch.utils.data" and _is_alone(node, lines):
            names = [a for a in node.names if a.name == "DataLoader"]
            others = [a for a in node.names if a.name != "DataLoader"]
            if not names:
                continue
            new = [ast.unparse(ast.ImportFrom("antifreeze", names, 0))]
            if others:
                new.append(ast.unparse(ast.ImportFrom(node.module, others, 0)))
            lines[node.lineno - 1 : node.end_lineno] = [line + source.end for line in new]
            return "".join(lines)
    return _with_name(source, lines)


def _with_name(source: SourceLines, lines: list[str]) -> str:
    """Return the file with ``antifreeze.DataLoader`` where ``torch.utils.data.DataLoader`` is called."""
    calls = [call for call in source.loaders() if source.name(call.func) == "torch.utils.data.DataLoader"]
    calls = [call for call in calls if isinstance(call.func, ast.Attribute)]
    if not calls:
        return source.text
    for call in sorted(calls, key=lambda call: (call.func.lineno, call.func.col_offset), reverse=True):
        func = call.func
        if func.lineno != func.end_lineno:
            return source.text
        raw = lines[func.lineno - 1].encode()
        changed = raw[: func.col_offset] + b"antifreeze.DataLoader" + raw[func.end_col_offset :]
        lines[func.lineno - 1] = changed.decode()
    imports = [node for node in source.tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    first = next((n.lineno for n in imports if not (isinstance(n, ast.ImportFrom) and n.module == "__future__")), 1)
    lines.insert(first - 1, f"import antifreeze{source.end}")
    return "".join(lines)


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
        return _lines_of(self.text)

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


def _lines_of(text: str) -> list[str]:
    """Return the lines of a file of Python, with their ends."""
    return list(io.StringIO(text, newline=""))


def _with_argument(source: SourceLines, calls: list[ast.Call], argument: str) -> str:
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


def _diff(source: SourceLines, changed: str) -> str:
    """Return the difference for ``patch -p0``; nothing if there is none, or if the result is not valid Python."""
    try:
        parse(source.path, changed)
    except CannotCheck:
        return ""
    rows = difflib.unified_diff(source.lines, _lines_of(changed), source.shown, source.shown, n=1)
    return "".join(row if row.endswith("\n") else row + "\n\\ No newline at end of file\n" for row in rows)
