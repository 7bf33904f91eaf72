"""The memory of a process's control groups, version 1 and 2: their limits, what is used, and what was killed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from antifreeze.core import natural, pairs_of, read_proc_file
from antifreeze.diagnosis import memory_groups

_UNLIMITED = 1 << 60
_LIMITS = ("memory.max", "memory.limit_in_bytes")
_USED = ("memory.current", "memory.usage_in_bytes")
_EVENTS = ("memory.events", "memory.oom_control")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMemory:
    """The memory of a process's group that is closest to its limit."""

    limit_nbytes: int = 0
    """0: there is no limit."""
    used_nbytes: int = 0
    """Without the page cache, which is evicted when memory is needed."""
    oom_kills: int = 0
    """Processes of the group that the kernel killed because memory ran out, since the group exists."""
    new_oom_kills: int = 0
    """Those killed while the job was watched."""
    waits: bool = False
    """True if the group is full, and its processes wait for memory instead of being killed."""


def memory_of(pid: int, *, root: Path = Path("/")) -> GroupMemory:
    """Return the memory limits and use of a process's groups. What cannot be read is 0."""
    groups = memory_groups(pid, root=root)
    found = ((group, _first_number(group, _LIMITS)) for group in groups)
    limits = [(_used(group), limit) for group, limit in found if limit is not None and limit < _UNLIMITED]
    used_nbytes, limit_nbytes = max(limits, key=lambda row: row[0] / max(1, row[1]), default=(0, 0))
    own, events = next(((group, events) for group in groups if (events := _events(group))), (None, {}))
    # The root group of a machine counts the kills of all jobs; that of a container has a limit.
    is_top = own is not None and own.parent not in groups and not limits
    return GroupMemory(
        limit_nbytes=limit_nbytes,
        used_nbytes=used_nbytes,
        oom_kills=0 if is_top else events.get("oom_kill", 0),
        waits=events.get("under_oom", 0) > 0,
    )


def _used(group: Path) -> int:
    stat = _numbers(group / "memory.stat")
    # Version 1 has numbers with those of the groups below under other names.
    cached = sum(stat.get(f"total_{name}", stat.get(name, 0)) for name in ("inactive_file", "active_file"))
    return max(0, (_first_number(group, _USED) or 0) - cached)


def _events(group: Path) -> dict[str, int]:
    return next((found for name in _EVENTS if "oom_kill" in (found := _numbers(group / name))), {})


def _first_number(group: Path, names: Iterable[str]) -> int | None:
    numbers = (natural(read_proc_file(group / name)) for name in names)
    return next((number for number in numbers if number is not None), None)


def _numbers(path: Path) -> dict[str, int]:
    pairs = pairs_of(read_proc_file(path)).items()
    return {name: number for name, text in pairs if (number := natural(text)) is not None}
