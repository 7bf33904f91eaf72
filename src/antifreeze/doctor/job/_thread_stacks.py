"""Python stacks of other processes, read by ``py-spy`` from their memory, without stopping them."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
import traceback
from pathlib import Path
from typing import Any, NamedTuple

from antifreeze.core import one_line
from antifreeze.diagnosis import Frame
from antifreeze.doctor.job._observation import Stack

_DUMP_TIMEOUT_S = 4.0
_KILL_GRACE_S = 1.0
_MAX_TRIES = 3
_MAX_NATIVE_FRAMES = 8
_FETCH = "/torch/utils/data/_utils/fetch.py"
_HERE = str(Path(__file__).parent) + os.sep
THREADS = "antifreeze-doctor"
"""Name prefix of the doctor's own threads."""
NOT_INSTALLED = "py-spy is not installed: install it with `pip install 'antifreeze[doctor]'` to see Python lines"
NOT_ALLOWED = (
    "this user may not inspect the process: run the doctor with `sudo`, or allow it "
    "(`docker run --cap-add SYS_PTRACE`, in Kubernetes `securityContext.capabilities.add: [SYS_PTRACE]`, "
    "on a host `sysctl kernel.yama.ptrace_scope=0`)"
)


class Stacks(NamedTuple):
    """The stacks of a process, or why there are none."""

    stacks: tuple[Stack, ...] = ()
    error: str = ""


def find_spy() -> str | None:
    """Return the program, beside this interpreter or on the path."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


def read_stacks(pid: int) -> Stacks:
    """Return the Python stacks of a process."""
    spy = find_spy()
    if spy is None:
        return Stacks(error=NOT_INSTALLED)
    error = ""
    # A running process changes while it is read; another try finds it consistent.
    for _ in range(_MAX_TRIES):
        try:
            done = _dump(spy, pid, "--nonblocking", "--locals")
        except (OSError, subprocess.TimeoutExpired) as failure:
            return Stacks(error=f"py-spy: {failure}")
        if done.returncode == 0:
            try:
                return Stacks(tuple(_stack(thread) for thread in json.loads(done.stdout)))
            except (ValueError, KeyError, TypeError, AttributeError) as failure:
                error = f"unexpected output of py-spy: {failure}"
                continue
        if _is_refused(done):
            return Stacks(error=NOT_ALLOWED)
        error = _failure(done)
    return Stacks(error=error)


def native_lines(pid: int) -> tuple[str, ...]:
    """Return the native functions that the main thread of a process is in, innermost first.

    This stops the process for a fraction of a second, while its stack is read.
    """
    spy = find_spy()
    if spy is None:
        return (NOT_INSTALLED,)
    try:
        done = _dump(spy, pid, "--native")
        threads = json.loads(done.stdout) if done.returncode == 0 else []
        frames: list[Any] = next((thread["frames"] for thread in threads if thread["os_thread_id"] == pid), [])
        native = [f for f in itertools.takewhile(lambda f: not f["filename"].endswith(".py"), frames) if f["module"]]
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError, TypeError, AttributeError) as failure:
        return (f"could not read its native functions: {failure}",)
    if done.returncode:
        return (f"could not read its native functions: {_failure(done)}",)
    return tuple(f"native: {f['name'][:100]} in {Path(f['module']).name}" for f in native[:_MAX_NATIVE_FRAMES])


def _dump(spy: str, pid: int, *options: str) -> subprocess.CompletedProcess[str]:
    command = [spy, "dump", "--json", *options, "--pid", str(pid)]
    process = subprocess.Popen(  # noqa: S603  a number is all that is passed on
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
    )
    try:
        output, errors = process.communicate(timeout=_DUMP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # it may wait for the same dead disk
            process.communicate(timeout=_KILL_GRACE_S)
        raise
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def own_stacks() -> Stacks:
    """Return the stacks of this process, as the interpreter knows them, without the doctor's own threads and calls."""
    names = {thread.ident: thread for thread in threading.enumerate()}
    hidden = own_threads()
    found = []
    for ident, frame in sys._current_frames().items():
        thread = names.get(ident)
        if thread is not None and thread.native_id in hidden and thread is not threading.main_thread():
            continue
        lines = [
            Frame(file=at.f_code.co_filename, line=number, function=at.f_code.co_name)
            for at, number in traceback.walk_stack(frame)
        ]
        mine = [i for i, line in enumerate(lines) if line.file.startswith(_HERE)]
        lines = lines[mine[-1] + 1 :] if mine else lines
        tid = (thread.native_id if thread else None) or 0
        found.append(Stack(tid=tid, name=thread.name if thread else "", frames=tuple(lines)))
    return Stacks(tuple(found))


def own_threads() -> set[int]:
    """Return the threads of this process that belong to the doctor, or that wait for its answer."""
    frames = sys._current_frames()
    found = set()
    for thread in threading.enumerate():
        frame = frames.get(thread.ident or 0)
        calls = traceback.walk_stack(frame) if frame is not None else ()
        if thread.name.startswith(THREADS) or any(at.f_code.co_filename.startswith(_HERE) for at, _ in calls):
            found.add(thread.native_id or 0)
    return found


def _stack(thread: dict[str, Any]) -> Stack:
    frames = tuple(
        Frame(file=frame["filename"], line=int(frame["line"]), function=frame["name"].rpartition(".")[2])
        for frame in thread["frames"]
    )
    return Stack(
        tid=int(thread["os_thread_id"] or 0),
        name=thread["thread_name"] or "",
        frames=frames,
        sample=next((name for frame in thread["frames"] if (name := _sample(frame))), ""),
    )


def _sample(frame: dict[str, Any]) -> str:
    """Return the index that torch asks a dataset for in this frame. No other variable is kept."""
    if not frame["filename"].endswith(_FETCH):
        return ""
    found = next((local["repr"] for local in frame["locals"] or () if local["name"] == "idx"), None)
    return one_line(found or "", 200)


def _is_refused(done: subprocess.CompletedProcess[str]) -> bool:
    """True if the kernel refused py-spy. py-spy reports this by text alone, with the exit code of any failure."""
    return "ermission" in done.stderr or "not permitted" in done.stderr


def _failure(done: subprocess.CompletedProcess[str]) -> str:
    """Return why py-spy failed."""
    if _is_refused(done):
        return NOT_ALLOWED
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("Error:")]  # a trace of py-spy itself may follow
    return f"py-spy: {(errors or lines or [f'exit code {done.returncode}'])[-1]}"
