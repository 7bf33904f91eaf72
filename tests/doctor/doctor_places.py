"""Places for jobs that only root can make: a disk that can be frozen, and a control group with little memory."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from antifreeze.diagnosis import state_of

MEMORY_NBYTES = 768 << 20
"""Enough for a trainer and two workers, if they hold nothing."""
SLOW_NBYTES_PER_S = 4_000_000
_SLOW = Path("/sys/fs/cgroup/blkio")
_GROUPS = Path("/sys/fs/cgroup/memory")
_PATIENCE_S = 60.0


class Place(NamedTuple):
    """Where a job runs."""

    wrapper: tuple[str, ...] = ()
    """What has to stand before its command; the process id stays that of the job."""
    environment: tuple[tuple[str, str], ...] = ()
    is_ready: Callable[[int], bool] = lambda _: True
    """Whether what the job with this process id is about has come about, once it is there itself."""
    let_go: Callable[[], None] = lambda: None
    """End what keeps the job from being killed."""


def can_freeze_disks() -> bool:
    """Whether this machine lets us make a disk of our own. Containers mostly have no loop devices."""
    tools = all(shutil.which(tool) for tool in ("mkfs.ext4", "mount", "umount", "fsfreeze"))
    return os.geteuid() == 0 and tools and os.access("/dev/loop-control", os.W_OK)


def can_slow_disks() -> bool:
    """Whether we can make control groups that read slowly, and files for tests lie on a disk."""
    on_disk = os.major(Path(tempfile.gettempdir()).stat().st_dev) > 0
    return os.geteuid() == 0 and on_disk and os.access(_SLOW / "blkio.throttle.read_bps_device", os.W_OK)


def can_limit_memory() -> bool:
    """Whether we can make control groups of version 1, the only ones in which a process can wait for memory."""
    return os.geteuid() == 0 and (_GROUPS / "memory.oom_control").exists() and os.access(_GROUPS, os.W_OK)


@contextmanager
def disk(folder: Path) -> Iterator[Place]:
    """Yield a place with a disk in ``$DISK`` that the job may freeze.

    Another process keeps it, which outlives this one if it is killed, thaws the disk and takes it away.
    """
    point = folder / "disk"
    point.mkdir()
    command = [sys.executable, str(Path(__file__).with_name("doctor_disk.py")), str(folder / "image"), str(point)]
    supervisor = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert supervisor.stdin is not None
    assert supervisor.stdout is not None
    with supervisor.stdin, supervisor.stdout:
        try:
            assert supervisor.stdout.readline() == "mounted\n", "the disk could not be made"
            yield Place(environment=(("DISK", str(point)),), is_ready=_waits_for_disk, let_go=supervisor.stdin.close)
        finally:
            supervisor.stdin.close()
            assert supervisor.wait(_PATIENCE_S) == 0


def _waits_for_disk(pid: int) -> bool:
    """Whether a worker of a job is in a wait that no signal ends."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return any(state_of(int(child)) == "D" for child in children)


@contextmanager
def slow_disk(folder: Path) -> Iterator[Place]:
    """Yield a place with a control group in ``$GROUP``; whoever enters it reads slowly from the disk of the folder."""
    device = folder.stat().st_dev
    group = _SLOW / f"antifreeze-test-{os.getpid()}-{folder.name}"
    group.mkdir()
    with ExitStack() as ending:
        ending.callback(_remove, group)
        limit = f"{os.major(device)}:{os.minor(device)} {SLOW_NBYTES_PER_S}"
        (group / "blkio.throttle.read_bps_device").write_text(limit)
        yield Place(environment=(("GROUP", str(group)),))


@contextmanager
def little_memory(folder: Path, *, kills: bool) -> Iterator[Place]:
    """Yield a place with little memory. ``kills``: whether the kernel kills whoever wants more; else it has to wait."""
    group = _GROUPS / f"antifreeze-test-{os.getpid()}-{folder.name}"
    group.mkdir()
    with ExitStack() as ending:
        ending.callback(_remove, group)
        (group / "memory.limit_in_bytes").write_text(str(MEMORY_NBYTES))
        if not kills:
            (group / "memory.oom_control").write_text("1")
        sign = "oom_kill" if kills else "under_oom"
        enter = f'echo $$ > {group}/cgroup.procs && exec "$@"'
        yield Place(
            wrapper=("sh", "-c", enter, "sh"),
            is_ready=lambda _: f"{sign} 0" not in (group / "memory.oom_control").read_text().splitlines(),
        )


def _remove(group: Path) -> None:
    """Remove a group; the last of its processes leaves it a moment after it has ended."""
    end_s = time.monotonic() + _PATIENCE_S
    while True:
        try:
            group.rmdir()
        except OSError:
            if time.monotonic() > end_s:
                raise
            time.sleep(0.02)
        else:
            return
