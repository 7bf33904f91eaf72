"""The registry: every rule of ``antifreeze doctor check``. A module holds one rule, or rules that share one search."""

from antifreeze.doctor.check._rule import MachineRule, ScriptRule
from antifreeze.doctor.check.rules import (
    batch_size_1,
    cuda_in_worker,
    endless_retry,
    forked_library,
    forked_openmp,
    large_lists,
    main_guard,
    needs_workers,
    no_timeout,
    none_sample,
    not_picklable,
    oversubscription,
    pickled_state,
    process_limits,
    same_random,
    sample_endings,
    sharding,
    shared_memory,
    sigchld_ignored,
    tokenizers_parallelism,
)

SCRIPT_RULES: tuple[ScriptRule, ...] = (
    *pickled_state.RULES,
    forked_library.RULE,
    forked_openmp.RULE,
    tokenizers_parallelism.RULE,
    sigchld_ignored.RULE,
    endless_retry.RULE,
    no_timeout.RULE,
    *sample_endings.RULES,
    sharding.RULE,
    same_random.RULE,
    none_sample.RULE,
    cuda_in_worker.RULE,
    main_guard.RULE,
    not_picklable.RULE,
    needs_workers.RULE,
    large_lists.RULE,
    oversubscription.MANY_WORKERS,
    batch_size_1.RULE,
)
MACHINE_RULES: tuple[MachineRule, ...] = (
    *shared_memory.RULES,
    *process_limits.RULES,
    oversubscription.MANY_THREADS,
    sigchld_ignored.MACHINE_RULE,
)

__all__ = ["MACHINE_RULES", "SCRIPT_RULES"]
