"""Facts about the machine and the environment that a job would start in, and how they are read.

Rules see only ``Facts``, so tests choose any machine they like.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from antifreeze.core import natural, pairs_of, read_proc_file
from antifreeze.diagnosis import memory_limits

MIB = 1 << 20
_SHM = Path("/dev/shm")  # noqa: S108
_VARIABLES = ("OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM")
_UNLIMITED = 1 << 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What rules know about a machine: None where the system does not say. The defaults describe a good machine."""

    shm_nbytes: int | None = 32 << 30
    """The size of /dev/shm, which torch's DataLoader sends its batches through."""
    shm_free_nbytes: int | None = 32 << 30
    shm_stale_nbytes: int = 0
    """What torch processes that no longer exist left there."""
    open_files: int = 1 << 20
    """The soft limit, which the job inherits (``ulimit -n``)."""
    memory_nbytes: int | None = 64 << 30
    """The memory of the machine, or of the control group if that has less."""
    machine_cores: int = 16
    """What ``os.cpu_count()`` says."""
    cores: int = 16
    """The cores that this process may run on."""
    cpu_quota: float | None = None
    """How many cores' time the control group may use; None: no limit."""
    start_method: str = "fork"
    """The default start method of multiprocessing."""
    ptrace_scope: int | None = None
    is_root: bool = False
    sigchld_ignored: bool = False
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Only variables that matter here; never all of them."""

    @property
    def usable_cores(self) -> int:
        """How many workers can run at the same time."""
        return max(1, min(self.cores, int(self.cpu_quota or self.cores)))


def read_facts(root: Path = Path("/")) -> Facts:
    """Return the facts of this machine, without importing or starting anything."""
    size, free = _space(_SHM)
    soft_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return Facts(
        shm_nbytes=size,
        shm_free_nbytes=free,
        shm_stale_nbytes=_stale(_SHM, root / "proc"),
        open_files=_UNLIMITED if soft_limit == resource.RLIM_INFINITY else soft_limit,
        memory_nbytes=_memory(root),
        machine_cores=os.cpu_count() or 1,
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        cpu_quota=_quota(root),
        start_method=_start_method(sys.platform, sys.version_info[:2]),
        ptrace_scope=natural(read_proc_file(root / "proc/sys/kernel/yama/ptrace_scope")),
        is_root=os.geteuid() == 0,
        sigchld_ignored=signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN,
        environment=MappingProxyType({name: os.environ[name] for name in _VARIABLES if name in os.environ}),
    )


def _start_method(platform: str, python: tuple[int, int]) -> str:
    """Return the default of multiprocessing, without asking it: that would fix the choice for this process."""
    if platform != "linux":
        return "spawn"
    return "forkserver" if python >= (3, 14) else "fork"


def _space(path: Path) -> tuple[int | None, int | None]:
    """Return size and free space of a file system."""
    try:
        stat = os.statvfs(path)
    except OSError:
        return None, None
    return stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize


def _stale(shm: Path, proc: Path) -> int:
    """Return the bytes of ``torch_<pid>_...`` files whose process no longer exists."""
    nbytes = 0
    try:
        for path in shm.glob("torch_*_*"):
            pid = path.name.split("_")[1]
            if natural(pid) is not None and not (proc / pid).exists():
                nbytes += path.stat().st_blocks * 512
    except OSError:  # it was removed meanwhile, or is not readable
        return nbytes
    return nbytes


def _memory(root: Path) -> int | None:
    """Return the memory of the machine, or the least limit of the control groups if that is less."""
    total_kib = natural(pairs_of(read_proc_file(root / "proc/meminfo")).get("MemTotal", "").removesuffix("kB"))
    known = [limit_nbytes for limit_nbytes in memory_limits(root=root) if limit_nbytes < _UNLIMITED]
    known += [total_kib * 1024] if total_kib is not None else []
    return min(known, default=None)


def _quota(root: Path) -> float | None:
    """Return how many cores' time may be used: the least of all control groups of this process."""
    quotas: list[float] = []
    for group in _cpu_groups(root):
        words = read_proc_file(group / "cpu.max").split()
        words = words or [read_proc_file(group / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
        quota, period = (natural(word) for word in words) if len(words) == 2 else (None, None)
        if quota is not None and period:
            quotas.append(quota / period)
    return min(quotas, default=None)


def _cpu_groups(root: Path) -> Iterator[Path]:
    """Yield the folders of the CPU control groups of this process, each before those above it."""
    for line in read_proc_file(root / "proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers == "" or "cpu" in controllers.split(","):
            top = root / "sys/fs/cgroup" / controllers
            own = top / path.lstrip("/")
            # In a container the path can be that of the host, while its own group is mounted at the top.
            yield from (group for group in (own, *own.parents) if group.is_relative_to(top))
