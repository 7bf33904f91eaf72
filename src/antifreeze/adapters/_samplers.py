"""What can be found out about a sampler, and about the ones in it."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from antifreeze.child import has_state


def is_torchs(sampler: Any) -> bool:
    """Tell whether a sampler, and the one in it, are torch's own."""
    inner = getattr(sampler, "sampler", None)
    return type(sampler).__module__.startswith("torch.") and (inner is None or is_torchs(inner))


def chain_of(sampler: Any) -> list[Any]:
    """Return a sampler, the one in it, and so on."""
    found = [sampler]
    while (inner := _inner(found[-1])) is not None and all(inner is not s for s in found):
        found.append(inner)
    return found


def _inner(sampler: Any) -> Any:
    # Accelerate's samplers hold a batch sampler.
    inner = getattr(sampler, "sampler", None)
    return getattr(sampler, "batch_sampler", None) if inner is None else inner


def names_of(sampler: Any) -> str:
    """Return what kind of sampler it is."""
    return " of ".join(type(s).__name__ for s in chain_of(sampler))


def generators_of(sampler: Any) -> list[torch.Generator]:
    """Return the generators that a sampler, or the one in it, draws from."""
    found = [getattr(s, "generator", None) for s in chain_of(sampler)]
    return list({id(g): g for g in found if isinstance(g, torch.Generator)}.values())


def length_of(sampler: Any) -> int | None:
    """Return how many steps a sampler says it has."""
    with contextlib.suppress(TypeError, NotImplementedError, AttributeError):
        return len(sampler)
    return None


def owner_of(sampler: Any) -> Any:
    """Return the sampler, or the one in it, that can save and load where it stands; None if there is none."""
    return next((s for s in chain_of(sampler) if has_state(s)), None)
