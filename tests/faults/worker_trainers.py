"""Trainers that can be killed: each is a fork of one process that has imported torch, so that none has to do it again.

Run as a script, this is that process. It has one thread and runs nothing: what it forks ends as any interpreter ends.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from worker_processes import identity, lives, until

_HERE = Path(__file__).parent


class Trainer:
    """A process that runs a script."""

    def __init__(self, source: Trainers, pid: int, folder: Path) -> None:
        self.pid = pid
        self._source, self._folder = source, folder
        self._lines = 0

    @property
    def errors(self) -> str:
        """What it has written to stderr."""
        return (self._folder / "errors").read_text()

    @property
    def output(self) -> list[str]:
        """The lines that it has printed, as far as they are whole: an unbuffered print() writes in pieces."""
        return (self._folder / "output").read_text().rpartition("\n")[0].splitlines()

    def line(self) -> str:
        """Return the next line that it prints."""
        until(lambda: len(self.output) > self._lines or not lives(identity(self.pid)), "the trainer says something")
        assert len(self.output) > self._lines, self.errors
        self._lines += 1
        return self.output[self._lines - 1]

    def processes(self) -> list[tuple[int, str]]:
        """Return its workers and its fork server, which it prints."""
        line = self.line()
        assert line.startswith("pids "), (line, self.errors)
        return [identity(int(pid)) for pid in line.split()[1:]]

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def wait(self) -> int:
        """Return its exit code, once it has ended."""
        code: list[int] = []
        until(lambda: code.extend(self._source.ask({"poll": self.pid})) or code, "the trainer ends")
        return code[0]


class Trainers:
    """Starts trainers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0
        command = [sys.executable, str(Path(__file__)), str(_HERE.parent)]
        environ = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ, text=True, start_new_session=True
        )

    def ask(self, request: dict[str, Any]) -> Any:
        """Have the process do something, and return its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def start(self, script: str) -> Trainer:
        """Start a trainer in a session of its own."""
        self._number += 1
        folder = self._folder / str(self._number)
        folder.mkdir()
        return Trainer(self, self.ask({"run": script, "folder": str(folder)}), folder)

    def close(self) -> None:
        """End the process; trainers that still run are ended with their sessions."""
        with self._process as process:
            process.terminate()


def _become(request: dict[str, Any]) -> None:
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)  # what a shell starts in the background ignores it
    for fd, name in ((1, "output"), (2, "errors")):
        opened = os.open(os.path.join(request["folder"], name), os.O_CREAT | os.O_WRONLY | os.O_APPEND)  # noqa: PTH118
        os.dup2(opened, fd)
        os.close(opened)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)


def _serve() -> str:
    """Fork trainers; return a script in each of them."""
    while line := sys.stdin.readline():
        request = json.loads(line)
        answer: Any = None
        if "run" in request:
            for name in ("output", "errors"):
                Path(request["folder"], name).touch()
            answer = os.fork()
            if not answer:
                _become(request)
                return str(request["run"])
        else:
            pid, status = os.waitpid(request["poll"], os.WNOHANG)
            answer = [os.waitstatus_to_exitcode(status)] if pid else []
        print(json.dumps(answer), flush=True)
    return ""


if __name__ == "__main__":
    sys.path[:0] = sys.argv[1:]
    import worker_engines  # noqa: F401  here, once

    _script = _serve()
    exec(_script, globals())  # noqa: S102  a test's own
