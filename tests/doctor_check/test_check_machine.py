"""Facts of a machine, and what is said about them: nothing on a good one."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from antifreeze.doctor.check import Facts, check_machine, check_script, parse, read_facts
from antifreeze.doctor.check._check_command import notes
from antifreeze.doctor.check._facts import _memory, _quota, _stale, _start_method

MIB = 1 << 20
LOADER = (
    "from torch.utils.data import DataLoader\nloader = DataLoader(data, batch_size={batch}, num_workers={workers})\n"
)
OURS = "import antifreeze\nloader = antifreeze.DataLoader(data, batch_size=64, num_workers=8)\n"


def codes(facts: Facts, text: str | None = None) -> list[str]:
    """Return what is found on a machine with these facts, for the loaders of a script."""
    loaders = None if text is None else check_script(parse("a.py", text), text, facts)[1]
    return [finding.code for finding in check_machine(facts, loaders)]


def environment(**variables: str) -> Facts:
    return Facts(environment=MappingProxyType(variables))


def test_a_good_machine_is_not_mentioned() -> None:
    assert codes(Facts()) == []
    assert codes(Facts(), LOADER.format(batch=256, workers=16)) == []
    assert notes(Facts()) == []


def test_what_the_system_does_not_say_is_not_guessed() -> None:
    facts = Facts(shm_nbytes=None, shm_free_nbytes=None, memory_nbytes=None, start_method="spawn")

    assert codes(facts, LOADER.format(batch=256, workers=16)) == []


def test_dockers_default_of_shared_memory_is_small() -> None:
    facts = Facts(shm_nbytes=64 * MIB, shm_free_nbytes=64 * MIB)

    assert codes(facts) == ["small-shm"]
    assert codes(facts, LOADER.format(batch=64, workers=4)) == ["small-shm"]
    assert codes(facts, LOADER.format(batch=64, workers=0)) == []  # nothing is sent
    assert codes(facts, OURS) == []  # anonymous memory, whatever /dev/shm has


def test_shared_memory_is_measured_against_what_is_in_flight() -> None:
    facts = Facts(shm_nbytes=512 * MIB, shm_free_nbytes=500 * MIB)

    assert codes(facts, LOADER.format(batch=16, workers=2)) == []
    (finding,) = check_machine(facts, check_script(parse("a", t := LOADER.format(batch=512, workers=8)), t, facts)[1])
    assert finding.code == "small-shm"
    assert "8,192 samples" in finding.reason
    assert "62 KiB for each" in finding.reason


def test_shared_memory_of_dead_processes_is_named() -> None:
    assert codes(Facts(shm_nbytes=1024 * MIB, shm_stale_nbytes=300 * MIB)) == ["stale-shm"]
    assert codes(Facts(shm_stale_nbytes=30 * MIB)) == []


def test_few_open_files() -> None:
    assert codes(Facts(open_files=256)) == ["few-files"]
    assert codes(Facts(open_files=1024)) == []
    many = LOADER.format(batch=4, workers=16).replace("num_workers", "prefetch_factor=32, num_workers")
    assert codes(Facts(open_files=1024), many) == ["few-files"]


def test_a_container_with_less_time_than_cores() -> None:
    facts = Facts(machine_cores=64, cores=64, cpu_quota=4.0)

    assert facts.usable_cores == 4
    assert codes(facts) == ["many-threads"]
    limited = Facts(machine_cores=64, cores=64, cpu_quota=4.0, environment=MappingProxyType({"OMP_NUM_THREADS": "4"}))
    assert codes(limited) == []


def test_more_openmp_threads_than_cores() -> None:
    assert codes(environment(OMP_NUM_THREADS="64")) == ["many-threads"]
    assert codes(environment(OMP_NUM_THREADS="8")) == []


def test_workers_that_are_not_forked_need_memory() -> None:
    text = LOADER.format(batch=4, workers=16)

    assert codes(Facts(start_method="spawn", memory_nbytes=2048 * MIB), text) == ["little-memory"]
    assert codes(Facts(start_method="fork", memory_nbytes=2048 * MIB), text) == []


def test_an_ignored_sigchld_is_inherited() -> None:
    assert codes(Facts(sigchld_ignored=True)) == ["sigchld-ignored"]
    assert codes(Facts(sigchld_ignored=True), OURS) == []


def test_tokenizers_from_the_environment() -> None:
    text = "import transformers\n" + LOADER.format(batch=4, workers=2)
    found, _ = check_script(parse("a.py", text), text, environment(TOKENIZERS_PARALLELISM="true"))

    assert [finding.code for finding in found] == ["tokenizers-parallelism"]
    assert check_script(parse("a.py", text), text, environment(TOKENIZERS_PARALLELISM="false"))[0] == []


def test_ptrace_is_a_note_and_no_finding() -> None:
    assert codes(Facts(ptrace_scope=1)) == []
    assert "ptrace_scope is 1" in notes(Facts(ptrace_scope=1))[0]
    assert notes(Facts(ptrace_scope=1, is_root=True)) == []
    assert "no process" in notes(Facts(ptrace_scope=3))[0]


@pytest.mark.parametrize(
    ("platform", "python", "method"),
    [("linux", (3, 11), "fork"), ("linux", (3, 14), "forkserver"), ("darwin", (3, 12), "spawn")],
)
def test_the_default_start_method(platform: str, python: tuple[int, int], method: str) -> None:
    assert _start_method(platform, python) == method


def test_this_machine_can_be_read() -> None:
    facts = read_facts()

    assert facts.cores >= 1
    assert facts.memory_nbytes is None or facts.memory_nbytes > 0
    assert facts.open_files > 0


def write(root: Path, files: dict[str, Any]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{content}\n")
    return root


def test_limits_of_control_groups_version_2(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/jobs/mine",
            "proc/meminfo": "MemTotal:       1000000 kB",
            "sys/fs/cgroup/jobs/mine/memory.max": "max",
            "sys/fs/cgroup/jobs/memory.max": 512 * MIB,
            "sys/fs/cgroup/jobs/mine/cpu.max": "250000 100000",
            "sys/fs/cgroup/jobs/cpu.max": "max 100000",
        },
    )

    assert _memory(root) == 512 * MIB
    assert _quota(root) == 2.5


def test_limits_of_control_groups_version_1(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n0::/",
            "proc/meminfo": "MemTotal:       1000000 kB",
            # Inside of a container the group is mounted at the top, and the path is that of the host.
            "sys/fs/cgroup/memory/memory.limit_in_bytes": 256 * MIB,
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": 150000,
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": 100000,
        },
    )

    assert _memory(root) == 256 * MIB
    assert _quota(root) == 1.5


def test_no_limits(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/\n3:cpu,cpuacct:/",
            "proc/meminfo": "MemTotal:       1000000 kB",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": 9223372036854771712,
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": -1,
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": 100000,
        },
    )

    assert _memory(root) == 1000000 * 1024
    assert _quota(root) is None


def test_shared_memory_of_living_processes_is_not_stale(tmp_path: Path) -> None:
    (tmp_path / "proc/7").mkdir(parents=True)
    (tmp_path / "shm").mkdir()
    for name in ("torch_7_1", "torch_8_1", "torch_x_1", "other"):
        (tmp_path / "shm" / name).write_bytes(b"x" * 8192)

    assert _stale(tmp_path / "shm", tmp_path / "proc") == (tmp_path / "shm/torch_8_1").stat().st_blocks * 512
