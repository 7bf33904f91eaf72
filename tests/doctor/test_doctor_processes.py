"""The processes of a job, as ``/proc`` tells of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from doctor_children import child, in_call, until

from antifreeze.doctor.job._observation import Observation, Process, Snapshot, to_values
from antifreeze.doctor.job._observe import (
    MAX_OBSERVATION_S,
    MIN_OBSERVATION_S,
    Gone,
    command_of,
    observe,
    read_machine,
    read_process,
    snapshot,
    tree,
)

READY = "print('ready', flush=True)\ninput()"
HUSH = "correct-horse-battery-staple"


def read(pid: int) -> Process:
    """Return a process that is there."""
    found = read_process(pid)
    assert found is not None
    return found


def test_what_is_read_of_a_process(tmp_path: Path) -> None:
    """Who it is, what it waits for, and what it has used."""
    code = f"import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n{READY}"
    with child(code, "--epochs", "3", cwd=tmp_path, env={**os.environ, "RANK": "3"}) as process:
        until(lambda: in_call(process.pid, "read"))
        seen = read(process.pid)

        assert seen.parent == os.getpid()
        assert "python" in seen.program
        assert seen.command[-2:] == ("--epochs", "3")
        assert seen.command[1:3] == ("-c", "...")
        assert seen.folder == str(tmp_path)
        assert seen.state == "S"
        assert seen.rank == 3
        assert len(seen.threads) == 2
        assert seen.main.tid == process.pid
        assert (seen.main.syscall, seen.main.fd) == ("read", 0)
        assert seen.main.target.startswith("pipe:[")
        assert seen.files >= 3
        assert seen.max_files >= seen.files
        assert seen.rss_nbytes > 1_000_000
        assert seen.read_bytes > 0
        assert seen.cpu_s >= 0
        assert not seen.ignores_sigchld
        assert seen.stacks == ()


def test_a_process_that_is_gone_is_none() -> None:
    """And so is its command line."""
    with child(READY) as process:
        pass

    assert read_process(process.pid) is None
    assert tree(process.pid) == [process.pid]
    assert command_of(process.pid) == ("",)


def test_a_zombie_is_read_without_harm() -> None:
    """It has a state, and nothing else."""
    with child("print('ready', flush=True)") as process:
        until(lambda: read(process.pid).state == "Z")
        seen = read(process.pid)

        assert (seen.command, seen.rank, seen.files) == ((), None, 0)
        with pytest.raises(Gone):
            observe(process.pid, lambda _: True)


@pytest.mark.parametrize(
    ("environment", "rank"),
    [
        ({}, None),
        ({"RANK": "0", "LOCAL_RANK": "1"}, 0),
        ({"LOCAL_RANK": "2"}, 2),
        ({"SLURM_PROCID": "5"}, 5),
        ({"OMPI_COMM_WORLD_RANK": "4"}, 4),
        ({"RANK": "first", "LOCAL_RANK": "6"}, 6),
        ({"RANK": ""}, None),
    ],
)
def test_the_rank_is_what_the_launcher_says(environment: dict[str, str], rank: int | None) -> None:
    """Of all launchers, the number among all machines before that on one."""
    with child(READY, env=environment) as process:
        assert read(process.pid).rank == rank


def test_who_ignores_the_end_of_its_children() -> None:
    """It is not told when a worker dies."""
    code = f"import signal\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\n{READY}"
    with child(code) as process:
        assert read(process.pid).ignores_sigchld


def test_parents_come_before_their_children() -> None:
    """Three generations."""
    inner = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(\"ready\", flush=True); input()'])"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    with child(code, start_new_session=True) as process:
        try:
            pids = tree(process.pid)
            assert len(pids) == 3
            assert pids[0] == process.pid
            assert [read(pid).parent for pid in pids[1:]] == pids[:-1]
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_nothing_of_the_environment_but_the_rank_is_kept() -> None:
    """Whatever it is called, and whatever stands in the command line or in variables."""
    environment = {**os.environ, "RANK": "1", "SECRET": HUSH, "HF_TOKEN": HUSH, "NOTE": HUSH}
    code = f"def asks():\n    idx = {HUSH!r}\n    print('ready', flush=True)\n    input()\nasks()"
    with child(code, "--token", HUSH, f"--password={HUSH}", env=environment) as process:
        until(lambda: in_call(process.pid, "read"))
        with ThreadPoolExecutor(1) as pool:
            looked = snapshot(process.pid, pool)
        seen = Observation(root=process.pid, snapshots=(looked,), machine=read_machine(process.pid))
        text = json.dumps(to_values(seen))

    assert looked.processes[0].rank == 1
    assert looked.processes[0].frames, looked.processes[0].stacks_error
    assert HUSH not in text
    assert "HF_TOKEN" not in text
    assert "[hidden]" in text


def test_a_job_that_has_ended_cannot_be_looked_at() -> None:
    """That is said, not raised as something else."""
    with child(READY) as process:
        pass

    with pytest.raises(Gone):
        observe(process.pid, lambda _: True)


def test_the_first_process_of_a_snapshot_is_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left of a job whose first process has just ended is not the job."""
    left = Snapshot(at_s=0.0, processes=(Process(pid=os.getpid() + 1, state="S"),))
    monkeypatch.setattr("antifreeze.doctor.job._observe.snapshot", lambda *_: left)

    with pytest.raises(Gone):
        observe(os.getpid(), lambda _: True)


def test_looking_ends_when_it_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """And in any case in the end."""
    monkeypatch.setattr("antifreeze.doctor.job._observe._SNAPSHOT_INTERVAL_S", 0.01)
    monkeypatch.setattr("antifreeze.doctor.job._observe.MIN_OBSERVATION_S", 0.0)
    monkeypatch.setattr("antifreeze.doctor.job._observe.MAX_OBSERVATION_S", 0.3)
    monkeypatch.setattr("antifreeze.doctor.job._observe.read_stacks", lambda _: ((), "no"))
    with child(READY) as process:
        assert len(observe(process.pid, lambda _: True).snapshots) == 1
        assert len(observe(process.pid, lambda seen: len(seen.snapshots) == 3).snapshots) == 3
        assert len(observe(process.pid, lambda _: False, still_s=7.0).snapshots) > 1


@pytest.mark.parametrize("look_s", [0.1, 1.0, 9.0])
def test_what_moves_is_seen_to_move_however_long_a_look_takes(monkeypatch: pytest.MonkeyPatch, look_s: float) -> None:
    """On a busy machine a look can take as long as all of them should."""
    now_s = [100.0]

    def pass_by(seconds: float) -> None:
        now_s[0] += seconds

    def look(pid: int, _: object) -> Snapshot:
        at_s = now_s[0]
        pass_by(look_s)
        return Snapshot(at_s=at_s, processes=(Process(pid=pid, state="S"),))

    clock = SimpleNamespace(monotonic=lambda: now_s[0], sleep=pass_by)
    monkeypatch.setattr("antifreeze.doctor.job._observe.time", clock)
    monkeypatch.setattr("antifreeze.doctor.job._observe.snapshot", look)
    for enough in (True, False):
        began_s = now_s[0]
        times = [seen.at_s for seen in observe(os.getpid(), lambda _, enough=enough: enough).snapshots]

        assert times[-1] - times[0] >= MIN_OBSERVATION_S
        assert now_s[0] - began_s <= max(MAX_OBSERVATION_S + look_s, 2.0 * look_s + 1.0)


FEEDER = """\
Traceback (most recent call last):
  File "/usr/lib/python3.11/multiprocessing/queues.py", line 244, in _feed
    obj = _ForkingPickler.dumps(obj)
          ^^^^^^^^^^^^^^^^^^^^^^^^^^
{error}
and what was printed later
"""


@pytest.mark.parametrize(
    ("printed", "error"),
    [
        ("", ""),
        ("Traceback (most recent call last):\nValueError: no\n", ""),
        (FEEDER.format(error="TypeError: cannot pickle"), "TypeError: cannot pickle"),
        (FEEDER.format(error="A: one") + FEEDER.format(error="B: two"), "B: two"),
        ("x" * 100_000 + "\n" + FEEDER.format(error="A: far"), "A: far"),
        (FEEDER.format(error=f"E: https://me:{HUSH}@host"), "E: https://[hidden]@host"),
        ("in _feed", ""),
    ],
)
def test_what_a_feeder_has_printed(printed: str, error: str) -> None:
    """The last error, if the errors go to a file."""
    with tempfile.TemporaryFile() as file:
        file.write(printed.encode())
        file.flush()
        with child(READY, stderr=file) as process:
            assert read_machine(process.pid).last_error == error


def test_the_machine() -> None:
    """What can be read is read; a job that is gone has nothing."""
    found = read_machine(os.getpid())

    assert found.shm_nbytes >= found.shm_free_nbytes
    assert read_machine(2**22 + 1).shm_nbytes == 0


def test_a_terminal_is_not_read() -> None:
    """Only files are: reading would take the bytes away from whoever waits for them."""
    with child(READY, stderr=subprocess.PIPE) as process:
        assert read_machine(process.pid).last_error == ""
        assert process.stderr is not None
        process.stderr.close()
