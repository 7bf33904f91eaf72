"""``small-shm``, ``stale-shm``, ``few-files``, ``little-memory``, ``many-threads``: limits that a job would exceed."""

from __future__ import annotations

from collections.abc import Iterator

from antifreeze.core import natural
from antifreeze.doctor.check._facts import MIB
from antifreeze.doctor.check._rule import MachineContext, Violation, Weight, rule

_DOCKER_NBYTES = 64 * MIB
_ROOMY_NBYTES = 2048 * MIB
_SAMPLE_NBYTES = 3 * 224 * 224
"""A common sample, to say what fits."""
_MIN_FILES = 1024
_TENSORS_PER_BATCH = 4
"""A guess: each tensor is a descriptor while it waits."""
_SPAWNED_NBYTES = 150 * MIB
"""Memory of a worker that is not forked with torch imported, as measured."""


@rule(
    "small-shm",
    Weight.FREEZE,
    "torch's DataLoader sends every batch through it. When it is full, workers die of a bus error, or the loader "
    "waits forever.",
    section="shared-memory",
)
def small_shm(context: MachineContext) -> Iterator[Violation]:
    """Find a /dev/shm that is too small for the batches in flight."""
    size, free = context.facts.shm_nbytes, context.facts.shm_free_nbytes
    if size is None or free is None or context.loaders == []:
        return
    samples = sum(loader.batches_in_flight * loader.constant("batch_size", 1) for loader in context.loaders or ())
    if size <= _DOCKER_NBYTES or (size < _ROOMY_NBYTES and free < samples * _SAMPLE_NBYTES):
        needed = (
            f"these loaders keep up to {samples:,} samples there at once: {free // samples >> 10} KiB for each"
            if samples
            else "Docker provides 64 MiB by default"
        )
        problem = f"shared memory (/dev/shm) has {size // MIB} MiB, {free // MIB} of them free; {needed}."
        change = "docker run --shm-size=8g ...   (Kubernetes: an emptyDir with medium: Memory at /dev/shm)"
        yield Violation(None, problem, change)


@rule("stale-shm", Weight.WASTE, "It is freed only when the files are removed.")
def stale_shm(context: MachineContext) -> Iterator[Violation]:
    """Find shared memory that dead processes left behind."""
    size, stale = context.facts.shm_nbytes, context.facts.shm_stale_nbytes
    if size is not None and context.loaders != [] and stale > max(64 * MIB, size // 10):
        problem = f"{stale // MIB} MiB of /dev/shm belong to torch processes that no longer exist."
        yield Violation(None, problem, "rm /dev/shm/torch_<pid>_* of these processes")


@rule(
    "few-files",
    Weight.ERROR,
    "torch's DataLoader needs one for each tensor in flight, and fails with `Too many open files` or an EOFError.",
    section="unreadablefile",
)
def few_files(context: MachineContext) -> Iterator[Violation]:
    """Find a low limit of open files."""
    if context.loaders == []:
        return
    needed = sum(loader.batches_in_flight * _TENSORS_PER_BATCH for loader in context.loaders or ())
    if context.facts.open_files < max(_MIN_FILES, 2 * needed):
        problem = f"at most {context.facts.open_files:,} files may be open (ulimit -n)."
        yield Violation(None, problem, f"ulimit -n {max(4096, 4 * needed)}")


@rule("little-memory", Weight.ERROR, "The kernel kills a process of the job when it runs out.", section="out-of-memory")
def little_memory(context: MachineContext) -> Iterator[Violation]:
    """Find less memory than workers that are not forked need."""
    workers = sum(loader.workers or 0 for loader in context.loaders or () if loader.can_spawn)
    limit_nbytes = context.facts.memory_nbytes
    if limit_nbytes is not None and workers * _SPAWNED_NBYTES * 2 > limit_nbytes:
        problem = (
            f"{workers} workers that are not forked take about {workers * _SPAWNED_NBYTES // MIB:,} MiB with torch "
            f"alone, and a copy of the dataset each; this job may use {limit_nbytes // MIB:,} MiB."
        )
        yield Violation(None, problem, "use fewer workers, or give the job more memory")


@rule(
    "many-threads",
    Weight.WASTE,
    "The threads take turns, or the kernel throttles all of them.",
    section="training-is-slow-but-the-loader-alone-is-fast",
)
def many_threads(context: MachineContext) -> Iterator[Violation]:
    """Find an OpenMP setting, or a CPU quota without one, that gives torch more threads than cores."""
    facts = context.facts
    change = f"export OMP_NUM_THREADS={facts.usable_cores}"
    threads = natural(facts.environment.get("OMP_NUM_THREADS", ""))
    if threads is not None:
        if threads > facts.machine_cores:
            yield Violation(None, f"OMP_NUM_THREADS={threads} on {facts.machine_cores} cores.", change)
    elif facts.cpu_quota is not None and facts.cpu_quota * 2 <= facts.cores:
        problem = (
            f"this container may use {facts.cpu_quota:g} of the {facts.cores} cores that programs see, and torch "
            "starts a thread for each."
        )
        yield Violation(None, problem, change)
