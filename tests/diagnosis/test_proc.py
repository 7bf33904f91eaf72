"""Real processes, frozen in every way that can be made without a broken disk, are seen for what they are."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from antifreeze.diagnosis import (
    Cause,
    Counters,
    Evidence,
    Look,
    ProcSnapshot,
    Target,
    TargetKind,
    evidence_of,
    find_cause,
    oom_kills,
    read_counters,
    read_proc,
)

pytestmark = pytest.mark.skipif(not Path("/proc/self/syscall").exists(), reason="needs Linux and its /proc")

PATIENCE_S = 60.0
READY = "print('ready', flush=True)\n"


@contextlib.contextmanager
def child_of(code: str, *arguments: str, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run code that prints ``ready`` just before it freezes; it is gone afterwards, whatever happens."""
    command = [sys.executable, "-c", code, *arguments]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, bufsize=0, **options)
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == b"ready\n"
        yield child
    finally:
        child.kill()
        child.wait(PATIENCE_S)
        child.stdout.close()


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that must come, however slow the machine is."""
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, "it did not come"
        time.sleep(0.01)


def watch(pid: int) -> Evidence:
    """Return the evidence of half a second."""
    first = Look(time.monotonic(), read_counters(pid), read_proc(pid))
    time.sleep(0.5)
    return evidence_of(pid, first, Look(time.monotonic(), read_counters(pid), read_proc(pid)))


def seen_as(pid: int, cause: Cause) -> Evidence:
    """Watch a process until it is seen as frozen in this way, and return the evidence."""
    found: list[Evidence] = []

    def is_seen() -> bool:
        found.append(watch(pid))
        return find_cause(found[-1]).cause is cause

    until(is_seen)
    return found[-1]


def test_a_sleep_is_seen() -> None:
    """One long sleep, and not the pauses of a loop."""
    with child_of("import time\n" + READY + "time.sleep(999)") as child:
        evidence = seen_as(child.pid, Cause.SLEEPING)

    assert evidence.state == "S"
    assert evidence.syscall == "clock_nanosleep"
    assert evidence.threads == 1


def test_a_loop_of_short_sleeps_is_seen_as_a_retry() -> None:
    """It is found in the same call each time, but it wakes up again and again."""
    with child_of("import time\n" + READY + "while True: time.sleep(0.01)") as child:
        evidence = seen_as(child.pid, Cause.RETRYING)

    assert evidence.changing


def _addresses() -> list[tuple[socket.AddressFamily, str, str]]:
    found = [(socket.AF_INET, "127.0.0.1", "127.0.0.1")]
    if Path("/proc/net/if_inet6").exists() and "00000000000000000000000000000001" in Path(
        "/proc/net/if_inet6"
    ).read_text(encoding="ascii"):
        found.append((socket.AF_INET6, "::1", "[::1]"))
    return found


@pytest.mark.parametrize(("family", "host", "shown"), _addresses())
def test_a_socket_without_an_answer_is_seen_with_its_peer(family: socket.AddressFamily, host: str, shown: str) -> None:
    """The address of the peer is what one needs to know."""
    with socket.socket(family) as server:
        server.bind((host, 0))
        server.listen()
        port = server.getsockname()[1]
        code = "import socket, sys\ns = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
        with child_of(code + READY + "s.recv(1)", host, str(port)) as child:
            evidence = seen_as(child.pid, Cause.NETWORK)

    assert evidence.syscall == "recvfrom"
    assert evidence.syscall_target.text == f"socket to {shown}:{port}"


def test_a_server_that_nobody_calls_is_seen() -> None:
    """There is no peer yet; its own address says what it is."""
    code = "import socket\ns = socket.create_server(('127.0.0.1', 0))\n"
    with child_of(code + READY + "s.accept()") as child:
        evidence = seen_as(child.pid, Cause.NETWORK)

    assert evidence.syscall_target.text.startswith("socket listening on 127.0.0.1:")


def test_a_socket_of_this_machine_is_seen() -> None:
    """Such as one to a daemon."""
    with child_of("import socket\na, b = socket.socketpair()\n" + READY + "a.recv(1)") as child:
        evidence = seen_as(child.pid, Cause.NETWORK)

    assert evidence.syscall_target.text == "socket to a process of this machine"


def test_an_event_loop_is_seen_with_the_peer_that_it_waits_for() -> None:
    """It sleeps in epoll; among what it watches is its own wake-up socket, which is not the one to name."""
    code = """
import asyncio, sys
async def main():
    reader, writer = await asyncio.open_connection("127.0.0.1", int(sys.argv[1]))
    print("ready", flush=True)
    await reader.read(1)
asyncio.run(main())
"""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with child_of(code, str(port)) as child:
            evidence = seen_as(child.pid, Cause.NETWORK)

    assert evidence.syscall.startswith("epoll")
    assert evidence.syscall_target.text == f"socket to 127.0.0.1:{port}"


def test_a_lock_that_is_taken_twice_is_seen() -> None:
    """Nobody will ever release it."""
    code = "import threading\nlock = threading.Lock()\nlock.acquire()\n"
    with child_of(code + READY + "lock.acquire()") as child:
        evidence = seen_as(child.pid, Cause.LOCK)

    assert evidence.syscall == "futex"


def test_a_file_lock_of_somebody_else_is_seen_with_its_file(tmp_path: Path) -> None:
    """The file tells who else may hold it."""
    path = tmp_path / "lock"
    code = "import fcntl, sys\nf = open(sys.argv[1], 'w')\n"
    with path.open("w") as mine:
        fcntl.lockf(mine, fcntl.LOCK_EX)
        with child_of(code + READY + "fcntl.lockf(f, fcntl.LOCK_EX)", str(path)) as child:
            evidence = seen_as(child.pid, Cause.LOCK)

    assert evidence.syscall == "fcntl"
    assert evidence.syscall_target.text == str(path)


def test_a_stopped_process_is_seen() -> None:
    """It looks as it did before, but for its state."""
    with child_of("import time\n" + READY + "time.sleep(999)") as child:
        os.kill(child.pid, signal.SIGSTOP)
        evidence = seen_as(child.pid, Cause.STOPPED)
        seen = read_counters(child.pid)

    assert evidence.state == "T"
    assert seen is not None
    assert seen.state == "T"


def test_output_that_nobody_reads_is_seen() -> None:
    """The pipe behind stdout is full."""
    with child_of("import os\n" + READY + "while True: os.write(1, bytes(65536))") as child:
        evidence = seen_as(child.pid, Cause.FULL_PIPE)

    assert evidence.syscall == "write"
    assert evidence.syscall_fd == 1
    assert evidence.syscall_target.text.startswith("pipe:[")
    assert "its stdout" in find_cause(evidence).evidence_lines[0]


def test_a_program_that_does_not_end_is_seen() -> None:
    """The process waits for a child of its own, which must not outlive this test."""
    inner = "import sys; sys.stdin.read()"
    code = f"import subprocess, sys\np = subprocess.Popen([sys.executable, '-c', {inner!r}], stdin=subprocess.PIPE)\n"
    with child_of(code + READY + "p.wait()") as child:
        evidence = seen_as(child.pid, Cause.CHILD)

    assert evidence.children == 1


def test_a_pipe_that_stays_silent_is_seen() -> None:
    """Such as the output of a program that was started long ago."""
    with child_of("import os\nr, w = os.pipe()\n" + READY + "os.read(r, 1)") as child:
        assert seen_as(child.pid, Cause.CHILD).syscall == "read"


def test_an_endless_loop_is_seen() -> None:
    """It is in no system call, and uses CPU time, however little a busy machine gives it."""
    with child_of(READY + "while True: pass") as child:
        evidence = seen_as(child.pid, Cause.BUSY)
        first = read_counters(child.pid)
        assert first is not None
        until(lambda: (now := read_counters(child.pid)) is not None and now.moved_since(first))

    assert evidence.state == "R"


def test_work_of_a_program_that_was_started_counts_as_movement() -> None:
    """A worker that waits for a decoder of video does not stand still."""
    inner = "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"  # it ends with its parent
    code = f"import subprocess, sys\np = subprocess.Popen([sys.executable, '-c', {inner!r}])\n"
    with child_of(code + READY + "p.wait()") as child:
        first = read_counters(child.pid)
        assert first is not None
        until(lambda: (now := read_counters(child.pid)) is not None and now.cpu_s > first.cpu_s + 0.1)


def test_reading_counts_as_movement() -> None:
    """Bytes that a process moves show even where it uses next to no CPU."""
    code = "import time\nf = open('/dev/zero', 'rb', 0)\n" + READY + "while True: f.read(9); time.sleep(0.01)"
    with child_of(code) as child:
        first = read_counters(child.pid)
        assert first is not None
        until(lambda: (now := read_counters(child.pid)) is not None and now.moved_bytes > first.moved_bytes)


def test_memory_of_its_own_is_measured() -> None:
    """In bytes, without what is mapped from files."""
    with child_of("x = bytearray(b'1') * 50_000_000\n" + READY + "import time; time.sleep(999)") as child:
        seen = read_counters(child.pid)

    assert seen is not None
    assert seen.rss_nbytes > 50_000_000


def test_threads_are_counted() -> None:
    """A pool that is not there, or that is far too large, shows in their number."""
    code = "import threading, time\nfor _ in range(3): threading.Thread(target=time.sleep, args=(999,)).start()\n"
    with child_of(code + READY + "time.sleep(999)") as child:
        assert read_proc(child.pid).threads == 4


def test_a_process_that_has_ended_and_one_that_is_gone_are_told_apart() -> None:
    """The first still has a state; of the second nothing can be read, and nothing raises."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    until(lambda: read_proc(child.pid).state == "Z")
    ended = read_counters(child.pid)
    child.wait(PATIENCE_S)

    assert ended is not None
    assert ended.state == "Z"
    assert read_counters(child.pid) is None
    assert read_proc(child.pid) == ProcSnapshot()
    assert find_cause(watch(child.pid)).cause is Cause.UNKNOWN


def test_a_system_without_proc_has_no_facts(tmp_path: Path) -> None:
    """Such as macOS."""
    assert read_counters(os.getpid(), proc=tmp_path) is None
    assert read_proc(os.getpid(), proc=tmp_path) == ProcSnapshot()
    assert oom_kills(root=tmp_path) == 0


def fake_process(proc: Path, **files: str) -> None:
    home = proc / "7"
    (home / "task/7").mkdir(parents=True)
    for name, text in files.items():
        (home / name).write_text(text)


def test_a_name_with_blanks_and_brackets_does_not_confuse(tmp_path: Path) -> None:
    """A process can call itself what it likes."""
    fields = " ".join(["S", *["0"] * 10, "100", "20", "3", "4", *["0"] * 30])
    fake_process(tmp_path, stat=f"7 (a b) R ) {fields}", statm="100 50 20 1 0 30 0")

    seen = read_counters(7, proc=tmp_path)

    assert seen == Counters(
        state="S",
        cpu_s=127 / os.sysconf("SC_CLK_TCK"),
        moved_bytes=0,
        rss_nbytes=30 * os.sysconf("SC_PAGE_SIZE"),
    )


@pytest.mark.parametrize(
    ("machine", "text", "call"),
    [
        ("x86_64", "45 0x3 0x7f 0x1 0x0 0x0 0x0 0x7ff 0x7ff", "recvfrom"),
        ("aarch64", "207 0x3 0x7f 0x1 0x0 0x0 0x0 0x7ff 0x7ff", "recvfrom"),
        ("riscv64", "45 0x3 0x7f 0x1 0x0 0x0 0x0 0x7ff 0x7ff", "45"),
        ("x86_64", "running", ""),
        ("x86_64", "-1 0x7ff 0x7ff", ""),
        ("x86_64", "", ""),
    ],
)
def test_calls_have_names_where_they_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str, text: str, call: str
) -> None:
    """Elsewhere their number is given: it can be looked up."""
    monkeypatch.setattr("platform.machine", lambda: machine)
    fake_process(tmp_path, syscall=text)

    assert read_proc(7, proc=tmp_path).syscall == call


def test_the_working_directory_is_not_taken_for_a_descriptor(tmp_path: Path) -> None:
    """``openat`` says -100 for it, and the first argument of ``openat`` is not what is waited for."""
    fake_process(tmp_path, syscall="257 0xffffff9c 0x7f 0x0 0x0 0x0 0x0 0x7ff 0x7ff")

    assert read_proc(7, proc=tmp_path).syscall_fd == -1


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/memory.events": "oom 5\noom_kill 3\n"}, 3),
        ({"proc/self/cgroup": "0::/host/path\n", "sys/fs/cgroup/memory.events": "oom_kill 2\n"}, 2),
        (
            {
                "proc/self/cgroup": "3:cpu,memory:/d\n0::/\n",
                "sys/fs/cgroup/memory/d/memory.oom_control": "under_oom 0\noom_kill 4\n",
                "proc/vmstat": "oom_kill 9\n",
            },
            4,
        ),
        ({"proc/self/cgroup": "0::/\n", "proc/vmstat": "nr_free_pages 1\noom_kill 9\n"}, 9),
        ({"proc/vmstat": "oom_kill 9\n"}, 9),
        ({"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/memory.events": "oom_kill many\n"}, 0),
    ],
)
def test_kills_for_memory_are_counted_in_our_group_or_on_the_machine(
    tmp_path: Path, files: dict[str, str], expected: int
) -> None:
    """Both versions of control groups; kills of other jobs are counted only where there is no better number."""
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    assert oom_kills(root=tmp_path) == expected


def test_this_machine_counts_kills() -> None:
    """Whatever the number is."""
    assert oom_kills() >= 0


def glance_of(**facts: Any) -> Counters:
    return Counters(**{"state": "S", "cpu_s": 0.0, "moved_bytes": 0, "rss_nbytes": 0, **facts})


def test_evidence_is_what_changed_between_two_looks() -> None:
    """Shares and differences, and the place of the second look."""
    evidence = evidence_of(
        7,
        Look(
            10.0,
            glance_of(cpu_s=1.0, moved_bytes=100),
            ProcSnapshot(state="S", syscall="futex", wchan="futex_wait"),
        ),
        Look(
            14.0,
            glance_of(cpu_s=2.0, moved_bytes=150, rss_nbytes=9),
            ProcSnapshot(state="S", syscall="futex", wchan="futex_wait", threads=2, children=1, wakes=50),
        ),
        stage="FETCH",
        limit_s=3.0,
        oom_kills=1,
    )

    assert evidence == Evidence(
        pid=7,
        wakes=50,
        state="S",
        syscall="futex",
        wchan="futex_wait",
        cpu_share=0.25,
        moved_bytes=50,
        rss_nbytes=9,
        threads=2,
        children=1,
        stage="FETCH",
        limit_s=3.0,
        oom_kills=1,
    )


@pytest.mark.parametrize(
    ("first", "second", "changing"),
    [
        (ProcSnapshot(state="S", syscall="futex"), ProcSnapshot(state="S", syscall="read"), True),
        (
            ProcSnapshot(state="S", syscall="read", syscall_target=Target(TargetKind.FILE, "/a")),
            ProcSnapshot(state="S", syscall="read"),
            True,
        ),
        (ProcSnapshot(state="S", syscall="nanosleep"), ProcSnapshot(state="S", syscall="nanosleep", wakes=2), False),
        (ProcSnapshot(state="S", syscall="nanosleep"), ProcSnapshot(state="S", syscall="nanosleep", wakes=3), True),
        (ProcSnapshot(state="S", syscall="futex"), ProcSnapshot(state="S", syscall="futex", wakes=99), False),
        (ProcSnapshot(state="S", syscall="futex"), ProcSnapshot(), False),
    ],
)
def test_who_is_seen_in_different_calls_changes(first: ProcSnapshot, second: ProcSnapshot, changing: bool) -> None:
    """A sleeper that a signal woke does not; a lock with a timeout inside is still the same lock."""
    assert evidence_of(7, Look(0.0, None, first), Look(1.0, None, second)).changing is changing


def test_a_process_that_ended_in_between_is_known_by_what_was_seen_before() -> None:
    """Its memory may be why it was killed."""
    before = Look(0.0, glance_of(rss_nbytes=9, cpu_s=5.0), ProcSnapshot(state="R"))
    evidence = evidence_of(7, before, Look(0.0, None, ProcSnapshot()), exit_code=-9)

    assert (evidence.rss_nbytes, evidence.cpu_share, evidence.state, evidence.exit_code) == (9, 0.0, "", -9)
