"""Programs that user code starts in a worker end with it, whatever session they have made.

Each program has the end of a pipe that nothing else has: the pipe ends when the last of them has ended, and no sooner.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import more

PATIENCE_S = 60.0

PRELUDE = """
import os, signal, subprocess, sys, time
import antifreeze as af

FIFO = {fifo!r}
DAEMON = {daemon!r}

def start():
    # It opens the named pipe, says so, and waits for longer than any test.
    code = "import os, sys, time; fd = os.open(sys.argv[1], os.O_WRONLY); os.write(fd, b'x')"
    code += "; open(sys.argv[1] + '.up', 'w').close(); time.sleep(600)"
    command = [sys.executable, "-S", "-c", code, FIFO]
    if DAEMON:  # a program that leaves its child behind, in a session of its own, and ends
        leave = "import subprocess, sys; subprocess.Popen(sys.argv[1:], start_new_session=True)"
        subprocess.run([sys.executable, "-S", "-c", leave, *command], check=True, start_new_session=True)
    else:
        subprocess.Popen(command, start_new_session=True)
    until(".up")

def until(file):
    while not os.path.exists(FIFO + file):
        time.sleep(0.01)

class Numbers:
    def __len__(self):
        return 6
    def __getitem__(self, index):
        if index == 0:
            start()
        return index

class Doomed(Numbers):
    def __getitem__(self, index):
        if index == 0 and not os.path.exists(FIFO + ".dead"):
            start()
            open(FIFO + ".dead", "w").close()
            until(".started")
            os.kill(os.getpid(), signal.SIGKILL)
        return index

class Two(Numbers):
    def __getitem__(self, index):
        if index == 0:
            start()
        if index == 1 and not os.path.exists(FIFO + ".dead"):
            open(FIFO + ".dead", "w").close()
            until(".started")
            os.kill(os.getpid(), signal.SIGKILL)
        return index
"""
ITERATE = "it = iter(af.DataLoader(Numbers(), num_workers=1))\nnext(it)\nprint('ready', flush=True)\n"
SCRIPTS = {
    "kill -9": f"{ITERATE}time.sleep(600)",
    "exit": f"{ITERATE}sys.stdin.readline()",
    "end": "list(af.DataLoader(Numbers(), num_workers=1))\nprint('ready', flush=True)\nsys.stdin.readline()",
    "break": (
        "loader = af.DataLoader(Numbers(), num_workers=1)\nfor _ in loader:\n    break\n"
        "print('ready', flush=True)\nsys.stdin.readline()"
    ),
    "worker": (
        "it = iter(af.DataLoader(Doomed(), num_workers=1))\nprint('ready', flush=True)\n"
        "for _ in range(6):\n    next(it)\nprint('all', flush=True)\nsys.stdin.readline()"
    ),
    "two": (
        "loader = af.DataLoader(Two(), num_workers=2, persistent_workers=True)\nlist(loader)\n"
        "print('all', flush=True)\nsys.stdin.readline()"
    ),
}


class Fifo:
    """A named pipe. Only programs write to it, so that it ends with them."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "pipe"
        os.mkfifo(self.path)
        self._fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)

    def wait(self, expected: bytes) -> None:
        """Wait for a byte of the program, or for the end of all programs."""
        end_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < end_s:
            # Nothing has opened it yet: that looks like its end, and is not ready.
            ready, _, _ = select.select([self._fd], [], [], 0.2)
            if ready and (found := os.read(self._fd, 1)) == expected:
                return
            if ready:
                assert found == b""
                time.sleep(0.02)
        pytest.fail("the program did not start" if expected else "the program still runs")

    def close(self) -> None:
        os.close(self._fd)


@pytest.fixture
def fifo(tmp_path: Path) -> Iterator[Fifo]:
    pipe = Fifo(tmp_path)
    yield pipe
    pipe.close()


def trainer(script: str, fifo: Fifo, *, daemon: bool) -> subprocess.Popen[Any]:
    source = PRELUDE.replace("{fifo!r}", repr(str(fifo.path))).replace("{daemon!r}", repr(daemon)) + SCRIPTS[script]
    environ = {**os.environ, "ANTIFREEZE_FORKSERVER_LINGER_S": "60"}  # what is left must not end with the fork server
    return subprocess.Popen(
        [sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ
    )


@pytest.mark.parametrize("daemon", [False, *more(True)])
@pytest.mark.parametrize("way", ["kill -9", "exit", "end", "break", "worker"])
def test_a_program_in_a_session_of_its_own_ends_with_its_worker(way: str, daemon: bool, fifo: Fifo) -> None:
    """With the trainer, with the epoch, with the loop, with the worker; also if who has started it is gone."""
    process = trainer(way, fifo, daemon=daemon)
    with process:
        try:
            assert process.stdout is not None
            assert process.stdin is not None
            fifo.wait(b"x")
            if way == "worker":
                Path(f"{fifo.path}.started").touch()
            assert process.stdout.readline() == "ready\n"
            if way == "kill -9":
                process.kill()
            elif way == "exit":
                process.stdin.close()
            fifo.wait(b"")
            if way == "worker":
                assert process.stdout.readline() == "all\n", "the worker was replaced"
            if way in ("end", "break", "worker"):
                assert process.poll() is None, "the trainer lives, and with it the fork server"
        finally:
            process.kill()


def test_a_daemon_of_a_living_worker_is_left_alone(fifo: Fifo) -> None:
    """Another worker's end must not cost it: it belongs to the one that has started it."""
    process = trainer("two", fifo, daemon=True)
    with process:
        try:
            assert process.stdout is not None
            fifo.wait(b"x")
            Path(f"{fifo.path}.started").touch()
            assert process.stdout.readline() == "all\n"
            ready, _, _ = select.select([fifo._fd], [], [], 1.0)
            assert not ready, "the daemon of the worker that lives was killed"
        finally:
            process.send_signal(signal.SIGKILL)
    fifo.wait(b"")
