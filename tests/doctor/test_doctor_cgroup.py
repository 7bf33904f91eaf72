"""The memory of control groups, of version 1 and 2, in folders that look like those of the kernel."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from antifreeze.doctor.job._observation import GroupMemory
from antifreeze.doctor.job._observe import memory_of

PID = 7
MB = 1_000_000
NO_LIMIT = 9223372036854771712
SECOND = "proc/7/cgroup", "0::/jobs/mine\n"
FIRST = "proc/7/cgroup", "9:name=systemd:/\n4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n0::/\n"
V1 = "sys/fs/cgroup/memory"
V2 = "sys/fs/cgroup"


def made(folder: Path, *files: tuple[str, object]) -> GroupMemory:
    """Return what is read of a machine that has these files."""
    for name, text in files:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}")
    return memory_of(PID, root=folder)


def test_version_2(tmp_path: Path) -> None:
    """Copies of files are not counted: they make room. Kills are those of the job's own group."""
    found = made(
        tmp_path,
        SECOND,
        (f"{V2}/jobs/mine/memory.max", 100 * MB),
        (f"{V2}/jobs/mine/memory.current", 90 * MB),
        (f"{V2}/jobs/mine/memory.stat", f"anon {60 * MB}\nactive_file {10 * MB}\ninactive_file {20 * MB}\nshmem 5\n"),
        (f"{V2}/jobs/mine/memory.events", "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n"),
        (f"{V2}/jobs/memory.events", "oom_kill 9\n"),
    )

    assert found == GroupMemory(limit_nbytes=100 * MB, used_nbytes=60 * MB, oom_kills=2)


def test_the_group_that_is_nearest_to_its_limit_counts(tmp_path: Path) -> None:
    """A limit further up is as hard."""
    found = made(
        tmp_path,
        SECOND,
        (f"{V2}/jobs/mine/memory.max", "max"),
        (f"{V2}/jobs/mine/memory.current", 90 * MB),
        (f"{V2}/jobs/memory.max", 500 * MB),
        (f"{V2}/jobs/memory.current", 490 * MB),
        (f"{V2}/memory.max", 5000 * MB),
        (f"{V2}/memory.current", 600 * MB),
    )

    assert (found.limit_nbytes, found.used_nbytes) == (500 * MB, 490 * MB)


def test_version_1(tmp_path: Path) -> None:
    """With the groups below it, and whether processes wait."""
    found = made(
        tmp_path,
        FIRST,
        (f"{V1}/docker/abc/memory.limit_in_bytes", 100 * MB),
        (f"{V1}/docker/abc/memory.usage_in_bytes", 99 * MB),
        (f"{V1}/docker/abc/memory.stat", f"inactive_file 1\ntotal_inactive_file {MB}\ntotal_active_file {MB}\n"),
        (f"{V1}/docker/abc/memory.oom_control", "oom_kill_disable 1\nunder_oom 1\noom_kill 4\n"),
        (f"{V1}/memory.limit_in_bytes", NO_LIMIT),
        (f"{V1}/memory.usage_in_bytes", 9000 * MB),
    )

    assert found == GroupMemory(limit_nbytes=100 * MB, used_nbytes=97 * MB, oom_kills=4, waits=True)


def test_the_group_of_a_container_is_at_the_top(tmp_path: Path) -> None:
    """The path is that of the host, and not there."""
    found = made(
        tmp_path,
        FIRST,
        (f"{V1}/memory.limit_in_bytes", 100 * MB),
        (f"{V1}/memory.usage_in_bytes", 50 * MB),
        (f"{V1}/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"),
    )

    assert found == GroupMemory(limit_nbytes=100 * MB, used_nbytes=50 * MB, oom_kills=1)


def test_the_kills_of_a_whole_machine_are_not_those_of_a_job(tmp_path: Path) -> None:
    """At the top without a limit is everybody."""
    found = made(
        tmp_path,
        ("proc/7/cgroup", "4:memory:/\n"),
        (f"{V1}/memory.limit_in_bytes", NO_LIMIT),
        (f"{V1}/memory.usage_in_bytes", 9000 * MB),
        (f"{V1}/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 11\n"),
    )

    assert found == GroupMemory()


@pytest.mark.parametrize("text", ["", "nonsense", "0::/../../../outside\n", "4:memory:/gone\n"])
def test_what_cannot_be_read_is_0(text: str, tmp_path: Path) -> None:
    """A process that is gone, or a group elsewhere."""
    assert made(tmp_path, ("proc/7/cgroup", text)) == GroupMemory()
    assert memory_of(8, root=tmp_path) == GroupMemory()


def test_this_process() -> None:
    """Whatever groups it is in."""
    found = memory_of(os.getpid())

    assert found.used_nbytes >= 0
    assert not found.waits
