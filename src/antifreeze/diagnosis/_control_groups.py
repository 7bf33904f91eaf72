"""The memory control groups of a process, version 1 and 2: their limits, and how often memory ran out."""

from __future__ import annotations

from pathlib import Path

from antifreeze.core import natural, pairs_of, read_proc_file

_LIMITS = ("memory.max", "memory.limit_in_bytes")
_EVENTS = ("memory.events", "memory.oom_control")


def memory_groups(pid: int | str = "self", *, root: Path = Path("/")) -> list[Path]:
    """Return the folders of the memory control groups that a process is in, each before those above it."""
    found: list[Path] = []
    for line in read_proc_file(root / "proc" / str(pid) / "cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers == "":  # version 2
            top = root / "sys/fs/cgroup"
        elif "memory" in controllers.split(","):
            top = root / "sys/fs/cgroup/memory"
        else:
            continue
        # In a container the path may be the host's and not exist here; the mount itself is the container's group then.
        own = top / path.lstrip("/")
        found += [group for group in (own, *own.parents) if group.is_relative_to(top)]
    return list(dict.fromkeys(found))


def memory_limits(pid: int | str = "self", *, root: Path = Path("/")) -> list[int]:
    """Return the limits in bytes of the memory control groups that a process is in, innermost first."""
    files = (group / name for group in memory_groups(pid, root=root) for name in _LIMITS)
    limits = (natural(read_proc_file(file)) for file in files)
    return [limit for limit in limits if limit is not None]  # else there is no such group here, or it says "max"


def oom_kills(*, root: Path = Path("/")) -> int:
    """Return how many processes the kernel has killed because memory ran out: in our control group, or on the machine.

    The count of the group is exact, no matter which process needed the memory. That of the machine includes the kills
    of other jobs, so it is used only where the group has none.
    """
    files = [group / name for group in memory_groups(root=root) for name in _EVENTS]
    for file in [*files, root / "proc/vmstat"]:
        count = pairs_of(read_proc_file(file)).get("oom_kill")
        if count is not None:
            return natural(count) or 0
    return 0
