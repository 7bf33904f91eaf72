"""Limits are read as people write them, and containers are respected."""

from __future__ import annotations

from pathlib import Path

import pytest

from antifreeze.core import ConfigError
from antifreeze.datasets import machine_memory, parse_limit
from antifreeze.diagnosis import memory_limits


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("256MB", 256_000_000), ("1GiB", 2**30), ("1.5 gb", 1_500_000_000), ("2000000", 2_000_000), (2**24, 2**24)],
)
def test_a_limit_is_read_as_written(text: str | int, nbytes: int) -> None:
    """Decimal and binary units, any case, with or without a space."""
    assert parse_limit(text) == nbytes


@pytest.mark.parametrize("text", ["lots", "", "-1GB", 0, -5, 1.5, True, "1 kB", "nanGB"])
def test_nonsense_is_refused_by_name(text: object) -> None:
    """The message names the argument and shows how to write it."""
    with pytest.raises(ConfigError, match="memory_limit=") as caught:
        parse_limit(text)  # type: ignore[arg-type]
    assert "256MB" in caught.value.hint


def test_the_default_is_an_eighth_of_the_machine() -> None:
    """The share that the documentation states."""
    assert parse_limit(None) == max(machine_memory() // 8, 64 << 20)


@pytest.mark.parametrize(
    ("cgroup", "files", "expected"),
    [
        (
            "0::/job/step\n",
            {"sys/fs/cgroup/job/step/memory.max": "max", "sys/fs/cgroup/job/memory.max": "1000"},
            [1000],
        ),
        ("0::/host/path\n", {"sys/fs/cgroup/memory.max": "500"}, [500]),
        ("3:cpu,memory:/d\n1:pids:/d\n", {"sys/fs/cgroup/memory/d/memory.limit_in_bytes": "70"}, [70]),
        ("", {}, []),
    ],
)
def test_limits_of_containers_are_found(
    tmp_path: Path, cgroup: str, files: dict[str, str], expected: list[int]
) -> None:
    """Both versions of control groups, nested ones, and a path that only the host knows."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(cgroup)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    assert memory_limits(root=tmp_path) == expected


def test_a_system_without_control_groups_has_no_such_limits(tmp_path: Path) -> None:
    """Such as macOS."""
    assert memory_limits(root=tmp_path) == []
