"""The control groups of a process, version 1 and 2: their limits and what is used."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from antifreeze.core import natural

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


def groups_of(root: Path, pid: int | str = "self") -> list[Path]:
    """Return the folders of a process's control groups and those above them, each group before those above it."""
    folders: list[Path] = []
    for line in _read(root / "proc" / str(pid) / "cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        base = root / "sys/fs/cgroup" / controllers if controllers else root / "sys/fs/cgroup"
        own = base / path.lstrip("/")
        # In a container the path can be that of the host, while its own group is mounted at the top.
        folders += [folder for folder in (own, *own.parents) if folder == base or base in folder.parents]
    return list(dict.fromkeys(folders))


def limits_of(groups: Iterable[Path]) -> Iterator[tuple[Path, int]]:
    """Yield the groups whose memory has a limit, each with its limit in bytes."""
    for group in groups:
        limit_nbytes = _first_number(group, _LIMITS)
        if limit_nbytes is not None and limit_nbytes < _UNLIMITED:
            yield group, limit_nbytes


def memory_of(pid: int, *, root: Path = Path("/")) -> GroupMemory:
    """Return the memory limits and use of a process's groups. What cannot be read is 0."""
    groups = groups_of(root, pid)
    limits = [(_used(group), limit_nbytes) for group, limit_nbytes in limits_of(groups)]
    used_nbytes, limit_nbytes = max(limits, key=lambda row: row[0] / max(1, row[1]), default=(0, 0))
    own, events = next(((group, found) for group in groups if (found := _events(group))), (None, {}))
    # The root group of a machine counts the kills of all jobs; that of a container has a limit.
    is_top = own is not None and own.parent not in groups and not limits
    return GroupMemory(
        limit_nbytes=limit_nbytes,
        used_nbytes=used_nbytes,
        oom_kills=0 if is_top else events.get("oom_kill", 0),
        waits=events.get("under_oom", 0) > 0,
    )


def _used(group: Path) -> int:
    stat = _numbers(_read(group / "memory.stat"))
    # Version 1 has numbers with those of the groups below under other names.
    cached = sum(stat.get(f"total_{name}", stat.get(name, 0)) for name in ("inactive_file", "active_file"))
    return max(0, (_first_number(group, _USED) or 0) - cached)


def _events(group: Path) -> dict[str, int]:
    return next((found for name in _EVENTS if "oom_kill" in (found := _numbers(_read(group / name)))), {})


def _first_number(group: Path, names: Iterable[str]) -> int | None:
    said = (natural(_read(group / name)) for name in names)
    return next((number for number in said if number is not None), None)


def _numbers(text: str) -> dict[str, int]:
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: number for pair in pairs if len(pair) == 2 and (number := natural(pair[1])) is not None}


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
