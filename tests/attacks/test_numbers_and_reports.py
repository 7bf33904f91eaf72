"""Numbers in the environment, in /proc and in kept reports that are none: no error of Python's, no endless work."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hostile_values import mutated

from antifreeze.core import ConfigError, natural, seconds
from antifreeze.datasets import parse_limit
from antifreeze.diagnosis import Frame
from antifreeze.distributed._rank_discovery import launchers_of, local_rank_of
from antifreeze.doctor.job._fix import Fix
from antifreeze.doctor.job._job_command import report
from antifreeze.doctor.job._job_report import CannotRead, keep, read
from antifreeze.doctor.job._observation import Machine, Observation, Process, Snapshot, Stack, Thread, to_values
from antifreeze.doctor.job._observe import read_process

NO_NUMBERS = [
    "²",
    "٣",
    "٣٤",
    "Ⅷ",
    "½",
    "",
    " ",
    "-",
    "+1",
    "1_0",
    "0x1",
    "1e3",
    "1.0",
    "9" * 5000,
    "\0",
    "\ud800",
    "nan",
]


@pytest.mark.parametrize("text", NO_NUMBERS)
def test_only_digits_are_a_number(text: str) -> None:
    """Python's own tests are true for digits that ``int`` refuses, and for digits of every script."""
    assert natural(text) is None
    assert seconds(text, 1.5) in (1.5, 1.0, 10.0, 1000.0, 3.0, 34.0)


def test_numbers_are_numbers() -> None:
    """Blanks around them do not matter."""
    assert [natural(text) for text in ("0", " 17\n", "007", "9" * 19)] == [0, 17, 7, int("9" * 19)]
    assert [seconds(text, 7.0) for text in ("2.5", "inf", "-1", "x")] == [2.5, 7.0, 7.0, 7.0]


@pytest.mark.parametrize("text", [text for text in NO_NUMBERS if text.strip()])
@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS", "OMPI_COMM_WORLD_RANK"])
def test_a_launcher_that_says_no_number_is_refused_in_words(name: str, text: str) -> None:
    """By name, and without the whole of it."""
    honest = {"RANK": "0", "WORLD_SIZE": "2"}
    if name.startswith("SLURM"):
        honest = {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_STEP_ID": "0"}
    elif name.startswith("OMPI"):
        honest = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
    with pytest.raises(ConfigError, match=f"{name}=") as caught:
        launchers_of(honest | {name: text})
    assert len(str(caught.value)) < 500
    assert local_rank_of({"LOCAL_RANK": text}) is None


@pytest.mark.parametrize("text", NO_NUMBERS)
def test_a_process_with_a_strange_environment_is_seen(text: str, tmp_path: Path) -> None:
    """The rank of a job is what its launcher says, or unknown."""
    home = tmp_path / "7"
    (home / "task" / "7").mkdir(parents=True)
    (home / "task" / "²").mkdir()
    (home / "fd").mkdir()
    fields = " ".join(["S", text.split("\0")[0] or "1", *["²"] * 20])
    (home / "stat").write_text(f"7 (py) {fields}", errors="replace")
    (home / "status").write_text("SigIgn: ²²\nVmRSS: ²\n")
    (home / "statm").write_text("² ² ²")
    (home / "io").write_text("rchar: ²\nwchar: -1\n")
    (home / "limits").write_text("Max open files            ²  ²  files\n")
    (home / "environ").write_bytes(b"RANK=" + text.encode("utf-8", "replace") + b"\0LOCAL_RANK=\xff")
    (home / "cmdline").write_bytes(b"python\0train.py\0")
    (home / "comm").write_text("python")

    seen = read_process(7, proc=tmp_path)
    assert seen is not None
    assert (seen.rank, seen.rss_nbytes, seen.max_files) == (None, 0, 0)


def test_the_doctor_looks_at_a_process_whose_rank_is_no_number() -> None:
    """As in the report of the attack: ``RANK="²"`` ended it with a traceback."""
    environ = {**os.environ, "RANK": "²", "ANTIFREEZE_FORKSERVER_LINGER_S": "²", "OMP_NUM_THREADS": "²"}
    code = "import sys; sys.stdin.readline()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, env=environ) as job:
        doctor = [sys.executable, "-m", "antifreeze", "doctor", str(job.pid), "--json"]
        done = subprocess.run(doctor, capture_output=True, text=True, timeout=120, check=False, env=environ)
        job.communicate(b"\n", timeout=60)

    assert "Traceback" not in done.stderr
    assert json.loads(done.stdout)


@pytest.mark.parametrize("limit", ["9" * 400 + "GB", "²GB", "٣GB", "1" * 5000, "1." + "9" * 5000])
def test_a_memory_limit_that_is_no_number_is_refused(limit: str) -> None:
    """Not by an overflow."""
    with pytest.raises(ConfigError, match="memory_limit"):
        parse_limit(limit)


# -- reports --------------------------------------------------------------------------------------------------------


def observation() -> Observation:
    frame = Frame(file="/app/train.py", line=3, function="load")
    thread = Thread(
        tid=7, name="python", state="S", wchan="do_select", syscall="read", fd=3, target="pipe:[1]", cpu_s=1.0
    )
    main = Process(
        pid=7,
        parent=1,
        name="python",
        program="python3.11",
        command=("python", "train.py"),
        state="S",
        threads=(thread,),
        stacks=(Stack(tid=7, frames=(frame,)),),
    )
    worker = Process(pid=8, parent=7, name="python", program="python3.11", state="S", threads=(Thread(tid=8),))
    moments = tuple(Snapshot(at_s=float(at_s), processes=(main, worker)) for at_s in range(3))
    return Observation(root=7, snapshots=moments, machine=Machine(shm_nbytes=8 << 30, shm_free_nbytes=8 << 30))


HOSTILE = [
    b"[" * 100_000,
    b'{"version":' * 50_000,
    b'{"version": ' + b"9" * 10_000 + b"}",
    b'{"version": 1, "root": ' + b"9" * 4000 + b', "snapshots": []}',
    b'{"version": true, "root": 1, "snapshots": []}',
    b'{"version": 1, "root": NaN, "snapshots": [{"at_s": NaN, "processes": [{"pid": 1}]}]}',
    b'{"version": 1, "root": 7, "snapshots": [{"at_s": 1, "processes": [{"pid": true}]}]}',
    b'{"version": 1, "root": 7, "snapshots": [{"at_s": 1, "processes": [{"pid": 1e999}]}]}',
    b'{"version": 1, "root": 7, "snapshots": "' + b"x" * 1_000_000 + b'"}',
]


@pytest.mark.parametrize("name", ["seen.json", "fixes.json"])
@pytest.mark.parametrize("raw", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_json_is_refused_in_a_few_words(name: str, raw: bytes, tmp_path: Path) -> None:
    """Deep nesting, numbers of thousands of digits, not a number, and truths for numbers."""
    folder = keep(tmp_path / "kept", observation(), (Fix(words="x"),), "")
    read(folder)
    (folder / name).write_bytes(raw)
    with pytest.raises(CannotRead) as caught:
        read(folder)
    assert len(str(caught.value)) < 2000


def values() -> dict[str, Any]:
    made: dict[str, Any] = json.loads(json.dumps(to_values(observation())))
    return made


def check_report(seed: int, folder: Path) -> bool:
    """Read a report in which something was changed; return whether there was a diagnosis of it."""
    rng = random.Random(seed)  # noqa: S311
    changed, _ = mutated(values(), rng)
    try:
        text = json.dumps(changed)
    except (TypeError, ValueError, RecursionError):
        return False
    (folder / "seen.json").write_text(text)
    out, err = io.StringIO(), io.StringIO()
    began_s = time.monotonic()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = report([str(folder), *["--json"] * (seed % 2)])
    assert time.monotonic() - began_s < 5.0
    assert len(err.getvalue()) < 5000
    assert code == 0 or out.getvalue() or err.getvalue()
    return bool(out.getvalue())


def test_changed_reports_are_diagnosed_or_refused(tmp_path: Path) -> None:
    """Whatever was changed in them, and with parents that lead in a circle."""
    folder = keep(tmp_path / "kept", observation(), (Fix(words="x"),), "")
    said = [check_report(seed, folder) for seed in range(250)]

    assert 20 < sum(said) < 230


@pytest.mark.soak
@pytest.mark.parametrize("first", range(1000, 11_000, 1000))
def test_thousands_of_changed_reports(first: int, tmp_path: Path) -> None:
    """The same, for long."""
    folder = keep(tmp_path / "kept", observation(), (Fix(words="x"),), "")
    for seed in range(first, first + 1000):
        check_report(seed, folder)
