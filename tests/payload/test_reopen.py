"""A payload that was loaded before the fork: each worker has its own handles, and the dataset still holds them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LOAD = """
import io, json, os, pickle, sqlite3, sys, tarfile, types, zipfile
from pathlib import Path
import h5py, lmdb
import numpy as np
from antifreeze.payload._reducers import shared_handles
from antifreeze.payload._reopen import loading_for_forks, reopened_fds, run_reopeners
from antifreeze.worker import load_program
from antifreeze.payload._payload import make_payload

folder = Path(sys.argv[1])


def template(*parts, by_value=()):
    # Stands for the process that workers are forked from: it gets the payload, and nothing else of the trainer.
    payload = make_payload(types.SimpleNamespace(parts=parts), set(by_value))
    before = open_files()
    with loading_for_forks():
        program = load_program(payload.layout, payload.fds())
    expected = before.keys() | reopened_fds() | shared_handles()
    left = [path for fd, path in open_files().items() if fd not in expected and "antifreeze" not in path]
    return program.parts, left, payload.per_worker_reason


def open_files():
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            pass
    return found


def forked(act):
    # Two workers that take turns: each answers after the other.
    answers = []
    pipes = [os.pipe() for _ in range(4)]
    pids = []
    for number in range(2):
        if not (pid := os.fork()):
            try:
                run_reopeners()
                for turn in range(3):
                    os.read(pipes[number][0], 1)
                    os.write(pipes[2 + number][1], json.dumps(act(turn)).encode())
            finally:
                os._exit(0)
        pids.append(pid)
    for turn in range(3):
        for number in range(2):
            os.write(pipes[number][1], b"x")
            answers.append(json.loads(os.read(pipes[2 + number][0], 10_000) or b"null"))
    for pid in pids:
        os.waitpid(pid, 0)
    return answers

"""


def run(code: str, folder: Path) -> str:
    """Run a script in a process of its own: this one is never forked."""
    command = [sys.executable, "-c", LOAD + code, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


HANDLES = {
    "a file": """
(folder / "f").write_bytes(bytes(range(100)))
file = (folder / "f").open("rb")
file.read(10)
(found,), left, reason = template(file)
answers = forked(lambda turn: list(found.read(2)))
expected = [[10 + 2 * turn, 11 + 2 * turn] for turn in range(3)]
""",
    "a raw file": """
(folder / "f").write_bytes(bytes(range(100)))
file = (folder / "f").open("rb", buffering=0)
(found,), left, reason = template(file)
answers = forked(lambda turn: list(found.read(2)))
expected = [[2 * turn, 1 + 2 * turn] for turn in range(3)]
""",
    "a large text": """
(folder / "f").write_text("".join(f"line {i}\\n" for i in range(100_000)))
file = (folder / "f").open()
file.readline()
(found,), left, reason = template(file)
answers = forked(lambda turn: (found.seek(100_000 * turn) and None, found.readline(), found.readline())[2])
expected = []
with (folder / "f").open() as again:
    for turn in range(3):
        again.seek(100_000 * turn)
        again.readline()
        expected.append(again.readline())
""",
    "archives": """
for name in "abc":
    (folder / name).write_text(name * 100_000)
with zipfile.ZipFile(folder / "z", "w") as z, tarfile.open(folder / "t", "w") as t:
    for name in "abc":
        z.write(folder / name, name)
        t.add(folder / name, name)
np.savez(folder / "n.npz", a=np.arange(10_000), b=np.arange(20_000), c=np.arange(30_000))
parts = zipfile.ZipFile(folder / "z"), tarfile.open(folder / "t"), np.load(folder / "n.npz")
parts[1].getnames()
(z, t, n), left, reason = template(*parts)
answers = forked(lambda turn: [z.read("abc"[turn]).decode()[-9:], t.extractfile("abc"[turn]).read().decode()[-9:],
                               int(n["abc"[turn]][-1])])
expected = [["abc"[turn] * 9, "abc"[turn] * 9, 10_000 * (turn + 1) - 1] for turn in range(3)]
""",
    "a log": """
log = (folder / "log").open("a")
(found,), left, reason = template(log)
answers = forked(lambda turn: found.write(f"{turn}\\n") and (folder / "log").read_text().count(f"{turn}"))
answers = sorted(answers)
expected = None
assert answers == [1, 1, 1, 2, 2, 2], answers
""",
    "a connection to SQLite": """
db = sqlite3.connect(folder / "db")
db.row_factory = sqlite3.Row
db.execute("create table t (i)")
db.executemany("insert into t values (?)", [(i,) for i in range(3)])
db.commit()
cursor = db.cursor()
(found, again), left, reason = template(db, cursor)
answers = forked(lambda turn: [found.execute("select i from t where i = ?", (turn,)).fetchone()["i"],
                               again.execute("select i from t where i = ?", (turn,)).fetchone()["i"]])
expected = [[turn, turn] for turn in range(3)]
""",
    "HDF5": """
with h5py.File(folder / "h5", "w") as f:
    f["g/x"] = np.arange(3)
f = h5py.File(folder / "h5", "r")
(found, group, x, attributes), left, reason = template(f, f["g"], f["g/x"], f["g"].attrs)
answers = forked(lambda turn: [int(found["g/x"][turn]), int(group["x"][turn]), int(x[turn]), len(attributes)])
expected = [[turn, turn, turn, 0] for turn in range(3)]
""",
    "a lock between workers": """
import multiprocessing
lock = multiprocessing.get_context("spawn").Lock()
(found,), left, reason = template(lock)
answers = forked(lambda turn: found.acquire(timeout=60) and (found.release() or turn))
expected = [0, 1, 2]
""",
}


@pytest.mark.parametrize("handle", HANDLES)
def test_each_worker_reads_for_itself(handle: str, tmp_path: Path) -> None:
    """What one worker reads moves nothing in another, also if they take turns."""
    checks = """
assert not left and not reason, (left, reason)
assert expected is None or answers == [answer for answer in expected for _ in range(2)], answers
print("done")
"""
    assert run(HANDLES[handle] + checks, tmp_path) == "done\n"


@pytest.mark.parametrize("what", ["lmdb.open(str(folder / 'l'))", "__import__('asyncio').new_event_loop()"])
def test_what_cannot_be_opened_after_a_fork_says_that_each_worker_must_load(what: str, tmp_path: Path) -> None:
    code = f"""
handle = {what}
payload = make_payload(types.SimpleNamespace(parts=[handle]), set())
print(payload.per_worker_reason)
handle.close()
"""
    assert "which each worker has to open itself" in run(code, tmp_path)
