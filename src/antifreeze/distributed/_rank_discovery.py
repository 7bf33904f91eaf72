"""Which of how many ranks this process is: from arguments, from torch.distributed, or from the launcher's variables.

Two sources must agree. A rank that is wrong is not noticed in training: every rank reads the same data,
or a part is never read. So a contradiction is an error that names both sides.
"""

from __future__ import annotations

import operator
import os
import sys
from typing import Any, NamedTuple

from antifreeze.core import ConfigError
from antifreeze.distributed._launchers import Environ, Launched, check_pair, launchers_of, local_rank_of, torchs


class Ranks(NamedTuple):
    """Which of how many ranks this process is, and the source of that."""

    rank: int
    world_size: int
    source: str


def find_ranks(rank: int | None = None, world_size: int | None = None) -> Ranks:
    """Return which rank this process is. Call it when iteration begins, not when a loader is made.

    A loader that is made before ``init_process_group`` and iterated over after it uses the group's rank.
    """
    return resolve((rank, world_size), distributed_pair(), os.environ)


def local_rank() -> int | None:
    """Return which process of its machine this is, counted from 0; None if no launcher says so."""
    return local_rank_of(os.environ)


def distributed_module() -> Any:
    """Return ``torch.distributed`` if it is initialised, else None. Never imports it."""
    module = sys.modules.get("torch.distributed")
    return module if module is not None and module.is_available() and module.is_initialized() else None


def distributed_pair() -> tuple[int, int] | None:
    """Return rank and world size of the default process group, if there is one."""
    module = distributed_module()
    return None if module is None else (int(module.get_rank()), int(module.get_world_size()))


def resolve(arguments: tuple[object, object], distributed: tuple[int, int] | None, environ: Environ) -> Ranks:
    """Return which rank a process is, by the first source that says so: arguments, torch.distributed, environment."""
    given = _given(*arguments)
    group = None if distributed is None else Ranks(*distributed, "torch.distributed")
    if given is not None:
        if group is not None:
            return _within(given, group, f"rank {group.rank} of {group.world_size} in torch.distributed")
        launched = torchs(environ) if environ.get("TORCHELASTIC_RUN_ID") else None
        return given if launched is None else _within(given, _ranks(launched), f"torchrun's {launched.said}")
    if group is not None:
        launched = torchs(environ)
        if launched is not None:
            _agree(group, launched)
        return group
    found = launchers_of(environ)
    for outer in found[1:]:
        _nested(found[0], outer)
    return _ranks(found[0]) if found else Ranks(0, 1, "one process")


def _given(rank: object, world_size: object) -> Ranks | None:
    if rank is None and world_size is None:
        return None
    if rank is None or world_size is None:
        missing, there = ("rank", "world_size") if rank is None else ("world_size", "rank")
        raise ConfigError(
            f"{there}={world_size if rank is None else rank!r} was given without {missing}",
            hint="give both, or neither: then torch.distributed and the launcher are asked",
            argument=missing,
        )
    numbers = _integer("rank", rank), _integer("world_size", world_size)
    check_pair(*numbers, f"given as rank={rank!r}, world_size={world_size!r}")
    return Ranks(*numbers, "arguments")


def _integer(name: str, value: object) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        hint = "torch.distributed.get_rank() and get_world_size() give integers"
        raise ConfigError(f"{name}={value!r} is not an integer", hint=hint, argument=name)
    return operator.index(value)


def _ranks(launched: Launched) -> Ranks:
    return Ranks(launched.rank, launched.world_size, launched.said)


def _within(given: Ranks, whole: Ranks, said: str) -> Ranks:
    """Return the arguments if they can be a part of the job. Data-parallel groups are often smaller than the world."""
    asked = f"rank={given.rank}, world_size={given.world_size} were given"
    if whole.world_size % given.world_size:
        raise ConfigError(
            f"{asked}, but this process is {said}: {whole.world_size} ranks are no groups of {given.world_size}",
            hint="give the rank in the data-parallel group and its size, which divides the number of all ranks; "
            "or give neither",
            argument="world_size",
        )
    if whole.world_size == given.world_size and whole.rank != given.rank:
        raise ConfigError(
            f"{asked}, but this process is {said}: two ranks would read the same data",
            hint="leave both out, or give torch.distributed.get_rank() and get_world_size()",
            argument="rank",
        )
    return given


def _agree(group: Ranks, launched: Launched) -> None:
    """Raise if the process group is not the job that was launched."""
    same = (group.rank, group.world_size) == (launched.rank, launched.world_size)
    # Without torchrun, the variables may be those of a pod or a node, in which more processes were started since.
    inside = launched.by_hand and group.world_size > launched.world_size
    if not same and not inside:
        raise ConfigError(
            f"torch.distributed says rank {group.rank} of {group.world_size}, the environment says {launched.said}",
            hint="call init_process_group without rank= and world_size= to take those of the launcher; or unset these "
            "variables, if they are left over; or pass rank= and world_size= to the loader",
            argument="rank",
        )


def _nested(inner: Launched, outer: Launched) -> None:
    """Raise if variables that any program may have set hide those of a launcher."""
    same_size = inner.world_size == outer.world_size
    hides = inner.world_size < outer.world_size or (same_size and inner.rank != outer.rank)
    if inner.by_hand and hides:
        raise ConfigError(
            f"the environment contradicts itself: {inner.said}, but {outer.said}",
            hint="unset RANK, LOCAL_RANK and WORLD_SIZE if they are left over, or set them in each process; or pass "
            "rank= and world_size= to the loader",
            argument="rank",
        )
