"""What launchers write into the environment of the processes that they start. Pure.

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

from collections.abc import Mapping
from typing import NamedTuple

from antifreeze.core import ConfigError, natural

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


class Launched(NamedTuple):
    """What one launcher says."""

    rank: int
    world_size: int
    said: str
    """The variables and their values, for messages."""
    by_hand: bool = False
    """True if any program may have written them: ``RANK`` and ``WORLD_SIZE`` without a sign of torchrun."""


def launchers_of(environ: Environ) -> list[Launched]:
    """Return what each launcher says, the innermost first. Raises if one of them sets only half of it."""
    said = [torchs(environ), _lightnings(environ), *(_pair(environ, *names) for names in _PAIRS)]
    found = [launched for launched in said if launched is not None]
    slurms = _slurms(environ, is_alone=not found)
    if slurms is not None:
        found.append(slurms)
    if not found:
        _refuse_half(environ)
    return found


def torchs(environ: Environ) -> Launched | None:
    """Return what torchrun, or a program that sets the same variables, says."""
    launched = _pair(environ, "RANK", "WORLD_SIZE")
    return launched and launched._replace(by_hand=not _is_set(environ, "TORCHELASTIC_RUN_ID"))


def local_rank_of(environ: Environ) -> int | None:
    """Return which process of its machine this is, counted from 0; None if no launcher says so."""
    said = (natural(environ.get(name, "")) for name in _LOCAL)
    return next((rank for rank in said if rank is not None), None)


def check_pair(rank: int, world_size: int, said: str) -> None:
    """Raise unless it is a rank of that many."""
    if not 0 <= rank < world_size:
        raise ConfigError(
            f"invalid rank {rank} in a world of {world_size} ({said})",
            hint="ranks run from 0 to world_size - 1",
            argument="rank",
        )


def _lightnings(environ: Environ) -> Launched | None:
    if _is_set(environ, "RANK") or not (_is_set(environ, "LOCAL_RANK") and _is_set(environ, "WORLD_SIZE")):
        return None
    local, world_size = _integer(environ, "LOCAL_RANK"), _integer(environ, "WORLD_SIZE")
    node = _integer(environ, "NODE_RANK") if _is_set(environ, "NODE_RANK") else 0
    said = f"NODE_RANK={node}, LOCAL_RANK={local}, WORLD_SIZE={world_size}"
    if node == 0:
        return _launched(local, world_size, said)
    if _is_set(environ, "LOCAL_WORLD_SIZE"):
        return _launched(node * _integer(environ, "LOCAL_WORLD_SIZE") + local, world_size, said)
    raise ConfigError(
        f"the rank is unknown: {said} do not say how many processes each node has", hint=_INSTEAD, argument="rank"
    )


def _pair(environ: Environ, rank: str, world_size: str) -> Launched | None:
    if not (_is_set(environ, rank) and _is_set(environ, world_size)):
        return None
    said = f"{rank}={environ[rank]}, {world_size}={environ[world_size]}"
    return _launched(_integer(environ, rank), _integer(environ, world_size), said)


def _launched(rank: int, world_size: int, said: str) -> Launched:
    check_pair(rank, world_size, said)
    return Launched(rank, world_size, said)


def _slurms(environ: Environ, *, is_alone: bool) -> Launched | None:
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
    if not names or (names == ["WORLD_SIZE"] and _integer(environ, "WORLD_SIZE") == 1):
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


def _integer(environ: Environ, name: str) -> int:
    text = environ[name].strip()
    number = natural(text.removeprefix("-"))
    if number is None:
        raise ConfigError(
            f"{name}={environ[name]!r:.100} in the environment is not an integer",
            hint=f"correct it or unset it; or {_INSTEAD}",
            argument="rank",
        )
    return -number if text.startswith("-") else number
