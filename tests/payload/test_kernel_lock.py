"""A lock between workers: a deadlock is an error of one of them, and costs the others nothing."""

from __future__ import annotations

import os
import select
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from antifreeze.payload._reducers import KernelLock

PATIENCE_S = 60.0


def locks_in(path: Path, recursive: bool) -> list[KernelLock]:
    handle: Any = SimpleNamespace(detach=lambda: os.open(path, os.O_RDWR | os.O_CREAT))
    return [KernelLock(handle, place, recursive) for place in range(2)]


def cross(first: KernelLock, second: KernelLock, inward: int, outward: int) -> bool:
    """Take two locks while somebody takes them the other way round; return whether this was found to be a deadlock."""
    first.acquire()
    os.write(outward, b"x")
    assert select.select([inward], [], [], PATIENCE_S)[0]  # Order: both have their first one now
    found = False
    try:
        second.acquire()
        second.release()
    except RuntimeError as error:
        found = "deadlock" in str(error)
    first.release()
    assert second.acquire(timeout=PATIENCE_S)
    second.release()
    return found


@pytest.mark.parametrize("recursive", [False, True])
def test_a_deadlock_is_told_to_one_and_both_can_go_on(tmp_path: Path, recursive: bool) -> None:
    """Who was told can take the lock later, and so can the other."""
    pipes = [os.pipe(), os.pipe()]
    pid = os.fork()
    if not pid:
        code = 99
        try:
            one, other = locks_in(tmp_path / "locks", recursive)
            code = int(cross(one, other, pipes[0][0], pipes[1][1]))
        finally:
            os._exit(code)
    one, other = locks_in(tmp_path / "locks", recursive)
    mine = cross(other, one, pipes[1][0], pipes[0][1])
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    for fd in (*pipes[0], *pipes[1]):
        os.close(fd)

    assert sorted([int(mine), code]) == [0, 1]


def test_a_lock_that_was_not_to_be_had_can_be_tried_again(tmp_path: Path) -> None:
    """At once or with a limit; a lock that is not recursive also keeps out its own process."""
    one, _ = locks_in(tmp_path / "locks", recursive=False)
    assert one.acquire()
    assert not one.acquire(block=False)
    assert not one.acquire(timeout=0.01)
    one.release()

    assert one.acquire(block=False)
    one.release()
    with pytest.raises(ValueError, match="too many times"):
        one.release()
