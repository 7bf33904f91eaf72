"""A job that is started by the doctor: it is watched, left alone, and its exit code comes back."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from doctor_children import PATIENCE_S, until

from antifreeze.doctor._terminal import Paper
from antifreeze.doctor.job._job_report import read
from antifreeze.doctor.job._run import run, to_stderr


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for a moment only."""
    monkeypatch.setattr("antifreeze.doctor.job._observe.MIN_OBSERVATION_S", 0.3)
    monkeypatch.setattr("antifreeze.doctor.job._observe.MAX_OBSERVATION_S", 1.0)
    monkeypatch.setattr("antifreeze.doctor.job._observe._SNAPSHOT_INTERVAL_S", 0.1)


def watch(code: str, folder: Path, *arguments: str, say: Callable[[str], None] | None = None) -> tuple[int, list[str]]:
    """Run a program under the doctor; return its exit code and all that was said."""
    said: list[str] = []

    def both(text: str) -> None:
        said.append(text)
        if say is not None:
            say(text)

    command = [sys.executable, "-c", code, *arguments]
    code_of = run(command, stall_s=1.0, folder=folder / "kept", say=both, paper=Paper())
    return code_of, said


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("pass", 0),
        ("raise SystemExit(3)", 3),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 128 + 9),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", 128 + 15),
    ],
)
def test_the_exit_code_is_that_of_the_job(code: str, expected: int, tmp_path: Path) -> None:
    """As a shell gives it; nothing is said of a job that ends, and nothing is kept."""
    assert watch(code, tmp_path) == (expected, [])
    assert not (tmp_path / "kept").exists()


@pytest.mark.parametrize(
    ("command", "expected"), [("no-such-program-anywhere", 127), ("/etc/passwd", 126), ("/etc", 126)]
)
def test_what_cannot_be_started(command: str, expected: int, tmp_path: Path) -> None:
    """It is said why."""
    said: list[str] = []

    assert run([command], stall_s=1.0, folder=tmp_path, say=said.append, paper=Paper()) == expected
    assert said[0].startswith(f"antifreeze doctor: could not start {command}: ")


def test_signals_are_as_they_were_before(tmp_path: Path) -> None:
    """Whoever calls it keeps his handlers."""
    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)
    before = [signal.getsignal(number) for number in numbers]
    watch("pass", tmp_path)

    assert [signal.getsignal(number) for number in numbers] == before


READS = """
import socket, sys
peer = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
while peer.recv(1) == b"x":
    for _ in range(2_000_000):
        pass
    peer.sendall(b"y")
"""


@contextmanager
def server() -> Iterator[tuple[str, Callable[[], socket.socket]]]:
    """Yield a port, and how to get the connection of the job."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(PATIENCE_S)

        def accept() -> socket.socket:
            peer, _ = listening.accept()
            peer.settimeout(PATIENCE_S)
            return peer

        yield str(listening.getsockname()[1]), accept


@pytest.mark.usefixtures("soon")
def test_a_job_that_stands_still_goes_on_and_stands_still_again(tmp_path: Path) -> None:
    """Each time it is told once, evidence is kept, and the job is not stopped."""
    with server() as (port, accept):
        peers: list[socket.socket] = []
        accepted = threading.Thread(target=lambda: peers.append(accept()))
        accepted.start()

        def say(text: str) -> None:
            accepted.join(PATIENCE_S)
            told = sum("no progress" in one for one in so_far)
            so_far.append(text)
            if "no progress" in text:
                # The first time it is fed, until the doctor has seen it move; the second time its peer hangs up.
                threading.Thread(target=feed if told == 0 else peers[0].close).start()
            elif "recovered" in text:
                fed.set()

        def feed() -> None:
            while not fed.is_set():
                peers[0].sendall(b"x")
                peers[0].recv(1)

        so_far: list[str] = []
        fed = threading.Event()
        code, said = watch(READS, tmp_path, port, say=say)
        accepted.join(PATIENCE_S)

    assert code == 0
    assert ["no progress" in text for text in said[:3]] == [True, False, True], said
    assert sum("no progress" in text for text in said) == 2  # that it ends may be seen, too: it moves then
    assert "the job is not stopped" in said[0]
    assert "waits for a network peer, at <string>:4 in <module>" in " ".join(said[0].split())
    assert said[1] == "antifreeze doctor: the job recovered\n"
    assert "waits for a network peer" in " ".join(said[2].split())
    (kept,) = tmp_path.glob("kept-*")
    assert stat.S_IMODE(kept.stat().st_mode) == 0o700
    folders = sorted(kept.iterdir())
    assert [folder.name.rpartition("-")[2] for folder in folders] == ["1", "2"]
    assert f"antifreeze doctor report {folders[0]}" in said[0]
    assert read(folders[0])[0].still_s >= 1.0


@pytest.mark.usefixtures("soon")
def test_evidence_that_cannot_be_kept_does_not_end_the_watch(tmp_path: Path) -> None:
    """The disk may be full: it is said, and the job's exit code comes back."""
    (tmp_path / "file").write_text("this is no folder")
    with server() as (port, accept):
        peers: list[socket.socket] = []
        accepted = threading.Thread(target=lambda: peers.append(accept()))
        accepted.start()

        def say(_: str) -> None:
            accepted.join(PATIENCE_S)
            peers[0].close()

        code, said = watch(READS + "sys.exit(5)\n", tmp_path / "file", port, say=say)
        accepted.join(PATIENCE_S)

    assert code == 5
    assert sum("no progress" in text for text in said) == 1
    assert "could not write the evidence to" in said[0]


def test_a_job_that_computes_is_not_spoken_of(tmp_path: Path) -> None:
    """However long it takes; here it is longer than the limit."""
    code = "import time\nend_s = time.monotonic() + 1.5\nwhile time.monotonic() < end_s:\n    sum(range(1000))"

    assert watch(code, tmp_path) == (0, [])


def test_nobody_reads_what_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The terminal is closed; the job recovered."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        to_stderr("words\n")
        monkeypatch.undo()
        with suppress(BrokenPipeError):
            stream.close()


ENDS_BY = """
import signal, sys
def end(number, frame):
    sys.exit(40 + number)
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGINT):
    signal.signal(number, end)
print("ready", flush=True)
while True:
    signal.pause()
"""


def has(pid: int, number: signal.Signals, name: str) -> bool:
    """Whether a signal is in one of the sets of a process: ``SigBlk`` are blocked, ``ShdPnd`` not yet taken."""
    status = dict(line.partition(":")[::2] for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return bool(int(status[name], 16) >> (number - 1) & 1)


@contextmanager
def started(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Yield the command, with a job that waits for a signal, in a process group of its own."""
    words = ["-m", "antifreeze", "doctor", "run", "--keep", str(folder), "--", sys.executable, "-c", ENDS_BY]
    with subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            until(lambda: has(process.pid, signal.SIGINT, "SigBlk"))
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGINT])
def test_a_signal_to_the_doctor_reaches_the_job(number: signal.Signals, tmp_path: Path) -> None:
    """Schedulers send it to the process that they have started."""
    with started(tmp_path) as process:
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == 40 + number


COUNTS = """
import signal, sys
count = 0
def interrupted(number, frame):
    global count
    count += 1
    print("interrupt", count, flush=True)
def end(number, frame):
    sys.exit(40 + count)
signal.signal(signal.SIGINT, interrupted)
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
while True:
    signal.pause()
"""
IN_TERMINAL = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def test_ctrl_c_reaches_the_job_once(tmp_path: Path) -> None:
    """The terminal sends it to both. What is sent to the doctor alone is passed on, once, too."""
    master, slave = os.openpty()
    words = ["-m", "antifreeze", "doctor", "run", "--keep", str(tmp_path), "--", sys.executable, "-c", COUNTS]
    command = [sys.executable, "-c", IN_TERMINAL, *words]
    with os.fdopen(master, "wb", buffering=0) as keyboard:
        with os.fdopen(slave, "rb") as terminal:
            process = subprocess.Popen(command, stdin=terminal, stdout=subprocess.PIPE, text=True)
        with process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == "ready\n"
                until(lambda: has(process.pid, signal.SIGINT, "SigBlk"))
                keyboard.write(b"\x03")
                assert process.stdout.readline() == "interrupt 1\n"
                until(lambda: not has(process.pid, signal.SIGINT, "ShdPnd"))
                process.send_signal(signal.SIGINT)
                assert process.stdout.readline() == "interrupt 2\n"
                process.send_signal(signal.SIGTERM)
                assert process.wait(PATIENCE_S) == 42
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
