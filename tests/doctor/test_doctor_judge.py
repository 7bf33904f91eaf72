"""From what was seen to a verdict: one made-up job for each rule."""

from __future__ import annotations

import dataclasses
import math

import pytest
from doctor_made import (
    BARRIER,
    BIG,
    ENDS,
    GETS_DATA,
    IDLE,
    LAUNCHES,
    LOADS,
    LOOP,
    MAIN,
    OUR_LOOP,
    OURS,
    PYTHON,
    REDUCE,
    SCRIPT,
    SPAWNED,
    SPAWNS,
    STANDARD,
    STARTS,
    at,
    loads,
    moving,
    process,
    trainer,
    watched,
    worker,
)

from antifreeze.diagnosis import Cause, TargetKind
from antifreeze.doctor.job import Confidence, Diagnosis, Verdict
from antifreeze.doctor.job._observation import Machine, Observation, Process, Thread
from antifreeze.doctor.job._roles import Doing, doing, find_jobs, is_helper
from antifreeze.doctor.job._thread_stacks import NOT_ALLOWED, NOT_INSTALLED
from antifreeze.doctor.job._verdict import is_enough, judge

SLEEP = {"syscall": "clock_nanosleep", "wchan": "hrtimer_nanosleep"}
LOCK = {"syscall": "futex", "wchan": "futex_do_wait", "limit_s": math.inf}
READ = {
    "syscall": "recvfrom",
    "target": "socket to 10.0.0.1:443",
    "target_kind": TargetKind.PEER,
    "wchan": "wait_woken",
    "limit_s": math.inf,
}
PIPE = {"syscall": "write", "fd": 1, "target": "pipe:[5]", "target_kind": TargetKind.PIPE, "wchan": "pipe_write"}


def first(found: Diagnosis) -> tuple[Cause, int]:
    """Return the cause that is named first, and of which process."""
    return found.suspects[0].cause, found.suspects[0].pid


# -- one training process, and its own line -------------------------------------------------------------------------


def test_a_job_that_computes_is_healthy() -> None:
    """One process is a job, too."""
    found = judge(watched(trainer(MAIN, state="R", thread={"syscall": "", "wchan": ""}), later=moving(100)))

    assert found.verdict is Verdict.HEALTHY
    assert found.suspects == ()
    assert found.summary == "The job is making progress."
    assert any(f"{SCRIPT}:90 in main (100%)" in note for note in found.notes)


@pytest.mark.parametrize(
    ("thread", "cause"),
    [
        (READ, Cause.NETWORK),
        (LOCK, Cause.LOCK),
        (PIPE, Cause.FULL_PIPE),
        ({**SLEEP, "limit_s": 1e6}, Cause.SLEEPING),
        (
            {"syscall": "read", "fd": 7, "target": "pipe:[9]", "target_kind": TargetKind.PIPE, "limit_s": math.inf},
            Cause.CHILD,
        ),
        ({"syscall": "openat", "wchan": "fuse_wait"}, Cause.FILE),
    ],
)
def test_a_line_of_its_own_that_will_not_end_is_stuck(thread: dict[str, object], cause: Cause) -> None:
    """The line is named."""
    found = judge(watched(trainer(MAIN, thread=thread)))

    assert found.verdict is Verdict.STUCK
    assert first(found) == (cause, 100)
    assert f"{SCRIPT}:90 in main" in found.summary
    assert "No progress for at least 6 s" in found.summary
    assert found.sure


def test_a_wait_without_a_limit_is_slow_until_it_has_lasted() -> None:
    """And looking longer would change that."""
    found = judge(watched(trainer(MAIN, thread=READ), looks=2))

    assert found.verdict is Verdict.SLOW
    assert not found.sure
    assert not is_enough(watched(trainer(MAIN, thread=READ), looks=2))


def test_who_has_watched_before_need_not_look_as_long() -> None:
    """`doctor run` knows for how long the job stood still."""
    found = judge(watched(trainer(MAIN, thread=READ), looks=2, still_s=30.0))

    assert found.verdict is Verdict.STUCK
    assert "at least 32 s" in found.summary


def test_the_kernel_knows_how_long_a_thread_has_not_run() -> None:
    """Then it is known at the second look."""
    found = judge(watched(trainer(MAIN, thread={**READ, "idle_s": 4000.0}), looks=2))

    assert found.verdict is Verdict.STUCK
    assert "at least 67 minutes" in found.summary


def test_a_sleep_that_ends_soon_is_slow() -> None:
    """A retry after a minute is no freeze."""
    found = judge(watched(trainer(MAIN, thread={**SLEEP, "limit_s": 60.0})))

    assert found.verdict is Verdict.SLOW
    assert first(found) == (Cause.SLEEPING, 100)
    assert "this may end by itself" in found.summary
    assert "60 s of this sleep are left" in found.suspects[0].finding.evidence_lines


@pytest.mark.parametrize(
    ("frames", "thread", "state", "cause"),
    [
        ((at(f"{STANDARD}/pdb.py", "interaction"), *MAIN), {"syscall": "read", "fd": 0}, "S", Cause.INPUT),
        (MAIN, {"syscall": "read", "fd": 0, "target": "/dev/pts/1", "target_kind": TargetKind.FILE}, "S", Cause.INPUT),
        (MAIN, {"syscall": ""}, "t", Cause.TRACED),
    ],
)
def test_what_a_person_does_is_healthy(
    frames: tuple[object, ...], thread: dict[str, object], state: str, cause: Cause
) -> None:
    """A prompt, or a debugger: it is said, but it is no freeze."""
    found = judge(watched(trainer(frames, thread=thread, state=state)))  # type: ignore[arg-type]

    assert found.verdict is Verdict.HEALTHY
    assert first(found) == (cause, 100)
    assert "will not end" not in found.summary


def test_a_stopped_trainer_is_stuck_even_without_lines() -> None:
    """And that is certain."""
    found = judge(watched(trainer((), state="T", thread={"syscall": ""}), worker()))

    assert found.verdict is Verdict.STUCK
    assert first(found) == (Cause.STOPPED, 100)
    assert found.suspects[0].confidence is Confidence.CERTAIN


def test_a_trainer_whose_program_moves_is_not_stuck() -> None:
    """It waits for a compiler, say; the compiler computes."""
    waits = trainer(
        (at(f"{STANDARD}/subprocess.py", "_try_wait"), *MAIN), thread={"syscall": "wait4", "limit_s": math.inf}
    )
    child = process(300, parent=100, name="gcc", command=("gcc", "a.c"), program="gcc", state="R")

    assert judge(watched(waits, child, later=moving(300))).verdict is Verdict.HEALTHY
    stands = judge(watched(trainer(MAIN, thread={"syscall": "wait4", "limit_s": math.inf}), child))
    assert first(stands) == (Cause.CHILD, 100)


# -- workers ---------------------------------------------------------------------------------------------------------


def test_the_worker_that_stands_still_is_named_not_the_trainer() -> None:
    """With its number, its line, and who waits for it."""
    stuck = worker(loads(at(SCRIPT, "__getitem__", 42)), 102, thread=READ)
    found = judge(watched(trainer(), worker(), stuck))

    assert found.verdict is Verdict.STUCK
    assert first(found) == (Cause.NETWORK, 102)
    assert found.summary.startswith(f"Worker 1 (pid 102) waits for a network peer, at {SCRIPT}:42 in __getitem__. ")
    assert "The training process (100) waits for data from its workers." in found.summary
    assert [suspect.pid for suspect in found.suspects] == [102]


def test_one_that_is_stuck_holds_up_those_that_move() -> None:
    """Batches come in order: whoever is ahead only fills the queue."""
    found = judge(watched(trainer(), worker(LOADS, 101), worker(LOADS, 102, thread=READ), later=moving(101)))

    assert found.verdict is Verdict.STUCK
    assert first(found) == (Cause.NETWORK, 102)
    assert [suspect.cause for suspect in found.suspects] == [Cause.NETWORK, Cause.BUSY]


def test_a_lock_with_a_worker_that_moves_is_slow() -> None:
    """Who moves may hold it."""
    held = worker(LOADS, 102, thread={**LOCK, "shared": True})

    assert judge(watched(trainer(), worker(LOADS, 101), held, later=moving(101))).verdict is Verdict.SLOW
    assert judge(watched(trainer(), worker(IDLE, 101), held)).verdict is Verdict.STUCK


def test_workers_that_all_move_are_slow_and_the_line_is_told() -> None:
    """No batch has come, but one may."""
    workers = [worker(LOADS, 101 + i, state="R", thread={"syscall": ""}) for i in range(3)]
    found = judge(watched(trainer(), *workers, later=moving(101, 102, 103)))

    assert found.verdict is Verdict.SLOW
    assert found.suspects[0].cause is Cause.BUSY
    assert "(and 2 more like it)" in found.summary
    assert "workers: 3 at work; mostly at /home/me/train.py:42 in __getitem__ (100%)" in found.notes
    long = judge(watched(trainer(), *workers, later=moving(101, 102, 103), still_s=400.0))
    assert long.verdict is Verdict.STUCK


def test_a_loop_that_gets_batches_is_never_stuck() -> None:
    """Its main thread wakes up for each of them."""

    def later(look: int, seen: Process) -> Process:
        threads = tuple(dataclasses.replace(thread, wakes=50 * look) for thread in seen.threads)
        return dataclasses.replace(seen, threads=threads) if seen.pid == 100 else seen

    found = judge(watched(trainer(), worker(LOADS, thread=READ), later=later))

    assert found.verdict is Verdict.SLOW
    assert found.suspects == ()
    assert "its loop waits for data in 100% of the snapshots" in found.summary


def test_a_forked_worker_that_nobody_can_wake() -> None:
    """The lock or the thread was lost in the fork."""
    thread = {**LOCK, "libraries": ("polars.abi3.so",)}
    found = judge(watched(trainer(), worker(LOADS, thread=thread), later=lambda _, seen: seen))

    assert found.verdict is Verdict.STUCK
    assert first(found) == (Cause.FORK, 101)
    assert found.suspects[0].confidence is Confidence.CERTAIN
    assert "native code that it has called: polars.abi3.so" in found.suspects[0].finding.evidence_lines


def test_a_single_look_does_not_tell_a_lost_thread_from_one_that_sleeps() -> None:
    """A pool that the worker has made after the fork may be about to wake it; who has watched before knows better."""
    one = watched(trainer(), worker(LOADS, thread=LOCK), looks=1)
    found = judge(one)

    assert (found.verdict, found.sure) == (Verdict.SLOW, False)
    assert judge(dataclasses.replace(one, still_s=30.0)).verdict is Verdict.STUCK


@pytest.mark.parametrize(
    "thread",
    [
        {**LOCK, "shared": True},
        {**LOCK, "limit_s": 5.0},
    ],
)
def test_a_lock_that_somebody_can_release_is_no_fork(thread: dict[str, object]) -> None:
    """One of another process, or one with a limit."""
    assert first(judge(watched(trainer(), worker(LOADS, thread=thread))))[0] is Cause.LOCK


def test_a_thread_of_the_worker_that_moves_may_release_the_lock() -> None:
    """So it is not lost."""

    def later(look: int, seen: Process) -> Process:
        if seen.pid != 101:
            return seen
        return dataclasses.replace(seen, threads=(seen.main, Thread(tid=555, state="S", wakes=40 * look)))

    assert first(judge(watched(trainer(), worker(LOADS, thread=LOCK), later=later)))[0] is Cause.LOCK


def test_a_lock_whose_owner_does_not_live_is_lost() -> None:
    """The number of the thread that holds it stands in the lock."""
    gone = {**LOCK, "shared": True, "owner": 99}

    assert first(judge(watched(trainer(), worker(LOADS, thread=gone))))[0] is Cause.FORK


def test_a_stopped_worker_is_not_idle() -> None:
    """Though its lines say so."""
    found = judge(watched(trainer(), worker(IDLE, 101, state="T", thread={"syscall": ""}), worker(IDLE, 102)))

    assert found.verdict is Verdict.STUCK
    assert first(found) == (Cause.STOPPED, 101)


def test_an_end_that_waits_for_a_stopped_worker() -> None:
    """The loop is over, and its workers do not end."""
    found = judge(watched(trainer(ENDS), worker(IDLE, state="T", thread={"syscall": ""}), worker(IDLE, 102)))

    assert first(found) == (Cause.STOPPED, 101)
    assert "waits for its workers to end" in found.summary


def test_workers_that_do_not_start() -> None:
    """The trainer hands over the dataset, and the worker unpickles it for ever."""
    frames = (at(SCRIPT, "__setstate__", 5), at(f"{STANDARD}/multiprocessing/spawn.py", "_main"))
    starting = process(
        101,
        frames,
        parent=100,
        command=("python", "-c", "...", "--multiprocessing-fork"),
        state="R",
        thread={"syscall": ""},
    )
    found = judge(
        watched(
            trainer(STARTS, thread={"syscall": "write", "target": "pipe:[1]", "target_kind": TargetKind.PIPE}),
            starting,
            later=moving(101),
        )
    )

    assert first(found) == (Cause.STARTUP, 101)
    assert found.verdict is Verdict.SLOW


# -- all idle: where is the batch? -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("machine", "cause", "confidence"),
    [
        (BIG, Cause.LOST_BATCH, Confidence.LIKELY),
        (dataclasses.replace(BIG, last_error="PicklingError: no"), Cause.LOST_BATCH, Confidence.CERTAIN),
        (
            dataclasses.replace(BIG, last_error="RuntimeError: unable to mmap 8 bytes", is_shm_exhausted=True),
            Cause.SHARED_MEMORY,
            Confidence.CERTAIN,
        ),
        (
            dataclasses.replace(BIG, last_error="OSError: No space left on device", is_shm_exhausted=True),
            Cause.SHARED_MEMORY,
            Confidence.CERTAIN,
        ),
        (dataclasses.replace(BIG, shm_failed=2), Cause.SHARED_MEMORY, Confidence.CERTAIN),
        (dataclasses.replace(BIG, shm_nbytes=64 << 20), Cause.SHARED_MEMORY, Confidence.POSSIBLE),
        (dataclasses.replace(BIG, shm_free_nbytes=1 << 20), Cause.SHARED_MEMORY, Confidence.POSSIBLE),
        (Machine(), Cause.LOST_BATCH, Confidence.LIKELY),
    ],
)
def test_all_workers_are_idle(machine: Machine, cause: Cause, confidence: Confidence) -> None:
    """Then what the loop waits for was lost, and how is told by what lies around."""
    found = judge(watched(trainer(), worker(IDLE, 101), worker(IDLE, 102), machine=machine))

    assert found.verdict is Verdict.STUCK
    assert first(found) == (cause, 100)
    assert found.suspects[0].confidence is confidence
    lines = found.suspects[0].finding.evidence_lines
    assert "2 workers were idle" in lines[0]
    assert any("size of /dev/shm" in line for line in lines) == (cause is Cause.SHARED_MEMORY)
    assert not machine.last_error or any(machine.last_error in line for line in lines)


def test_a_single_look_is_not_sure() -> None:
    """A worker may have been between two batches."""
    assert not judge(watched(trainer(), worker(), looks=1)).sure
    assert judge(watched(trainer(), worker(), looks=2)).sure


def test_a_trainer_that_is_not_told_of_deaths() -> None:
    """It ignores SIGCHLD, and some workers are gone."""
    found = judge(watched(trainer(ignores_sigchld=True), worker()))

    assert first(found) == (Cause.UNNOTICED_DEATH, 100)
    assert found.suspects[0].confidence is Confidence.CERTAIN
    assert (
        "the training process ignores SIGCHLD, and is not notified when a worker exits"
        in found.suspects[0].finding.evidence_lines
    )
    assert "worker was idle" in found.suspects[0].finding.evidence_lines[0]


def test_no_workers_are_left() -> None:
    """They died, and nobody noticed."""
    found = judge(watched(trainer()))

    assert first(found) == (Cause.UNNOTICED_DEATH, 100)
    assert found.suspects[0].confidence is Confidence.LIKELY
    assert "there are no worker processes" in found.suspects[0].finding.evidence_lines[0]


def test_a_worker_that_has_ended_is_not_who_holds_up_the_job() -> None:
    """One that has no more samples ends, and stays a zombie until its loader is over."""
    ended = worker((), 101, state="Z", thread={"syscall": "", "wchan": ""}, command=(), program="")
    busy = worker(LOADS, 102, state="R", thread={"syscall": ""})
    found = judge(watched(trainer(), ended, busy, later=moving(102)))

    assert first(found) == (Cause.BUSY, 102)
    assert found.suspects[0].name == "worker 1 (pid 102)"
    assert [suspect.pid for suspect in found.suspects] == [102]
    assert any(note.startswith("workers: 1 at work") for note in found.notes)


def test_workers_that_have_all_ended() -> None:
    """There is nobody who could make the batch."""
    ended = worker((), 101, state="Z", thread={"syscall": ""}, command=(), program="")

    assert first(judge(watched(trainer(), ended))) == (Cause.UNNOTICED_DEATH, 100)


def test_a_process_that_appears_is_work() -> None:
    """A new epoch starts new workers: what they have used counts."""

    def later(look: int, seen: Process) -> Process | None:
        return seen if seen.pid == 100 or look == 3 else None

    found = judge(watched(trainer(STARTS), worker(LOADS, cpu_s=3.0), later=later))

    assert found.verdict is not Verdict.STUCK


def test_a_process_that_vanishes() -> None:
    """What is not there at the end is not blamed."""

    def later(look: int, seen: Process) -> Process | None:
        return None if seen.pid == 102 and look > 1 else seen

    found = judge(watched(trainer(), worker(LOADS, 101, thread=READ), worker(LOADS, 102, thread=READ), later=later))

    assert [suspect.pid for suspect in found.suspects] == [101]


def test_the_first_process_may_be_the_one_that_vanishes() -> None:
    """Then there is still something to say."""

    def later(look: int, seen: Process) -> Process | None:
        return None if seen.pid == 100 and look > 1 else seen

    helper = process(300, parent=100, name="sh", command=("sh",), program="sh")

    assert judge(watched(trainer(), helper, later=later)).summary


# -- helpers and workers of our own ----------------------------------------------------------------------------------


def test_trackers_and_servers_are_nobody() -> None:
    """They wait for ever, and that is their task."""
    tracker = process(
        201, parent=100, command=("python", "-c", "from multiprocessing.resource_tracker import main;main(5)")
    )
    server = process(202, parent=100, command=("python", "-c", "from multiprocessing.forkserver import main; main(5)"))
    manager = process(203, parent=100, command=("torch_shm_manager",), program="torch_shm_manager")
    found = judge(watched(trainer(), tracker, server, manager, worker(LOADS, 204, parent=202, thread=READ)))

    assert [suspect.pid for suspect in found.suspects] == [204]
    assert found.suspects[0].name == "worker 0 (pid 204)"
    assert is_helper(tracker)
    assert is_helper(server)


def test_what_a_fork_server_has_forked_is_no_helper() -> None:
    """It has the command line of the server."""
    command = ("python", "-c", "from multiprocessing.forkserver import main; main(5)")
    frames = (at(SCRIPT, "__getitem__", 42), LOOP[0], at(f"{STANDARD}/multiprocessing/forkserver.py", "_serve_one"))
    found = judge(watched(trainer(), process(204, frames, parent=100, command=command, thread=LOCK)))

    assert first(found) == (Cause.LOCK, 204)


def test_workers_of_antifreeze() -> None:
    """They are workers by their name, and idle by their lines."""
    waits = (at(f"{OURS}/pool/_pool.py", "take"), at(f"{OURS}/loaders/_streaming.py", "__next__"), *MAIN)
    idle = (at(f"{OURS}/ipc/_channel.py", "receive"), *OUR_LOOP)
    busy = (at(SCRIPT, "__getitem__", 42), *OUR_LOOP)
    nursery = process(200, parent=100, name="af-forkserver")
    workers = [
        process(201, idle, parent=200, name="af-worker-0"),
        process(202, busy, parent=200, name="af-worker-1", thread=READ),
    ]
    found = judge(watched(trainer(waits), nursery, *workers))

    assert [suspect.pid for suspect in found.suspects] == [202]
    assert found.verdict is Verdict.STUCK
    moves = judge(watched(trainer(waits), nursery, *workers, later=moving(201)))
    assert moves.verdict is not Verdict.STUCK


# -- ranks -----------------------------------------------------------------------------------------------------------

LAUNCHER = process(10, LAUNCHES, command=("python", "torchrun", "train.py"))


def rank(number: int, frames: tuple[object, ...], **more: object) -> Process:
    """Return a rank that torchrun has started."""
    return process(100 * (number + 1), frames, parent=10, rank=number, **more)  # type: ignore[arg-type]


def test_the_rank_that_is_elsewhere_holds_up_the_rest() -> None:
    """It is named first, though two others stand still as well."""
    ranks = [rank(0, BARRIER), rank(1, MAIN, thread=READ), rank(2, BARRIER)]
    found = judge(watched(LAUNCHER, *ranks))

    assert found.verdict is Verdict.STUCK
    assert first(found) == (Cause.NETWORK, 200)
    assert found.summary.startswith("Rank 1 (pid 200) waits for a network peer")
    assert [suspect.cause for suspect in found.suspects[1:]] == [Cause.RANK, Cause.RANK]


def test_the_worker_of_a_rank_holds_up_all_ranks() -> None:
    """It is told whose worker it is."""
    sick = worker(LOADS, 201, parent=200, thread={**SLEEP, "limit_s": 1e6}, rank=1)
    found = judge(watched(LAUNCHER, rank(0, BARRIER), rank(1, GETS_DATA), sick))

    assert first(found) == (Cause.SLEEPING, 201)
    assert "Worker 0 (pid 201) of rank 1 sleeps" in found.summary
    assert "Rank 1 (pid 200) waits for data from its workers." in found.summary


def test_ranks_in_different_collectives() -> None:
    """Both wait; the evidence says where each of them is."""
    found = judge(watched(LAUNCHER, rank(0, BARRIER), rank(1, REDUCE)))

    assert found.verdict is Verdict.STUCK
    assert {suspect.cause for suspect in found.suspects} == {Cause.RANK}
    lines = "\n".join(found.suspects[0].finding.evidence_lines)
    assert "rank 0 (pid 100) is in a collective with the other ranks (barrier) at /home/me/train.py:90 in main" in lines
    assert "rank 1 (pid 200) is in a collective with the other ranks (all_reduce)" in lines


def test_ranks_that_wait_for_one_that_moves_are_slow() -> None:
    """It may get there."""
    ranks = [rank(0, BARRIER), rank(1, MAIN, state="R", thread={"syscall": ""})]
    found = judge(watched(LAUNCHER, *ranks, later=moving(200)))

    assert found.verdict is Verdict.SLOW
    assert first(found) == (Cause.RANK, 100)


def test_gradients_are_a_collective_only_where_there_are_ranks() -> None:
    """Alone, a long backward pass is the program's own."""
    backward = (at(f"{STANDARD}/site-packages/torch/autograd/graph.py", "_engine_run_backward"), *MAIN)

    assert doing(process(1, backward, rank=0)) is Doing.COLLECTIVE
    assert doing(process(1, backward)) is Doing.OWN


def test_a_launcher_with_ranks_is_no_rank() -> None:
    """Nor does it count as one that waits."""
    seen = watched(LAUNCHER, rank(1, MAIN), rank(0, MAIN), worker(LOADS, 101, parent=100))
    jobs = find_jobs(seen.snapshots[-1])

    assert [(job.trainer, job.workers, job.rank) for job in jobs] == [(100, (101,), 0), (200, (), 1)]


def test_ranks_that_were_spawned() -> None:
    """`mp.spawn` gives no rank to the environment: they are told apart by their lines."""
    one = process(101, (*BARRIER, *SPAWNED), parent=100, command=("python", "--multiprocessing-fork"))
    two = process(102, (at(SCRIPT, "save", 8), *SPAWNED), parent=100, command=one.command, thread=READ)
    found = judge(watched(trainer(SPAWNS), one, two))

    assert first(found) == (Cause.NETWORK, 102)
    assert [suspect.pid for suspect in found.suspects] == [102, 101]


# -- without lines ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [NOT_INSTALLED, NOT_ALLOWED])
def test_without_lines_the_worker_is_found_by_proc_alone(error: str) -> None:
    """With less confidence, and it says how to see more."""
    sick = worker((), 102, thread=READ, stacks_error=error)
    seen = watched(trainer((), stacks_error=error), worker((), 101, stacks_error=error), sick)
    found = judge(seen)

    assert found.verdict is Verdict.SLOW  # it may be a sleep
    assert judge(dataclasses.replace(seen, still_s=70.0)).verdict is Verdict.STUCK
    assert first(found) == (Cause.NETWORK, 102)
    assert found.suspects[0].confidence is Confidence.POSSIBLE
    assert f"no Python lines of 3 processes: {error}" in found.notes


def test_without_lines_a_forked_worker_is_known_by_its_command() -> None:
    """Old torch gives its workers no name: they are copies of the trainer."""
    sick = process(101, parent=100, thread=LOCK, stacks_error=NOT_INSTALLED)
    found = judge(watched(trainer((), stacks_error=NOT_INSTALLED), sick))

    assert first(found) == (Cause.FORK, 101)
    assert found.suspects[0].confidence is Confidence.POSSIBLE


def test_without_lines_a_stopped_worker_is_certain() -> None:
    """The state says it all."""
    found = judge(watched(trainer(()), worker((), state="T", thread={"syscall": ""})))

    assert first(found) == (Cause.STOPPED, 101)
    assert found.suspects[0].confidence is Confidence.CERTAIN


def test_how_to_allow_it_is_said() -> None:
    """For a container, for Kubernetes and for a host."""
    for word in ("--cap-add SYS_PTRACE", "securityContext", "ptrace_scope", "sudo"):
        assert word in NOT_ALLOWED
    assert "pip install" in NOT_INSTALLED


def test_nothing_can_be_read_at_all() -> None:
    """A process of another user: no threads, no calls."""
    bare = Process(pid=100, state="S", program="", command=PYTHON)
    found = judge(watched(bare))

    assert found.summary
    assert found.verdict is not Verdict.HEALTHY


def test_every_verdict_has_words() -> None:
    """No suspect, several, and a job that waits."""
    seen: list[Observation] = [
        watched(trainer(MAIN), later=moving(100)),
        watched(trainer(), worker(LOADS, thread=READ)),
        watched(trainer(), worker(LOADS, state="R", thread={"syscall": ""}), later=moving(101)),
    ]

    assert [judge(one).verdict for one in seen] == [Verdict.HEALTHY, Verdict.STUCK, Verdict.SLOW]
    assert all(judge(one).summary.endswith(".") for one in seen)
    assert LOOP[0].function == "_worker_loop"
