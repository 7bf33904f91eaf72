"""Which job is meant."""

from __future__ import annotations

import os
import re
import uuid
from pathlib import Path

import pytest
from doctor_children import child

from antifreeze.core import ConfigError
from antifreeze.doctor.job import diagnose
from antifreeze.doctor.job._find_job import NotFound, find_job

READY = "print('ready', flush=True)\ninput()"
FORKED = "import os\nif os.fork() == 0:\n    os.read(0, 1)\n    os._exit(0)\n" + READY
GONE = 2**22 + 1


@pytest.fixture
def mark() -> str:
    """A word that stands in the command line of no other process."""
    return f"train-{uuid.uuid4().hex[:12]}.py"


def made(proc: Path, pid: int, parent: int, command: str, maps: str = "", state: str = "S") -> None:
    """Write a process as the kernel would."""
    home = proc / str(pid)
    home.mkdir()
    (home / "stat").write_text(f"{pid} (a b) {state} {parent} {'0 ' * 40}")
    (home / "cmdline").write_text(command.replace(" ", "\0") + "\0")
    (home / "maps").write_text(maps)


def test_by_its_number(mark: str) -> None:
    """Whatever it runs."""
    with child(READY, mark) as process:
        assert find_job(str(process.pid)) == process.pid


@pytest.mark.parametrize("pid", [str(GONE), "0", "99999999999999999999"])
def test_no_process_has_this_number(pid: str) -> None:
    """That is said as it is."""
    with pytest.raises(NotFound, match=f"there is no process {pid}"):
        find_job(pid)


@pytest.mark.parametrize("wanted", ["²", "-5", "1.5"])
def test_what_is_no_number_is_a_name(wanted: str) -> None:
    """And nobody has it."""
    with pytest.raises(NotFound):
        find_job(wanted + "-no-such-job")


def test_by_its_name(mark: str) -> None:
    """A part of the command line, of the first process of those that have it."""
    with child(FORKED, mark) as process:
        assert find_job(mark) == process.pid
        assert find_job(mark[:-3]) == process.pid


def test_nobody_has_this_name(mark: str) -> None:
    """It says what was looked for, and what to do."""
    with pytest.raises(NotFound, match=r"no job found: there is no Python process with 'train-"):
        find_job(mark)


def test_several_have_this_name(mark: str) -> None:
    """They are listed, without their secrets."""
    several = pytest.raises(NotFound, match="found 2 jobs; pass the process id of one")
    with child(READY, mark, "--token", "swordfish") as one, child(READY, mark, "--seed", "2") as two, several as error:
        find_job(mark)

    text = str(error.value)
    assert re.search(rf"\n  {one.pid}  .*{mark} --token \[hidden\]", text)
    assert re.search(rf"\n  {two.pid}  .*{mark} --seed 2", text)
    assert "swordfish" not in text


def test_neither_this_process_nor_those_above_it_are_meant() -> None:
    """`antifreeze doctor train.py` has the name in its own command line."""
    for pid in (os.getpid(), os.getppid()):
        words = Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")
        try:
            said = f"\n  {find_job(max(words, key=len))}  "
        except NotFound as error:
            said = str(error)
        assert f"\n  {pid}  " not in said


def test_the_one_that_has_torch_loaded(tmp_path: Path) -> None:
    """Without a name; workers belong to it, other programs do not count, and who may not be read neither."""
    made(tmp_path, 50, 1, "/usr/bin/python train.py", "7f00 r-xp /lib/libtorch_cpu.so")
    made(tmp_path, 51, 50, "/usr/bin/python train.py", "7f00 r-xp /lib/libtorch_cpu.so")
    made(tmp_path, 60, 1, "/usr/bin/python -m http.server")
    made(tmp_path, 61, 1, "vim train.py", "libtorch")
    made(tmp_path, 62, 1, "/usr/bin/python dead.py", "libtorch", state="D")
    (tmp_path / "self").mkdir()

    assert find_job(None, proc=tmp_path) == 50


def test_no_job_and_many_jobs(tmp_path: Path) -> None:
    """Both are answered in words; of very many, some are listed."""
    with pytest.raises(NotFound, match="no Python process of this user that has torch loaded"):
        find_job(None, proc=tmp_path)
    for pid in range(100, 130):
        made(tmp_path, pid, 1, "python train.py " + "x" * 500, "libtorch")
    with pytest.raises(NotFound, match="found 30 jobs") as error:
        find_job(None, proc=tmp_path)
    assert len(str(error.value).splitlines()) == 21
    assert max(map(len, str(error.value).splitlines())) < 120


@pytest.mark.parametrize("pid", [0, -1, True, 1.5, "7"])
def test_diagnose_wants_the_number_of_a_process(pid: object) -> None:
    """Anything else is refused with the name of the argument."""
    with pytest.raises(ConfigError, match="invalid pid: expected a process id, got"):
        diagnose(pid)  # type: ignore[arg-type]


def test_diagnose_of_a_process_that_is_gone() -> None:
    """With what to do."""
    with pytest.raises(ConfigError, match=f"there is no process {GONE}"):
        diagnose(GONE)
