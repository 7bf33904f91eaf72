"""Runs of a framework: each in processes of its own, forks of one that has imported the framework, which takes seconds.

Run as a script, this is that process. It has imported and run nothing, so what it forks is like a fresh interpreter.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
LIMIT_S = 100.0
_GONE_S = 10.0


class Runs:
    """Runs functions of one module of this folder, each on one or more ranks."""

    def __init__(self, module: str, folder: Path) -> None:
        self._folder, self._number = folder, 0
        command = [sys.executable, str(Path(__file__)), module]
        # Between two epochs, or a fit and a test, the fork server stays: it has imported torch.
        environ = {**os.environ, "ANTIFREEZE_FORKSERVER_LINGER_S": "0.4"}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ, text=True, start_new_session=True
        )

    def __call__(self, name: str, *, ranks: int = 1, **arguments: Any) -> list[Any]:
        """Return what each rank returned, and fail if one of them raised, or left something behind."""
        answers = self.ask(name, ranks=ranks, **arguments)
        for answer in answers:
            assert "trace" not in answer, answer["trace"]
            assert answer["left"] == [], answer
        return [answer["result"] for answer in answers]

    def ask(self, name: str, *, ranks: int = 1, **arguments: Any) -> list[dict[str, Any]]:
        """Return for each rank what it returned or raised, and what it left behind."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._number += 1
        folder = self._folder / f"{self._number}-{name}"
        folder.mkdir()
        request = {"name": name, "ranks": ranks, "folder": str(folder), "arguments": arguments}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline(), "the process that runs them has ended"
        output = (folder / "output").read_text()
        files = [folder / f"rank-{rank}.json" for rank in range(ranks)]
        assert all(file.exists() for file in files), f"a rank was killed, or ended without a word:\n{output[-6000:]}"
        return [json.loads(file.read_text()) | {"output": output} for file in files]

    def close(self) -> None:
        """End the process, which waits for nothing."""
        with self._process as process:
            process.terminate()


def opened(module: str, folder: Path) -> Iterator[Runs]:
    """Yield the runs of a module: what a fixture needs."""
    with closing(Runs(module, folder)) as runs:
        yield runs


# -- in the process that forks -----------------------------------------------------------------------------------------


def _serve(module: Any) -> None:
    while line := sys.stdin.readline():
        request = json.loads(line)
        port = _free_port()
        pids = [os.fork() or _become(module, request, rank, port) for rank in range(request["ranks"])]
        _wait(pids, time.monotonic() + LIMIT_S)
        print("done", flush=True)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _wait(pids: list[int], end_s: float) -> None:
    left = set(pids)
    while left:
        left -= {pid for pid in left if os.waitpid(pid, os.WNOHANG)[0]}
        if time.monotonic() > end_s:
            for pid in left:
                os.killpg(pid, signal.SIGABRT)  # faulthandler says where it stands
            end_s = float("inf")
        time.sleep(0.01)


# -- in a rank ---------------------------------------------------------------------------------------------------------


def _become(module: Any, request: dict[str, Any], rank: int, port: int) -> int:
    """Run the function and end this process; it never returns, but its type says what ``fork`` gives."""
    try:
        os.setsid()
        folder = Path(request["folder"])
        output = os.open(folder / "output", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        null = os.open(os.devnull, os.O_RDONLY)
        for fd, target in ((null, 0), (output, 1), (output, 2)):
            os.dup2(fd, target)
        os.environ["TMPDIR"] = str(folder)
        if request["ranks"] > 1:
            ranks = {
                "RANK": rank,
                "LOCAL_RANK": rank,
                "WORLD_SIZE": request["ranks"],
                "LOCAL_WORLD_SIZE": request["ranks"],
            }
            address = {"NODE_RANK": 0, "GROUP_RANK": 0, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            os.environ.update({key: str(value) for key, value in (ranks | address).items()})
        warnings.simplefilter("ignore")  # the frameworks warn of this and that
        warnings.filterwarnings("error", module=r"antifreeze(\.|$)")
        answer = _answer(lambda: getattr(module, request["name"])(folder, **request["arguments"]))
        (folder / f"rank-{rank}.part").write_text(json.dumps(answer))
        (folder / f"rank-{rank}.part").rename(folder / f"rank-{rank}.json")
    except BaseException:  # noqa: BLE001  it must not go on as the process that it was forked from
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    return 0


def _answer(function: Callable[[], Any]) -> dict[str, Any]:
    answer: dict[str, Any] = {}
    try:
        answer["result"] = function()
    except BaseException as error:  # noqa: BLE001  it is the answer
        answer["error"] = [kind.__name__ for kind in type(error).__mro__]
        answer["message"] = str(error)
        answer["trace"] = traceback.format_exc()
        traceback.clear_frames(error.__traceback__)
    gc.collect()
    end_s = time.monotonic() + _GONE_S
    while left_behind() and time.monotonic() < end_s:
        time.sleep(0.01)
    return answer | {"left": left_behind()}


def left_behind() -> list[str]:
    """Return the threads and processes of antifreeze that are there."""
    threads = [thread.name for thread in threading.enumerate() if thread.name.startswith("antifreeze")]
    return threads + [f"process {pid} ({name_of(pid)})" for pid in children()]


def children() -> list[int]:
    """Return the processes that this one has started."""
    found: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        try:
            found += map(int, (task / "children").read_text().split())
        except OSError:  # the thread has just ended
            continue
    return found


def name_of(pid: int) -> str:
    """Return what a process is called, or nothing if it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


if __name__ == "__main__":
    import faulthandler

    faulthandler.enable()
    _serve(importlib.import_module(sys.argv[1]))
