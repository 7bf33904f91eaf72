"""Which of how many: whoever says it, and whoever contradicts it."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import antifreeze as af
from antifreeze.distributed import Ranks, find_ranks, resolve
from antifreeze.distributed._rank_discovery import local_rank_of

NOTHING = (None, None)
LAUNCHERS = {
    "torchrun": ("RANK", "WORLD_SIZE"),
    "Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "MVAPICH": ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    "Intel MPI": ("PMI_RANK", "PMI_SIZE"),
    "SLURM": ("SLURM_PROCID", "SLURM_NTASKS"),
}
pairs = st.integers(1, 64).flatmap(lambda world: st.tuples(st.integers(0, world - 1), st.just(world)))


def torchrun(rank: int, world_size: int) -> dict[str, str]:
    return {"RANK": str(rank), "WORLD_SIZE": str(world_size), "TORCHELASTIC_RUN_ID": "none"}


def slurm(rank: int, world_size: int) -> dict[str, str]:
    return {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": str(rank),
        "SLURM_NTASKS": str(world_size),
        "SLURM_JOB_NAME": "train",
    }


# -- who is believed -----------------------------------------------------------------------------------------------


def test_a_process_that_nobody_launched_is_alone() -> None:
    """The notebook, the quick script."""
    assert resolve(NOTHING, None, {"PATH": "/bin", "WORLD_SIZE": "1"}) == Ranks(0, 1, "one process")


@pytest.mark.parametrize("launcher", LAUNCHERS)
@given(pair=pairs)
def test_every_launcher_is_understood(launcher: str, pair: tuple[int, int]) -> None:
    """Each has its own names for the same two numbers."""
    names = LAUNCHERS[launcher]
    found = resolve(NOTHING, None, {names[0]: str(pair[0]), names[1]: str(pair[1])})

    assert found[:2] == pair
    assert all(name in found.source for name in names)


@given(pair=pairs, argument=st.booleans(), environ=st.sampled_from([{}, torchrun(0, 1), slurm(0, 3), {"RANK": "x"}]))
def test_what_was_said_in_the_program_goes_first(pair: tuple[int, int], argument: bool, environ: Any) -> None:
    """Arguments, then the process group; variables are for those who say nothing."""
    if argument:
        assert resolve(pair, None, {} if "TORCHELASTIC_RUN_ID" in environ else environ) == Ranks(*pair, "arguments")
    else:
        assert resolve(NOTHING, pair, slurm(0, 3)) == Ranks(*pair, "torch.distributed")


@given(pair=pairs, nodes=st.integers(1, 64), node=st.integers(0, 63), mpi=st.booleans())
def test_the_inner_launcher_goes_before_the_outer_one(pair: tuple[int, int], nodes: int, node: int, mpi: bool) -> None:
    """With ``srun torchrun``, SLURM counts nodes; with ``srun mpirun``, the same."""
    names = LAUNCHERS["Open MPI"]
    inner = {names[0]: str(pair[0]), names[1]: str(pair[1])} if mpi else torchrun(*pair)

    assert resolve(NOTHING, None, slurm(node % nodes, nodes) | inner)[:2] == pair


@given(nodes=st.integers(1, 8), per_node=st.integers(1, 8), data=st.data())
def test_lightnings_variables_are_put_together(nodes: int, per_node: int, data: Any) -> None:
    """It numbers nodes, and processes on a node. How many a node has is not always said."""
    node, local = data.draw(st.integers(0, nodes - 1)), data.draw(st.integers(0, per_node - 1))
    environ = {"NODE_RANK": str(node), "LOCAL_RANK": str(local), "WORLD_SIZE": str(nodes * per_node)}
    if node:
        with pytest.raises(af.ConfigError, match="do not say how many processes each node has"):
            resolve(NOTHING, None, environ)
        environ["LOCAL_WORLD_SIZE"] = str(per_node)

    assert resolve(NOTHING, None, environ)[:2] == (node * per_node + local, nodes * per_node)


@given(pair=pairs, groups=st.integers(1, 8), data=st.data())
def test_a_group_that_is_smaller_than_the_world_can_be_given(pair: tuple[int, int], groups: int, data: Any) -> None:
    """Ranks that share one model by tensor parallelism read the same data."""
    world = pair[1] * groups
    rank = pair[0] if groups == 1 else data.draw(st.integers(0, world - 1))
    by_group = resolve(pair, (rank, world), {})
    by_torchrun = resolve(pair, None, torchrun(rank, world))

    assert by_group == by_torchrun == Ranks(*pair, "arguments")


@pytest.mark.parametrize(
    ("environ", "pair"),
    [
        ({"SLURM_JOB_NAME": "bash"}, (0, 1)),
        ({"SLURM_JOB_NAME": "interactive", "SLURM_STEP_ID": str(0xFFFF_FFFA)}, (0, 1)),
        ({"SLURM_JOB_NAME": "interactive", "SLURM_STEP_ID": "0"}, (0, 4)),
        ({"SLURM_JOB_NAME": "interactive", "SLURM_STEP_ID": "0", "SLURM_PROCID": "3"}, (3, 4)),
        ({"SLURM_JOB_ID": "7", "SLURM_STEPID": "2"}, (0, 4)),
        ({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "2", "SLURM_STEP_NUM_TASKS": "2"}, (0, 2)),
        ({"SLURM_JOB_ID": "7"} | torchrun(1, 2), (1, 2)),
    ],
    ids=["a shell", "a shell in a step", "srun in a shell", "srun in a shell, last", "srun", "fewer tasks", "torchrun"],
)
def test_a_process_of_slurm_is_a_task_only_if_srun_has_started_it(environ: dict[str, str], pair: Any) -> None:
    """A shell on a compute node has the variables of its job, and so has everything that is typed there."""
    assert resolve(NOTHING, None, {"SLURM_PROCID": "0", "SLURM_NTASKS": "4"} | environ)[:2] == pair


@given(pair=pairs)
def test_a_pod_may_start_more_processes_than_it_was_told_of(pair: tuple[int, int]) -> None:
    """Some platforms set RANK and WORLD_SIZE for the pod, and the program starts a process for each device in it."""
    world = pair[1] * 8
    assert resolve(NOTHING, (pair[0] * 8 + 3, world), {"RANK": str(pair[0]), "WORLD_SIZE": str(pair[1])}) == Ranks(
        pair[0] * 8 + 3, world, "torch.distributed"
    )


# -- who contradicts -----------------------------------------------------------------------------------------------

CONTRADICTIONS: dict[str, tuple[Any, Any, dict[str, str], tuple[str, ...]]] = {
    "half of the arguments": ((3, None), None, {}, ("rank=3", "world_size")),
    "the other half": ((None, 4), None, {}, ("world_size=4", "rank")),
    "text": (("3", 4), None, {}, ("rank='3'", "not an integer")),
    "a fraction": ((0, 4.0), None, {}, ("world_size=4.0", "not an integer")),
    "a flag": ((True, 4), None, {}, ("rank=True", "not an integer")),
    "beyond the end": ((4, 4), None, {}, ("rank 4", "world of 4")),
    "negative": ((-1, 4), None, {}, ("rank -1", "world of 4")),
    "no world": ((0, 0), None, {}, ("rank 0", "world of 0")),
    "beyond the end, by variables": (NOTHING, None, torchrun(4, 4), ("RANK=4, WORLD_SIZE=4",)),
    "no number": (NOTHING, None, torchrun(0, 4) | {"WORLD_SIZE": "four"}, ("WORLD_SIZE='four'", "not an integer")),
    "other than torchrun": (NOTHING, (0, 2), torchrun(0, 4), ("rank 0 of 2", "RANK=0, WORLD_SIZE=4")),
    "another rank than torchrun's": (NOTHING, (1, 4), torchrun(0, 4), ("rank 1 of 4", "RANK=0, WORLD_SIZE=4")),
    "a larger world than torchrun's": (NOTHING, (1, 8), torchrun(1, 4), ("rank 1 of 8", "RANK=1, WORLD_SIZE=4")),
    "a world of one in a job of four": (NOTHING, (0, 1), {"RANK": "2", "WORLD_SIZE": "4"}, ("rank 0 of 1", "RANK=2")),
    "arguments: another rank": ((0, 4), (1, 4), {}, ("rank=0, world_size=4", "rank 1 of 4", "torch.distributed")),
    "arguments: more than there are": ((0, 8), (1, 4), {}, ("rank=0, world_size=8", "rank 1 of 4")),
    "arguments: no divisor": ((0, 3), (1, 4), {}, ("rank=0, world_size=3", "rank 1 of 4", "no groups of 3")),
    "arguments: not torchrun's": ((0, 4), None, torchrun(2, 4), ("rank=0, world_size=4", "RANK=2, WORLD_SIZE=4")),
    "exported once for all tasks": (
        NOTHING,
        None,
        slurm(2, 4) | {"RANK": "0", "WORLD_SIZE": "4"},
        ("RANK=0, WORLD_SIZE=4", "SLURM_PROCID=2, SLURM_NTASKS=4"),
    ),
    "left over in the shell": (
        NOTHING,
        None,
        slurm(2, 4) | {"RANK": "0", "WORLD_SIZE": "1"},
        ("RANK=0, WORLD_SIZE=1", "SLURM_PROCID=2, SLURM_NTASKS=4"),
    ),
    "the script of a batch job": (
        NOTHING,
        None,
        {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"},
        ("SLURM_NTASKS=4", "not started by srun", "rank=0 and world_size=1"),
    ),
    "a rank of nobody knows how many": (NOTHING, None, {"RANK": "1"}, ("RANK=1", "but not WORLD_SIZE")),
    "a local rank alone": (NOTHING, None, {"LOCAL_RANK": "1"}, ("LOCAL_RANK=1", "but not WORLD_SIZE")),
    "a world, but which of it": (NOTHING, None, {"WORLD_SIZE": "4"}, ("WORLD_SIZE=4", "but not RANK")),
    "a task of nobody knows how many": (
        NOTHING,
        None,
        {"SLURM_PROCID": "1"},
        ("SLURM_PROCID=1", "but not SLURM_NTASKS"),
    ),
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_a_contradiction_is_an_error_that_names_both_sides(case: str) -> None:
    """Otherwise every rank would read the same data, and nobody would notice."""
    arguments, group, environ, words = CONTRADICTIONS[case]
    with pytest.raises(af.ConfigError) as caught:
        resolve(arguments, group, environ)

    assert [word for word in words if word not in str(caught.value)] == []
    assert caught.value.hint


words = st.one_of(st.just(None), st.integers(-2, 9).map(str), st.sampled_from(["", " 3 ", "x", "1.0", "²"]))
variables = sorted(
    {name for names in LAUNCHERS.values() for name in names} | {"LOCAL_RANK", "NODE_RANK", "SLURM_JOB_ID"}
)


@given(
    arguments=st.tuples(st.one_of(st.none(), st.integers(-1, 9)), st.one_of(st.none(), st.integers(-1, 9))),
    group=st.one_of(st.none(), pairs),
    environ=st.fixed_dictionaries(dict.fromkeys(variables, words)),
)
def test_whatever_is_said_the_answer_is_a_rank_of_a_world_or_an_error_with_a_hint(
    arguments: Any, group: Any, environ: dict[str, str | None]
) -> None:
    """Nothing else comes out, and what the program says is never overruled."""
    try:
        found = resolve(arguments, group, {name: text for name, text in environ.items() if text is not None})
    except af.ConfigError as error:
        found = Ranks(0, len(error.hint), "an error with a hint")
        arguments, group = NOTHING, None

    assert 0 <= found.rank < found.world_size
    assert group is None or arguments != NOTHING or found[:2] == group
    assert arguments == NOTHING or found[:2] == arguments


@given(world=st.integers(1, 16), by=st.sampled_from(sorted(LAUNCHERS)))
def test_no_two_ranks_of_a_job_get_the_same_data(world: int, by: str) -> None:
    """All of them together are all ranks, once each."""
    names = LAUNCHERS[by]
    found = [resolve(NOTHING, None, {names[0]: str(rank), names[1]: str(world)}) for rank in range(world)]

    assert [ranks[:2] for ranks in found] == [(rank, world) for rank in range(world)]


# -- this process --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "local"),
    [
        ({}, None),
        ({"LOCAL_RANK": "3"}, 3),
        ({"SLURM_LOCALID": "2"}, 2),
        ({"SLURM_LOCALID": "0", "LOCAL_RANK": "5"}, 5),
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "1"}, 1),
        ({"LOCAL_RANK": "x"}, None),
    ],
)
def test_the_rank_on_a_machine_is_the_innermost_launchers(environ: dict[str, str], local: int | None) -> None:
    """It decides who reads for a machine; it is no error if nobody knows."""
    assert local_rank_of(environ) == local


def test_arguments_are_used_where_nothing_else_is_known() -> None:
    """Who trains without torch.distributed says it this way."""
    assert find_ranks(rank=2, world_size=4) == Ranks(2, 4, "arguments")


SCRIPT = """
import sys, torch
from antifreeze.distributed import find_ranks
print(find_ranks().source)
torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
print(find_ranks().source)
torch.distributed.destroy_process_group()
print(find_ranks().source)
"""


def test_the_process_group_counts_from_the_moment_that_it_is_there() -> None:
    """A loader may be made before it, and is asked when iteration begins."""
    environ = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    command = [sys.executable, "-W", "error", "-c", SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True, env=environ)

    assert done.stdout.splitlines() == ["one process", "torch.distributed", "one process"]


def test_asking_imports_no_torch() -> None:
    """Who reads NumPy does not pay for torch."""
    code = "import sys; from antifreeze.distributed import find_ranks; find_ranks(0, 1); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.strip() == "False"
