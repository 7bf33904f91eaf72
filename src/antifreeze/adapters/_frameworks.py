"""What frameworks do to a loader, where that calls for an answer."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

import torch.utils.data

logger = logging.getLogger("antifreeze")

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


def warn_of_accelerate() -> None:
    """Say that Accelerate is about to build a loader of torch's from one of ours, unless it is told to build ours."""
    module = sys.modules.get("accelerate.data_loader")
    if getattr(module, "DataLoader", None) is torch.utils.data.DataLoader:
        logger.warning(
            "antifreeze: accelerator.prepare() builds a loader of torch's from this one, and forks workers from this "
            "process. prepare(accelerator, loader) of antifreeze.adapters.accelerate keeps antifreeze's"
        )
