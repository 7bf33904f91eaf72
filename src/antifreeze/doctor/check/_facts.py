"""What is known of the machine and the environment that a job would start in. Tests give any facts they like."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Sizes in bytes; None where the system does not say. The defaults are those of a good machine."""

    shm_nbytes: int | None = 32 << 30
    """The size of /dev/shm, which torch's DataLoader sends its batches through."""
    shm_free_nbytes: int | None = 32 << 30
    shm_stale_nbytes: int = 0
    """What lies there in the name of torch processes that are dead."""
    open_files: int = 1 << 20
    """The soft limit, which the job inherits (``ulimit -n``)."""
    memory_nbytes: int | None = 64 << 30
    """The memory of the machine, or of the control group if that has less."""
    machine_cores: int = 16
    """What ``os.cpu_count()`` says."""
    cores: int = 16
    """Those that this process may run on."""
    cpu_quota: float | None = None
    """How many cores' time the control group may use; None: no limit."""
    start_method: str = "fork"
    """How multiprocessing starts a process when nobody says how."""
    python: tuple[int, int] = (3, 11)
    torch: str = ""
    """The version that is installed."""
    ptrace_scope: int | None = None
    root: bool = False
    sigchld_ignored: bool = False
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Only variables that matter here; never all of them."""

    @property
    def usable_cores(self) -> int:
        """How many workers can run at the same time."""
        return max(1, min(self.cores, int(self.cpu_quota or self.cores)))
