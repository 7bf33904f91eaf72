"""Which of how many ranks this process is: from arguments, from torch.distributed, or from the launcher's variables.

Two sources must agree. A rank that is wrong is not noticed in training: every rank reads the same data,
or a part is never read. So a contradiction is an error that names both sides.

Launchers are nested: ``srun torchrun train.py`` has the variables of both, and SLURM's count nodes where
torchrun's count ranks. The one that started the process itself knows best, so they are asked from the innermost to the
outermost.

| launcher           | rank                          | world size           | rank on its node            |
|--------------------|-------------------------------|----------------------|-----------------------------|
| torchrun           | RANK                          | WORLD_SIZE           | LOCAL_RANK                  |
| Lightning          | from NODE_RANK and LOCAL_RANK | WORLD_SIZE           | LOCAL_RANK                  |
| Open MPI           | OMPI_COMM_WORLD_RANK          | OMPI_COMM_WORLD_SIZE | OMPI_COMM_WORLD_LOCAL_RANK  |
| MVAPICH            | MV2_COMM_WORLD_RANK           | MV2_COMM_WORLD_SIZE  | MV2_COMM_WORLD_LOCAL_RANK   |
| MPICH, Intel MPI   | PMI_RANK                      | PMI_SIZE             | MPI_LOCALRANKID             |
| SLURM (srun)       | SLURM_PROCID                  | SLURM_NTASKS         | SLURM_LOCALID               |

SLURM counts the tasks of the step in SLURM_STEP_NUM_TASKS, too, which goes before.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from antifreeze.core import ConfigError, natural
from antifreeze.core.arguments import integer

Environ = Mapping[str, str]

_PAIRS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)
_LOCAL = (
    "LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MV2_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "SLURM_LOCALID",
)
_SHELLS = ("bash", "interactive")
_OWN_STEPS = 0xFFFF_FFF0  # the batch script's, an interactive shell's
_INSTEAD = "pass rank= and world_size= to the loader, or call init_process_group before the first batch is asked for"


class Ranks(NamedTuple):
    """Which of how many ranks this process is, and the source of that."""

    rank: int
    world_size: int
    source: str
    """For messages; of a launcher, its variables and their values."""
    by_hand: bool = False
    """True if any program may have set them: ``RANK`` and ``WORLD_SIZE`` without a sign of torchrun."""


def find_ranks(rank: int | None = None, world_size: int | None = None) -> Ranks:
    """Return which rank this process is. Call it when iteration begins, not when a loader is made.

    A loader that is made before ``init_process_group`` and iterated over after it uses the group's rank.
    """
    module = distributed_module()
    pair = None if module is None else (int(module.get_rank()), int(module.get_world_size()))
    return resolve((rank, world_size), pair, os.environ)


def distributed_module() -> Any:
    """Return ``torch.distributed`` if it is initialised, else None. Never imports it."""
    module = sys.modules.get("torch.distributed")
    return module if module is not None and module.is_available() and module.is_initialized() else None


def resolve(arguments: tuple[object, object], distributed: tuple[int, int] | None, environ: Environ) -> Ranks:
    """Return which rank a process is, by the first source that says so: arguments, torch.distributed, environment."""
    given = _given(*arguments)
    group = None if distributed is None else Ranks(*distributed, "torch.distributed")
    if given is not None:
        if group is not None:
            return _within(given, group, f"rank {group.rank} of {group.world_size} in torch.distributed")
        launched = torchs(environ) if environ.get("TORCHELASTIC_RUN_ID") else None
        return given if launched is None else _within(given, launched, f"torchrun's {launched.source}")
    if group is not None:
        launched = torchs(environ)
        if launched is not None:
            _agree(group, launched)
        return group
    found = launchers_of(environ)
    for outer in found[1:]:
        _nested(found[0], outer)
    return found[0] if found else Ranks(0, 1, "one process")


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
    said = f"given as rank={rank!r}, world_size={world_size!r}"
    return _checked(integer("rank", rank), integer("world_size", world_size), said)._replace(source="arguments")


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


def _agree(group: Ranks, launched: Ranks) -> None:
    """Raise if the process group is not the job that was launched."""
    same = (group.rank, group.world_size) == (launched.rank, launched.world_size)
    # Without torchrun, the variables may be those of a pod or a node, in which more processes were started since.
    inside = launched.by_hand and group.world_size > launched.world_size
    if not same and not inside:
        raise ConfigError(
            f"torch.distributed says rank {group.rank} of {group.world_size}, the environment says {launched.source}",
            hint="call init_process_group without rank= and world_size= to take those of the launcher; or unset these "
            "variables, if they are left over; or pass rank= and world_size= to the loader",
            argument="rank",
        )


def _nested(inner: Ranks, outer: Ranks) -> None:
    """Raise if variables that any program may have set hide those of a launcher."""
    same_size = inner.world_size == outer.world_size
    hides = inner.world_size < outer.world_size or (same_size and inner.rank != outer.rank)
    if inner.by_hand and hides:
        raise ConfigError(
            f"the environment contradicts itself: {inner.source}, but {outer.source}",
            hint="unset RANK, LOCAL_RANK and WORLD_SIZE if they are left over, or set them in each process; or pass "
            "rank= and world_size= to the loader",
            argument="rank",
        )


# -- launchers --------------------------------------------------------------------------------------------------------


def launchers_of(environ: Environ) -> list[Ranks]:
    """Return what each launcher says, the innermost first. Raises if one of them sets only half of it."""
    said = [torchs(environ), _lightnings(environ), *(_pair(environ, *names) for names in _PAIRS)]
    found = [launched for launched in said if launched is not None]
    slurms = _slurms(environ, is_alone=not found)
    if slurms is not None:
        found.append(slurms)
    if not found:
        _refuse_half(environ)
    return found


def torchs(environ: Environ) -> Ranks | None:
    """Return what torchrun, or a program that sets the same variables, says."""
    launched = _pair(environ, "RANK", "WORLD_SIZE")
    return launched and launched._replace(by_hand=not _is_set(environ, "TORCHELASTIC_RUN_ID"))


def local_rank_of(environ: Environ) -> int | None:
    """Return which process of its machine this is, counted from 0; None if no launcher says so."""
    said = (natural(environ.get(name, "")) for name in _LOCAL)
    return next((rank for rank in said if rank is not None), None)


def _checked(rank: int, world_size: int, said: str) -> Ranks:
    if not 0 <= rank < world_size:
        raise ConfigError(
            f"invalid rank {rank} in a world of {world_size} ({said})",
            hint="ranks run from 0 to world_size - 1",
            argument="rank",
        )
    return Ranks(rank, world_size, said)


def _lightnings(environ: Environ) -> Ranks | None:
    if _is_set(environ, "RANK") or not (_is_set(environ, "LOCAL_RANK") and _is_set(environ, "WORLD_SIZE")):
        return None
    local, world_size = _number(environ, "LOCAL_RANK"), _number(environ, "WORLD_SIZE")
    node = _number(environ, "NODE_RANK") if _is_set(environ, "NODE_RANK") else 0
    said = f"NODE_RANK={node}, LOCAL_RANK={local}, WORLD_SIZE={world_size}"
    if node == 0:
        return _checked(local, world_size, said)
    if _is_set(environ, "LOCAL_WORLD_SIZE"):
        return _checked(node * _number(environ, "LOCAL_WORLD_SIZE") + local, world_size, said)
    raise ConfigError(
        f"the rank is unknown: {said} do not say how many processes each node has", hint=_INSTEAD, argument="rank"
    )


def _pair(environ: Environ, rank: str, world_size: str) -> Ranks | None:
    if not (_is_set(environ, rank) and _is_set(environ, world_size)):
        return None
    said = f"{rank}={environ[rank]}, {world_size}={environ[world_size]}"
    return _checked(_number(environ, rank), _number(environ, world_size), said)


def _slurms(environ: Environ, *, is_alone: bool) -> Ranks | None:
    size = "SLURM_STEP_NUM_TASKS" if _is_set(environ, "SLURM_STEP_NUM_TASKS") else "SLURM_NTASKS"
    launched = _pair(environ, "SLURM_PROCID", size)
    if launched is None or launched.rank or launched.world_size == 1 or _by_srun(environ):
        return launched
    # An interactive shell, and the script of a batch job, have the variables of a job, and run once.
    if not is_alone or environ.get("SLURM_JOB_NAME") in _SHELLS:
        return None
    if not _is_set(environ, "SLURM_JOB_ID"):
        return launched
    raise ConfigError(
        f"SLURM_NTASKS={launched.world_size}, but this process was not started by srun: it is the batch script's, and "
        "there is only one of it",
        hint="start it with `srun python ...`; or, if it is meant to be alone, pass rank=0 and world_size=1",
        argument="world_size",
    )


def _by_srun(environ: Environ) -> bool:
    """True if this is a task of a step that ``srun`` started; steps with large numbers are SLURM's own."""
    step = environ.get("SLURM_STEP_ID") or environ.get("SLURM_STEPID") or ""
    number = natural(step)
    return _is_set(environ, "SLURM_STEP_NUM_TASKS") if number is None else number < _OWN_STEPS


def _refuse_half(environ: Environ) -> None:
    """Raise if the environment says that there are several processes, and not which of them this is."""
    names = [name for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE") if _is_set(environ, name)]
    if not names and environ.get("SLURM_PROCID", "0") not in ("", "0"):
        names = ["SLURM_PROCID"]
    if not names or (names == ["WORLD_SIZE"] and _number(environ, "WORLD_SIZE") == 1):
        return
    missing = "SLURM_NTASKS" if names == ["SLURM_PROCID"] else "RANK" if "WORLD_SIZE" in names else "WORLD_SIZE"
    said = ", ".join(f"{name}={environ[name]}" for name in names)
    raise ConfigError(
        f"the environment sets {said} but not {missing}",
        hint=f"set {missing} too, or unset {', '.join(names)}; or {_INSTEAD}",
        argument="rank",
    )


def _is_set(environ: Environ, name: str) -> bool:
    return bool(environ.get(name, "").strip())


def _number(environ: Environ, name: str) -> int:
    text = environ[name].strip()
    number = natural(text.removeprefix("-"))
    if number is None:
        raise ConfigError(
            f"{name}={environ[name]!r:.100} in the environment is not an integer",
            hint=f"correct it or unset it; or {_INSTEAD}",
            argument="rank",
        )
    return -number if text.startswith("-") else number
