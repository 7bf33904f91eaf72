"""Whatever was seen, something is said, and it can be kept."""

from __future__ import annotations

import json
import math

import pytest
from doctor_made import (
    BARRIER,
    ENDS,
    GETS_DATA,
    IDLE,
    LAUNCHES,
    LOADS,
    MAIN,
    OUR_LOOP,
    SPAWNED,
    SPAWNS,
    STARTS,
    trainer,
    watched,
    worker,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from antifreeze.diagnosis import TargetKind
from antifreeze.doctor._terminal import Paper
from antifreeze.doctor.job import Verdict
from antifreeze.doctor.job._fix import fixes_of
from antifreeze.doctor.job._job_report import as_text, as_values
from antifreeze.doctor.job._observation import (
    VERSION,
    GroupMemory,
    Machine,
    Observation,
    Process,
    Snapshot,
    Stack,
    Thread,
    from_values,
    to_values,
)
from antifreeze.doctor.job._verdict import judge

PIDS = st.integers(1, 7)
SECONDS = st.floats(0, 1e6)
COUNTS = st.integers(0, 1 << 40)
LINES = st.sampled_from(
    [(), MAIN, GETS_DATA, STARTS, ENDS, BARRIER, LAUNCHES, SPAWNS, (*MAIN, *SPAWNED), IDLE, LOADS, (*MAIN, *OUR_LOOP)]
)
THREADS = st.builds(
    Thread,
    tid=PIDS,
    name=st.sampled_from(["", "python"]),
    state=st.sampled_from(["", *"RSDTtZX"]),
    wchan=st.sampled_from(["", "futex_do_wait", "poll_schedule_timeout", "refrigerator", "mem_cgroup_oom_synchronize"]),
    syscall=st.sampled_from(["", "futex", "poll", "read", "write", "clock_nanosleep", "wait4", "clone3", "999"]),
    fd=st.integers(-1, 3),
    target=st.sampled_from(["", "pipe:[1]", "socket to 10.0.0.1:443", "/data/x"]),
    target_kind=st.sampled_from(TargetKind),
    path=st.sampled_from(["", "/data/x"]),
    mount=st.sampled_from(["", "/data (nfs4, server:/export)"]),
    wakes=COUNTS,
    cpu_s=SECONDS,
    idle_s=st.none() | SECONDS,
    limit_s=st.none() | SECONDS | st.just(math.inf),
    shared=st.booleans(),
    owner=PIDS,
    libraries=st.sampled_from([(), ("libgomp.so.1",)]),
)
PROCESSES = st.builds(
    Process,
    pid=PIDS,
    parent=PIDS,
    name=st.sampled_from(["python", "pt_data_worker", "af-worker-0", "af-forkserver", "sh"]),
    program=st.sampled_from(["", "python3.11"]),
    command=st.sampled_from([(), ("python", "a.py"), ("python", "--multiprocessing-fork"), ("", "ä")]),
    folder=st.sampled_from(["", "/nowhere"]),
    state=st.sampled_from(["", *"RSDTtZX"]),
    cpu_s=SECONDS,
    read_bytes=COUNTS,
    written_bytes=COUNTS,
    files=st.integers(0, 1024),
    max_files=st.sampled_from([0, 1024]),
    ignores_sigchld=st.booleans(),
    rank=st.none() | st.integers(0, 3),
    threads=st.lists(THREADS, max_size=3).map(tuple),
    stacks=st.lists(st.builds(Stack, tid=PIDS, frames=LINES, sample=st.sampled_from(["", "17"])), max_size=3).map(
        tuple
    ),
    stacks_error=st.sampled_from(["", "py-spy: no"]),
)
SNAPSHOTS = st.builds(
    Snapshot, at_s=SECONDS, processes=st.lists(PROCESSES, min_size=1, max_size=5, unique_by=lambda p: p.pid).map(tuple)
)
MACHINES = st.builds(
    Machine,
    shm_nbytes=COUNTS,
    shm_free_nbytes=COUNTS,
    shm_failed=COUNTS,
    group=st.builds(
        GroupMemory,
        limit_nbytes=COUNTS,
        used_nbytes=COUNTS,
        oom_kills=st.integers(0, 3),
        new_oom_kills=st.integers(0, 1),
        waits=st.booleans(),
    ),
    last_error=st.sampled_from(["", "E: No space left"]),
)
OBSERVATIONS = st.builds(
    Observation,
    root=PIDS,
    snapshots=st.lists(SNAPSHOTS, min_size=1, max_size=4).map(
        lambda looks: tuple(sorted(looks, key=lambda look: look.at_s))
    ),
    machine=MACHINES,
    still_s=SECONDS,
    version=st.just(VERSION),
)


@given(OBSERVATIONS)
@settings(max_examples=min(settings().max_examples, 1500))  # each is a whole job: a soak takes a minute
def test_there_is_always_a_diagnosis(seen: Observation) -> None:
    """With a summary, as text for a person and as values for a program; and a file keeps what it was made from."""
    found = judge(seen)

    assert from_values(json.loads(json.dumps(to_values(seen)))) == seen
    assert found.summary
    assert found.suspects or found.verdict is not Verdict.STUCK
    fixes = fixes_of(found, seen)
    assert as_text(found, fixes, Paper(80))
    values = as_values(found, fixes, seen.root)
    assert json.loads(json.dumps(values, allow_nan=False)) == values


GOOD = to_values(watched(trainer(), worker()))


def test_what_was_kept_before_there_was_all_of_it_can_be_read() -> None:
    """Files of an earlier version know nothing of control groups, nor of where a file lies."""
    values = json.loads(json.dumps(GOOD))
    del values["machine"]["group"]
    for snapshot in values["snapshots"]:
        for process in snapshot["processes"]:
            for thread in process["threads"]:
                del thread["path"], thread["mount"]

    assert from_values(values) == watched(trainer(), worker())


def damaged(**changes: object) -> dict[str, object]:
    """Return what was seen, with something wrong in it."""
    return {**json.loads(json.dumps(GOOD)), **changes}


def with_process(**changes: object) -> dict[str, object]:
    """Return what was seen, with something wrong in its first process."""
    values = json.loads(json.dumps(GOOD))
    values["snapshots"][0]["processes"][0].update(changes)
    return values  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (None, "NoneType"),
        ([], "not a recorded job"),
        ({}, "version"),
        ("text", "not a recorded job"),
        (7, "not a recorded job"),
        (damaged(version=1), "unsupported version: expected 2, got 1"),
        (damaged(version=None), "expected 2, got None"),
        (damaged(snapshots=[]), "the recording has no processes"),
        (damaged(snapshots=[{"at_s": 1.0, "processes": []}]), "the recording has no processes"),
        (damaged(snapshots=None), "expected a list"),
        (damaged(snapshots="all"), "expected a list"),
        (damaged(root="1"), "got '1'"),
        (damaged(colour="red"), "colour"),
        (damaged(still_s=10**400), "not a recorded job"),
        (damaged(machine=[]), "not a recorded job"),
        (with_process(pid=None), "got None"),
        (with_process(command="python train.py"), "expected a list, got 'python train.py'"),
        (with_process(threads={"tid": 1}), "expected a list"),
        (with_process(stacks=[{"tid": 1, "frames": [["a", 1, "f"]]}]), "not a recorded job"),
        (with_process(rank="0"), "got '0'"),
        ({"version": VERSION}, "root"),
    ],
)
def test_what_is_damaged_is_refused_in_words(values: object, words: str) -> None:
    """A program that was interrupted, or another version, has written it."""
    with pytest.raises(ValueError, match=r"^(not a recorded job|unsupported version|the recording) ?") as error:
        from_values(values)

    assert words in str(error.value)
