"""Batches collated by torch go straight into shared memory: its own way would use files in /dev/shm."""

from __future__ import annotations

import sys
from typing import Any

from antifreeze.child._when_imported import when_imported
from antifreeze.transport import Outbox

_LARGE = 1 << 15


def install(outbox: Outbox) -> None:
    """Have torch's collating write into the outbox, now or when torch is imported."""
    when_imported("torch.storage", lambda: _replace(outbox))


def _replace(outbox: Outbox) -> None:
    """Replace what ``default_collate`` calls in a worker for the memory of a batch.

    Everything else that shares a storage goes its usual way.
    """
    storage: Any = sys.modules["torch.storage"]

    def _new_shared(cls: Any, size: int, *, device: Any = "cpu") -> Any:
        torch: Any = sys.modules["torch"]
        if size >= _LARGE and str(device) == "cpu":
            try:
                lent = outbox.lend(size)[:size]
            except OSError:  # no descriptor, no memory: it can be copied later
                return cls(size, device=device)
            return torch.from_numpy(lent).untyped_storage()
        return cls(size, device=device)

    storage.UntypedStorage._new_shared = classmethod(_new_shared)
