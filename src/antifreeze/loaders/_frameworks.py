"""What frameworks do to a loader, where that calls for an answer."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable
from typing import Any

import torch.utils.data

from antifreeze.core import get_logger

logger = get_logger()

_ONLY_SEED = {
    "lightning.fabric.utilities.seed.pl_worker_init_function",
    "lightning_fabric.utilities.seed.pl_worker_init_function",
    "transformers.trainer_utils.seed_worker",
}


def without_seeders(worker_init_fn: Callable[[int], None] | None) -> Callable[[int], None] | None:
    """Return the function, or None for one that does nothing but seed a worker: that is done here for each batch.

    For its sake, workers would import all of Lightning or of transformers, which takes seconds.
    """
    inner = getattr(worker_init_fn, "func", worker_init_fn)  # both are given as a partial
    name = f"{getattr(inner, '__module__', '')}.{getattr(inner, '__qualname__', '')}"
    return None if name in _ONLY_SEED else worker_init_fn


_DEFAULTS = {
    "on_error": "raise",
    "skip_log": None,
    "stall_limit": None,
    "max_restarts": 100,
    "worker_memory_limit": None,
}
_OF_WORKERS = ("stall_limit", "max_restarts", "worker_memory_limit")


def warn_of_accelerate(loader: torch.utils.data.DataLoader[Any]) -> None:
    """Warn that Accelerate is about to build one of torch's loaders from ours, if anything is lost by that."""
    module = sys.modules.get("accelerate.data_loader")
    if getattr(module, "DataLoader", None) is not torch.utils.data.DataLoader:
        return  # it builds ours
    lost, is_parallel = [], loader.num_workers > 0
    if is_parallel:
        # Not get_start_method(): it would choose the default for the whole program.
        of_program = multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
        context = loader.multiprocessing_context
        method = of_program if context is None else context.get_start_method()
        how = "forked from this process" if method == "fork" else f"torch's ({method})"
        lost.append(f"its workers are {how}, not antifreeze's")
    given = [name for name, default in _DEFAULTS.items() if getattr(loader, name) != default]
    given = [name for name in given if is_parallel or name not in _OF_WORKERS]
    if given:
        lost.append(f"{', '.join(given)} {'has' if len(given) == 1 else 'have'} no effect")
    if lost:
        logger.warning(
            "antifreeze: accelerator.prepare() builds one of torch's loaders from this one: %s. "
            "Use prepare(accelerator, loader) from antifreeze.integrations.accelerate to keep antifreeze's loader",
            " and ".join(lost),
        )
