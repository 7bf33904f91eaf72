"""The registry of ``antifreeze doctor check``. A module holds one rule, or rules that share a search or a reason."""

from antifreeze.doctor.check._rule import MachineRule, ScriptRule
from antifreeze.doctor.check.rules import (
    endless_waits,
    forked_library,
    forked_workers,
    large_lists,
    loader_options,
    machine_limits,
    pickled_state,
    sample_endings,
    spawned_workers,
    worker_copies,
)

SCRIPT_RULES: tuple[ScriptRule, ...] = (
    *pickled_state.RULES,
    forked_library.forked_library,
    forked_workers.forked_openmp,
    forked_workers.cuda_in_worker,
    forked_workers.tokenizers_parallelism,
    endless_waits.sigchld_ignored,
    endless_waits.endless_retry,
    endless_waits.no_timeout,
    sample_endings.exit_in_worker,
    sample_endings.stop_iteration,
    sample_endings.local_error,
    sample_endings.not_data,
    worker_copies.duplicates,
    worker_copies.same_random,
    sample_endings.none_sample,
    spawned_workers.main_guard,
    spawned_workers.not_picklable,
    large_lists.python_list,
    loader_options.needs_workers,
    loader_options.batch_size_1,
    loader_options.many_workers,
)
MACHINE_RULES: tuple[MachineRule, ...] = (
    machine_limits.small_shm,
    machine_limits.stale_shm,
    machine_limits.few_files,
    machine_limits.little_memory,
    machine_limits.many_threads,
    endless_waits.sigchld_inherited,
)

__all__ = ["MACHINE_RULES", "SCRIPT_RULES"]
