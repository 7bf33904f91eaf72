"""Small Python processes without torch, which get to a place and wait there."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from antifreeze.diagnosis import read_proc

PATIENCE_S = 60.0


def until(condition: Callable[[], bool], what: str = "it") -> None:
    """Wait for something that other processes do."""
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, f"{what} did not happen in time"
        time.sleep(0.01)


def in_call(pid: int, *calls: str) -> bool:
    """Whether the main thread of a process is in one of these system calls."""
    return read_proc(pid).syscall in calls


@contextmanager
def child(code: str, *arguments: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Run a program that says `ready` on its stdout; it is killed in the end."""
    command = [sys.executable, "-c", code, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()
