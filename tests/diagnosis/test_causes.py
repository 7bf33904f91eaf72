"""Every way to stand still or to die has a name, words for it, and something to do about it."""

from __future__ import annotations

import faulthandler
import os
import pickle
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antifreeze.diagnosis import (
    STARTING,
    Cause,
    Evidence,
    Frame,
    Target,
    TargetKind,
    find_cause,
    parse_stack,
    user_frames,
)
from antifreeze.diagnosis._causes import describe_exit

LIBRARY = str(Path(os.__file__).parent)
OURS = str(Path(__file__).parents[2] / "src/antifreeze")


def frames_of(*frames: str) -> tuple[Frame, ...]:
    """Return these frames of a main thread, innermost first."""
    return parse_stack(stack_of(*frames))


def stack_of(*frames: str, others: str = "") -> str:
    """Return what faulthandler would write of a main thread with these frames, innermost first."""
    lines = [f'  File "{frame.split(":")[0]}", line {frame.split(":")[1]} in {frame.split(":")[2]}' for frame in frames]
    return others + "Thread 0x00007f0000000001 (most recent call first):\n" + "\n".join(lines) + "\n"


# -- the list ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cause", Cause)
def test_every_cause_has_words_that_can_be_acted_on(cause: Cause) -> None:
    """A title that continues "worker 3 ...", and a hint of one or two sentences."""
    assert cause.title
    assert cause.title[0].islower()
    assert not cause.title.endswith(".")
    assert cause.hint.endswith(".")
    assert 1 <= cause.hint.count(". ") + 1 <= 2
    assert cause.value == cause.name.lower().replace("_", "-")


def test_a_cause_travels() -> None:
    """It is named in reports of other processes."""
    assert pickle.loads(pickle.dumps(Cause.LOCK)) is Cause.LOCK  # noqa: S301  we wrote it
    assert Cause("out-of-memory") is Cause.OUT_OF_MEMORY


# -- deaths --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("exit_code", "words"),
    [
        (-9, "killed by SIGKILL (signal 9)"),
        (-15, "killed by SIGTERM (signal 15)"),
        (-11, "crashed with SIGSEGV (signal 11), segmentation fault"),
        (-7, "crashed with SIGBUS (signal 7), bus error"),
        (-6, "crashed with SIGABRT (signal 6), aborted by itself"),
        (-40, "killed by signal 40"),
        (0, "exited with exit code 0"),
        (3, "exited with exit code 3"),
    ],
)
def test_an_ending_is_said_in_words(exit_code: int, words: str) -> None:
    """The name of the signal is what people look for."""
    assert describe_exit(exit_code) == words


@pytest.mark.parametrize(
    ("exit_code", "oom_kills", "cause", "title"),
    [
        (-9, 0, Cause.KILLED, "was killed by SIGKILL (signal 9)"),
        (-9, 1, Cause.OUT_OF_MEMORY, "was killed by SIGKILL because memory ran out"),
        (-15, 0, Cause.KILLED, "was killed by SIGTERM (signal 15)"),
        (-15, 1, Cause.KILLED, "was killed by SIGTERM (signal 15)"),
        (-11, 0, Cause.CRASHED, "crashed with SIGSEGV (signal 11), segmentation fault"),
        (-11, 1, Cause.CRASHED, "crashed with SIGSEGV (signal 11), segmentation fault"),
        (-7, 0, Cause.CRASHED, "crashed with SIGBUS (signal 7), bus error"),
        (-6, 0, Cause.CRASHED, "crashed with SIGABRT (signal 6), aborted by itself"),
        (-8, 0, Cause.CRASHED, "crashed with SIGFPE (signal 8), arithmetic error"),
        (-4, 0, Cause.CRASHED, "crashed with SIGILL (signal 4), illegal instruction"),
        (0, 0, Cause.EXITED, "exited with exit code 0"),
        (1, 2, Cause.EXITED, "exited with exit code 1"),
    ],
)
def test_a_death_is_named_by_its_ending(exit_code: int, oom_kills: int, cause: Cause, title: str) -> None:
    """What the process did before, such as using a core, does not matter then."""
    finding = find_cause(Evidence(exit_code=exit_code, oom_kills=oom_kills, state="R", cpu_share=1.0))

    assert finding.cause is cause
    assert finding.title == title
    assert finding.hint == cause.hint
    assert (describe_exit(exit_code) in finding.evidence_lines) == (cause is Cause.OUT_OF_MEMORY)


def test_a_kill_for_memory_shows_the_counter_and_the_memory() -> None:
    """Both numbers are what an administrator will ask for."""
    lines = find_cause(Evidence(exit_code=-9, oom_kills=2, rss_nbytes=3_100_000_000)).evidence_lines

    assert "the kernel's count of out-of-memory kills went up by 2" in lines
    assert "it held 3,100.0 MB of memory" in lines


# -- stalls --------------------------------------------------------------------------------------------------------

SOCKET = {"syscall_target": Target(TargetKind.PEER, "socket to 10.0.0.1:443"), "syscall_fd": 5}
STALLS: list[tuple[Cause, dict[str, Any]]] = [
    (Cause.STOPPED, {"state": "T", "wchan": "do_signal_stop", "syscall": "recvfrom"}),
    (Cause.STOPPED, {"state": "D", "wchan": "__refrigerator"}),
    (Cause.STOPPED, {"state": "S", "wchan": "do_freezer_trap"}),
    (Cause.TRACED, {"state": "t", "wchan": "ptrace_stop"}),
    (Cause.EXITED, {"state": "Z"}),
    (Cause.ORPHANED, {"state": "", "orphaned": True}),
    (Cause.UNKNOWN, {"state": ""}),
    (Cause.UNKNOWN, {"state": "S"}),
    (Cause.UNKNOWN, {"state": "S", "syscall": "12345", "wchan": "something_new"}),
    (
        Cause.DEAD_DISK,
        {
            "state": "D",
            "syscall": "read",
            "syscall_target": Target(TargetKind.FILE, "/nfs/x"),
            "wchan": "folio_wait_bit",
        },
    ),
    (
        Cause.FILE,
        {"state": "D", "syscall": "read", "syscall_target": Target(TargetKind.FILE, "/nfs/x"), "moved_bytes": 4096},
    ),
    (Cause.CHILD, {"state": "D", "syscall": "clone3", "wchan": "kernel_clone", "moved_bytes": 4096}),
    (Cause.CHILD, {"state": "D", "syscall": "vfork", "wchan": "wait_for_vfork_done"}),
    (Cause.CHILD, {"state": "D", "syscall": "clone"}),
    (Cause.CHILD, {"state": "D", "syscall": "", "wchan": "kernel_clone"}),
    (Cause.DEAD_DISK, {"state": "D", "syscall": "clone3", "wchan": "folio_wait_bit"}),
    (Cause.DEAD_DISK, {"state": "D", "syscall": "", "wchan": ""}),
    (Cause.SLEEPING, {"syscall": "clock_nanosleep", "wchan": "hrtimer_nanosleep"}),
    (Cause.SLEEPING, {"syscall": "restart_syscall", "wchan": "hrtimer_nanosleep"}),
    (Cause.SLEEPING, {"syscall": "", "wchan": "do_nanosleep"}),
    (Cause.RETRYING, {"syscall": "clock_nanosleep", "changing": True, "cpu_share": 0.01}),
    (Cause.NETWORK, {"syscall": "recvfrom", "wchan": "wait_woken", **SOCKET}),
    (Cause.NETWORK, {"syscall": "read", **SOCKET}),
    (Cause.NETWORK, {"syscall": "write", **SOCKET}),
    (Cause.NETWORK, {"syscall": "connect", **SOCKET}),
    (Cause.NETWORK, {"syscall": "poll", "wchan": "poll_schedule_timeout"}),
    (Cause.NETWORK, {"syscall": "epoll_wait", **SOCKET, "frames": frames_of(f"{LIBRARY}/threading.py:1:wait")}),
    (Cause.NETWORK, {"syscall": "", "wchan": "wait_woken"}),
    (Cause.LOCK, {"syscall": "futex", "wchan": "futex_wait_queue"}),
    (Cause.LOCK, {"syscall": "fcntl", "syscall_target": Target(TargetKind.FILE, "/data/lock"), "syscall_fd": 4}),
    (Cause.LOCK, {"syscall": "flock", "syscall_target": Target(TargetKind.FILE, "/data/lock"), "syscall_fd": 4}),
    (Cause.LOCK, {"syscall": "semtimedop"}),
    (
        Cause.LOCK,
        {"syscall": "read", "syscall_target": Target(TargetKind.EVENT, "anon_inode:[eventfd]"), "syscall_fd": 4},
    ),
    (Cause.LOCK, {"syscall": "", "wchan": "futex_wait_queue_me"}),
    (Cause.FORK, {"syscall": "futex", "forked": True, "nobody_wakes": True}),
    (Cause.LOCK, {"syscall": "futex", "forked": True}),
    (Cause.LOCK, {"syscall": "futex", "nobody_wakes": True}),
    (Cause.INPUT, {"syscall": "read", "syscall_target": Target(TargetKind.FILE, "/dev/pts/0"), "syscall_fd": 0}),
    (Cause.INPUT, {"syscall": "futex", "frames": frames_of(f"{LIBRARY}/cmd.py:1:cmdloop", f"{LIBRARY}/pdb.py:2:x")}),
    (Cause.FULL_PIPE, {"syscall": "write", "syscall_target": Target(TargetKind.PIPE, "pipe:[5]"), "syscall_fd": 7}),
    (Cause.FULL_PIPE, {"syscall": "write", "syscall_target": Target(TargetKind.FILE, "/dev/pts/0"), "syscall_fd": 1}),
    (
        Cause.FULL_PIPE,
        {"syscall": "write", "syscall_target": Target(TargetKind.PEER, "socket to 10.0.0.1:22"), "syscall_fd": 2},
    ),
    (Cause.FULL_PIPE, {"syscall": "write", "wchan": "anon_pipe_write"}),
    (Cause.CHILD, {"syscall": "wait4", "wchan": "do_wait"}),
    (Cause.CHILD, {"syscall": "waitid"}),
    (Cause.CHILD, {"syscall": "read", "syscall_target": Target(TargetKind.PIPE, "pipe:[5]"), "syscall_fd": 3}),
    (
        Cause.CHILD,
        {"syscall": "poll", "frames": frames_of(f"{LIBRARY}/selectors.py:1:select", f"{LIBRARY}/subprocess.py:2:c")},
    ),
    (Cause.FILE, {"syscall": "pread64", "syscall_target": Target(TargetKind.FILE, "/data/x.parquet"), "syscall_fd": 4}),
    (Cause.FILE, {"syscall": "openat", "wchan": "rpc_wait_bit_killable"}),
    (Cause.FILE, {"syscall": "", "wchan": "request_wait_answer"}),
    (Cause.BUSY, {"state": "R", "cpu_share": 0.98}),
    (Cause.BUSY, {"state": "R", "cpu_share": 0.11}),
    (Cause.BUSY, {"state": "S", "syscall": "futex", "cpu_share": 1.7, "threads": 9}),
    (Cause.BUSY, {"state": "R", "changing": True, "cpu_share": 0.9}),
    (Cause.RETRYING, {"state": "R", "changing": True, "cpu_share": 0.05}),
]


@pytest.mark.parametrize(("cause", "facts"), STALLS, ids=lambda value: value.value if isinstance(value, Cause) else "")
def test_a_stall_is_named_by_what_shows_of_it(cause: Cause, facts: dict[str, Any]) -> None:
    """One row for each way in which a cause shows from outside."""
    finding = find_cause(Evidence(**{"state": "S", **facts}))

    assert finding.cause is cause
    assert finding.title == cause.title
    assert finding.evidence_lines


def test_who_starts_a_program_is_not_taken_for_one_that_waits_for_a_disk() -> None:
    """The kernel lets it wait in the same state until the new process has begun the program."""
    lines = find_cause(Evidence(state="D", syscall="clone3", wchan="kernel_clone")).evidence_lines

    assert "it is starting a program, and the new process has not begun it yet" in lines


def test_who_waits_for_memory_is_not_said_to_be_killed() -> None:
    """Nor to wait for a disk, whose state it has: its control group is full, and the kernel may not kill there."""
    finding = find_cause(Evidence(state="D", wchan="mem_cgroup_oom_synchronize", rss_nbytes=700_000_000))

    assert finding.cause is Cause.OUT_OF_MEMORY
    assert finding.title == "waits for memory, of which its control group has none left"
    assert "it held 700.0 MB of memory" in finding.evidence_lines


def test_every_cause_can_be_found() -> None:
    """A cause that nothing leads to is not in the list."""
    deaths = {Cause.KILLED, Cause.OUT_OF_MEMORY, Cause.CRASHED}
    # Those that no process shows by itself, only a whole job: tests/doctor. And one that the pool finds: tests/faults.
    of_jobs = {Cause.LOST_BATCH, Cause.SHARED_MEMORY, Cause.UNNOTICED_DEATH, Cause.RANK, Cause.LEAK}

    assert {cause for cause, _ in STALLS} | deaths | {Cause.STARTUP} | of_jobs == set(Cause)


@pytest.mark.parametrize(
    ("frames", "cause"),
    [
        ([f"{LIBRARY}/threading.py:324:wait", "/x/train.py:3:f"], Cause.LOCK),
        ([f"{LIBRARY}/multiprocessing/synchronize.py:95:__enter__", "/x/train.py:3:f"], Cause.LOCK),
        (["<frozen importlib._bootstrap>:171:acquire", "/x/train.py:3:f"], Cause.LOCK),
        ([f"{LIBRARY}/socket.py:706:readinto", "/x/train.py:3:f"], Cause.NETWORK),
        ([f"{LIBRARY}/threading.py:324:wait", "/v/site-packages/fsspec/asyn.py:91:sync", "/x/d.py:3:f"], Cause.NETWORK),
        ([f"{LIBRARY}/subprocess.py:1264:wait", "/x/train.py:3:f"], Cause.CHILD),
        (["/x/train.py:3:f", f"{LIBRARY}/threading.py:324:wait"], Cause.UNKNOWN),
    ],
)
def test_where_the_kernel_says_nothing_the_python_stack_decides(frames: list[str], cause: Cause) -> None:
    """Only what the user's line has called counts, not what has called the user."""
    assert find_cause(Evidence(state="S", frames=frames_of(*frames))).cause is cause


def test_a_client_that_waits_for_its_event_loop_waits_for_the_network() -> None:
    """fsspec and its kin wait in a lock until a thread of theirs has the answer."""
    frames = frames_of(f"{LIBRARY}/threading.py:324:wait", "/v/site-packages/fsspec/asyn.py:91:sync", "/x/data.py:3:f")

    assert find_cause(Evidence(state="S", syscall="futex", frames=frames)).cause is Cause.NETWORK


@pytest.mark.parametrize("stage", sorted(STARTING))
@pytest.mark.parametrize(
    ("facts", "cause"),
    [
        ({"state": "R", "cpu_share": 1.0}, Cause.STARTUP),
        ({"state": "S", "changing": True}, Cause.STARTUP),
        ({"state": "S"}, Cause.STARTUP),
        ({"state": ""}, Cause.UNKNOWN),
        ({"state": "S", "syscall": "recvfrom", **SOCKET}, Cause.NETWORK),
        ({"state": "T"}, Cause.STOPPED),
        ({"exit_code": -9}, Cause.KILLED),
    ],
)
def test_a_start_that_does_not_end_is_named_if_nothing_else_is(stage: str, facts: dict[str, Any], cause: Cause) -> None:
    """The more particular cause wins, and the lines say that it was still starting."""
    finding = find_cause(Evidence(stage=stage.upper(), **facts))

    assert finding.cause is cause
    assert "it was still starting: its first task had not begun" in finding.evidence_lines


# -- lines ---------------------------------------------------------------------------------------------------------


def test_the_evidence_says_where_a_process_stands() -> None:
    """The call, its other end, the wait channel, the CPU, and the user's own lines of Python."""
    evidence = Evidence(
        state="S",
        syscall="recvfrom",
        syscall_target=Target(TargetKind.PEER, "socket to 127.0.0.1:9"),
        syscall_fd=4,
        wchan="wait_woken",
        threads=3,
        children=1,
        frames=frames_of(f"{LIBRARY}/socket.py:706:readinto", "/x/d.py:12:__getitem__", f"{OURS}/worker/_w.py:9:run"),
    )

    assert find_cause(evidence).evidence_lines == (
        "process state S, in system call recvfrom on socket to 127.0.0.1:9 (wchan wait_woken)",
        "0.00 s of CPU per second",
        "threads: 3, processes that it started: 1",
        "/x/d.py:12 in __getitem__",
    )


def test_a_full_pipe_is_named_as_what_it_is_to_the_process() -> None:
    """A number of a descriptor says little to a person."""
    evidence = Evidence(state="S", syscall="write", syscall_target=Target(TargetKind.PIPE, "pipe:[5]"), syscall_fd=1)

    assert "write on pipe:[5], its stdout" in find_cause(evidence).evidence_lines[0]


texts = st.text(max_size=20)


@given(
    evidence=st.builds(
        Evidence,
        exit_code=st.none() | st.integers(-70, 300),
        oom_kills=st.integers(0, 2),
        state=st.sampled_from(["R", "S", "D", "T", "t", "Z", "X", "I", ""]),
        wchan=texts,
        syscall=st.sampled_from(["read", "write", "futex", "poll", "connect", "999", ""]) | texts,
        syscall_target=st.builds(Target, st.sampled_from(TargetKind), texts),
        syscall_fd=st.integers(-1, 9),
        cpu_share=st.floats(0, 64),
        moved_bytes=st.integers(0, 2**40),
        changing=st.booleans(),
        stage=st.sampled_from(["", "start", "fetch"]),
        frames=st.just(()) | st.just(frames_of("/x/train.py:3:f")),
        forked=st.booleans(),
        nobody_wakes=st.booleans(),
        limit_s=st.none() | st.floats(0),
    )
)
def test_whatever_is_known_there_is_a_cause_and_a_line(evidence: Evidence) -> None:
    """A diagnosis that raises is worse than none."""
    finding = find_cause(evidence)

    assert finding.evidence_lines or evidence.exit_code is not None
    assert all(line for line in finding.evidence_lines)
    assert finding.title
    assert (finding.cause is Cause.EXITED) or evidence.exit_code is None or evidence.exit_code < 0


# -- stacks --------------------------------------------------------------------------------------------------------


def test_the_stack_of_a_real_process_is_read() -> None:
    """The text is that of the interpreter that runs this test, with another thread in front."""
    done, ready = threading.Event(), threading.Event()

    def other() -> None:
        ready.set()
        done.wait(60)

    thread = threading.Thread(target=other)
    thread.start()
    try:
        assert ready.wait(60)
        with tempfile.TemporaryFile() as file:
            faulthandler.dump_traceback(file, all_threads=True)
            file.seek(0)
            frames = parse_stack(file.read().decode())
    finally:
        done.set()
        thread.join(60)

    assert frames[0].function == "test_the_stack_of_a_real_process_is_read"
    assert frames[0].file == __file__
    assert user_frames(frames)[0] == frames[0]


def test_the_main_thread_is_the_last_one() -> None:
    """New threads are put in front by the interpreter."""
    others = 'Current thread 0x1 (most recent call first):\n  File "/x/other.py", line 1 in wait\n\n'
    text = "Timeout (0:00:01)!\n" + stack_of("/x/train.py:3:f", others=others)

    assert [str(frame) for frame in parse_stack(text)] == ["/x/train.py:3 in f"]


@pytest.mark.parametrize("text", ["", "nonsense", "Thread 0x1 (most recent call first):\n  <no Python frame>\n"])
def test_a_stack_that_says_nothing_is_empty(text: str) -> None:
    """A process without Python in it, or a dump that was cut short."""
    assert parse_stack(text) == ()
    assert user_frames(()) == ()


def test_a_frame_without_a_line_is_kept() -> None:
    """Faulthandler writes question marks where the interpreter cannot tell."""
    assert parse_stack(' \n  File "/x/a.py", line ??? in f')[0].line == 0


@pytest.mark.parametrize(
    ("frames", "shown"),
    [
        ([f"{LIBRARY}/json/decoder.py:1:f", "/x/a.py:1:g", f"{OURS}/worker/_w.py:1:h"], ["/x/a.py:1 in g"]),
        (["/v/lib/python3.11/site-packages/torch/a.py:1:f", "/x/a.py:1:g"], ["/x/a.py:1 in g"]),
        ([f"{LIBRARY}/json/a.py:1:f", "/v/site-packages/mine/a.py:1:g"], ["/v/site-packages/mine/a.py:1 in g"]),
        ([f"{LIBRARY}/json/a.py:1:f", "/v/site-packages/torch/a.py:1:g"], [f"{LIBRARY}/json/a.py:1 in f"]),
        ([f"/x/{i}.py:1:f" for i in range(5)], [f"/x/{i}.py:1 in f" for i in range(3)]),
        (["<frozen importlib._bootstrap>:1:f", "<string>:1:<module>"], ["<string>:1 in <module>"]),
    ],
)
def test_the_lines_that_are_shown_are_the_users_own(frames: list[str], shown: list[str]) -> None:
    """Not those of Python, of torch or of ours; unless there are no others."""
    assert [str(frame) for frame in user_frames(parse_stack(stack_of(*frames)))] == shown
