"""Rules about the machine and the environment: pure, over facts and the loaders that will run there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from antifreeze.core import natural
from antifreeze.doctor.check._facts import MIB, Facts
from antifreeze.doctor.check._finding import CheckFinding, Code
from antifreeze.doctor.check._loaders import Loader

DOCKER_SHM = 64 * MIB
_ROOMY_SHM = 2048 * MIB
_IMAGE = 3 * 224 * 224
"""The bytes of a common sample, to say what fits."""
_LEAST_FILES = 1024
_TENSORS = 4
"""How many tensors a batch has, as a guess: each is a descriptor while it waits."""
_SPAWNED = 150 * MIB
"""What a worker that is not forked takes with torch imported, as measured."""


def check_machine(facts: Facts, loaders: Sequence[Loader] | None = None) -> list[CheckFinding]:
    """Return what will bite. None: nobody knows what will run here; else only what these loaders need counts."""
    torch_loaders = None if loaders is None else [x for x in loaders if x.has_workers and not x.ours]
    found = [*_shared_memory(facts, torch_loaders), *_files(facts, torch_loaders), *_threads(facts)]
    found += _memory(facts, torch_loaders or [])
    if facts.sigchld_ignored and torch_loaders != []:
        reason = (
            "SIGCHLD is ignored here, and jobs inherit that: no loader learns that a worker was killed, and waits on."
        )
        found.append(
            CheckFinding(code=Code.SIGCHLD, reason=reason, change="start the job from a shell that does not ignore it")
        )
    return found


def notes(facts: Facts) -> list[str]:
    """Return what is good to know and no fault."""
    if facts.ptrace_scope and not facts.root:
        allowed = "only its own children" if facts.ptrace_scope == 1 else "no process"
        return [
            f"ptrace_scope is {facts.ptrace_scope}: `antifreeze doctor PID` may look into {allowed} without sudo. "
            "`antifreeze doctor run -- python train.py` works."
            if facts.ptrace_scope == 1
            else f"ptrace_scope is {facts.ptrace_scope}: `antifreeze doctor` may look into {allowed} without sudo."
        ]
    return []


def _in_flight(loader: Loader) -> int:
    """Return how many batches wait in shared memory at once."""
    return (loader.workers or 1) * _constant(loader, "prefetch_factor", 2)


def _constant(loader: Loader, name: str, default: int) -> int:
    value = getattr(loader.arguments.get(name), "value", default)
    return value if type(value) is int else default


def _shared_memory(facts: Facts, loaders: list[Loader] | None) -> Iterator[CheckFinding]:
    size, free = facts.shm_nbytes, facts.shm_free_nbytes
    if size is None or free is None or loaders == []:
        return
    samples = sum(_in_flight(x) * _constant(x, "batch_size", 1) for x in loaders or ())
    needed = (
        f"these loaders keep up to {samples:,} samples there at once: {free // max(1, samples) >> 10} KiB for each"
        * bool(samples)
    )
    if size <= DOCKER_SHM or (size < _ROOMY_SHM and free < samples * _IMAGE):
        reason = (
            f"shared memory (/dev/shm) has {size // MIB} MiB, {free // MIB} of them free. torch's DataLoader sends "
            f"every batch through it; {needed or 'Docker gives 64 MiB unless told otherwise'}. When it is full, "
            "workers die of a bus error, or the loader waits for ever."
        )
        change = "docker run --shm-size=8g ...   (Kubernetes: an emptyDir with medium: Memory at /dev/shm)"
        yield CheckFinding(code=Code.SMALL_SHM, reason=reason, change=change)
    if facts.shm_stale_nbytes > max(64 * MIB, size // 10):
        reason = f"{facts.shm_stale_nbytes // MIB} MiB of /dev/shm belong to torch processes that are dead."
        yield CheckFinding(
            code=Code.STALE_SHM, reason=reason, change="rm /dev/shm/torch_<pid>_* of processes that are gone"
        )


def _files(facts: Facts, loaders: list[Loader] | None) -> Iterator[CheckFinding]:
    if loaders == []:
        return
    needed = sum(_in_flight(loader) * _TENSORS for loader in loaders or ())
    if facts.open_files < max(_LEAST_FILES, 2 * needed):
        reason = (
            f"at most {facts.open_files:,} files may be open (ulimit -n). torch's DataLoader needs one for each tensor "
            "on its way, and fails with `Too many open files` or an EOFError."
        )
        yield CheckFinding(code=Code.FEW_FILES, reason=reason, change=f"ulimit -n {max(4096, 4 * needed)}")


def _threads(facts: Facts) -> Iterator[CheckFinding]:
    given = facts.environment.get("OMP_NUM_THREADS", "")
    if (threads := natural(given)) is not None:
        if threads > facts.machine_cores:
            reason = f"OMP_NUM_THREADS={threads} on {facts.machine_cores} cores: the threads of torch take turns."
            change = f"export OMP_NUM_THREADS={facts.usable_cores}"
            yield CheckFinding(code=Code.MANY_THREADS, reason=reason, change=change)
    elif facts.cpu_quota is not None and facts.cpu_quota * 2 <= facts.cores:
        reason = (
            f"this container may use {facts.cpu_quota:g} of the {facts.cores} cores that programs see: torch starts a "
            "thread for each, and the kernel stops all of them again and again."
        )
        yield CheckFinding(code=Code.MANY_THREADS, reason=reason, change=f"export OMP_NUM_THREADS={facts.usable_cores}")


def _memory(facts: Facts, loaders: list[Loader]) -> Iterator[CheckFinding]:
    workers = sum(loader.workers or 0 for loader in loaders if loader.pickles)
    limit = facts.memory_nbytes
    if limit is None or workers * _SPAWNED * 2 <= limit:
        return
    reason = (
        f"{workers} workers that are not forked take about {workers * _SPAWNED // MIB:,} MiB with torch alone, and a "
        f"copy of the dataset each; this job may use {limit // MIB:,} MiB."
    )
    yield CheckFinding(code=Code.LITTLE_MEMORY, reason=reason, change="use fewer workers, or give the job more memory")
