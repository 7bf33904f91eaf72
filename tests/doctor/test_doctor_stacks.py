"""Python stacks of other processes: what happens when py-spy is not there, refuses, fails, babbles or hangs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from doctor_children import child, in_call, until

from antifreeze.doctor.job import _thread_stacks
from antifreeze.doctor.job._thread_stacks import (
    NOT_ALLOWED,
    NOT_INSTALLED,
    native_lines,
    own_stacks,
    own_threads,
    read_stacks,
)

GOOD = (
    '[{"pid":1,"thread_id":5,"thread_name":null,"os_thread_id":7,"active":true,"owns_gil":true,'
    '"frames":[{"name":"Numbers.__getitem__","filename":"/a/train.py","line":3}]}]'
)


@pytest.fixture
def spy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that is taken for py-spy: what it does is written into it."""
    path = tmp_path / "py-spy"
    monkeypatch.setattr(_thread_stacks, "find_spy", lambda: str(path))
    return path


def does(spy: Path, *lines: str) -> None:
    """Let it do this, and count how often."""
    spy.write_text("\n".join(["#!/bin/sh", f"echo x >> {spy}.count", *lines]) + "\n")
    spy.chmod(0o755)


def count(spy: Path) -> int:
    """Return how often it was started."""
    return len(Path(f"{spy}.count").read_text().splitlines())


def test_the_stacks_of_a_real_process() -> None:
    """With the lines of all threads; the main thread has the number of the process."""
    code = "import time\ndef waits():\n    time.sleep(1000)\nprint('ready', flush=True)\nwaits()"
    with child(code) as process:
        until(lambda: in_call(process.pid, "clock_nanosleep", "nanosleep"))
        found = read_stacks(process.pid)

        assert found.error == ""
        stack = next(stack for stack in found.stacks if stack.tid == process.pid)
        assert [(frame.function, frame.line) for frame in stack.frames] == [("waits", 3), ("<module>", 5)]


def test_the_native_functions_of_a_real_process() -> None:
    """From the call that it is in to the first line of Python."""
    code = "import time\ndef waits():\n    time.sleep(1000)\nprint('ready', flush=True)\nwaits()"
    with child(code) as process:
        until(lambda: in_call(process.pid, "clock_nanosleep", "nanosleep"))
        found = native_lines(process.pid)

        assert found
        assert all(line.startswith("native: ") for line in found)
        assert "libc" in found[0]
        assert not any("waits" in line for line in found)


def test_native_functions_that_cannot_be_read(spy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said why."""
    does(spy, "echo Permission denied >&2", "exit 1")
    assert native_lines(1) == (f"could not read its native functions: {NOT_ALLOWED}",)
    does(spy, "echo nonsense")
    assert native_lines(1)[0].startswith("could not read its native functions: ")
    monkeypatch.setattr(_thread_stacks, "find_spy", lambda: None)
    assert native_lines(1) == (NOT_INSTALLED,)


def test_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says how to install it."""
    monkeypatch.setattr(_thread_stacks, "find_spy", lambda: None)

    assert read_stacks(1) == ((), NOT_INSTALLED)


def test_it_is_found_beside_the_interpreter_or_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or it is not."""
    monkeypatch.setattr(_thread_stacks.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", "")
    assert _thread_stacks.find_spy() is None
    does(tmp_path / "py-spy", "exit 0")
    assert _thread_stacks.find_spy() == str(tmp_path / "py-spy")


def test_it_is_understood(spy: Path) -> None:
    """The class before a name is left out."""
    does(spy, f"echo '{GOOD}'")
    (stack,) = read_stacks(1).stacks

    assert (stack.tid, stack.name) == (7, "")
    assert str(stack.frames[0]) == "/a/train.py:3 in __getitem__"


@pytest.mark.parametrize(
    ("file", "variables", "sample"),
    [
        (
            "/x/torch/utils/data/_utils/fetch.py",
            '[{"name":"self","repr":"<swordfish>"},{"name":"idx","repr":"17"}]',
            "17",
        ),
        (
            "/x/torch/utils/data/_utils/fetch.py",
            '[{"name":"idx","repr":"https://me:swordfish@a.b"}]',
            "https://[hidden]@a.b",
        ),
        ("/x/torch/utils/data/_utils/fetch.py", '[{"name":"idx","repr":null}]', ""),
        ("/x/torch/utils/data/_utils/fetch.py", "null", ""),
        ("/x/torch/utils/data/_utils/fetch.py", "[]", ""),
        ("/a/train.py", '[{"name":"idx","repr":"swordfish"}]', ""),
    ],
)
def test_of_variables_only_the_index_of_the_sample_is_kept(spy: Path, file: str, variables: str, sample: str) -> None:
    """Others may hold anything."""
    text = GOOD.replace("/a/train.py", file).replace('"line":3', '"line":3,"locals":' + variables)
    does(spy, f"echo '{text}'")
    found = read_stacks(1)

    assert found.error == ""
    assert found.stacks[0].sample == sample
    assert "swordfish" not in repr(found)


@pytest.mark.parametrize(
    "words", ["Permission Denied: Try running again with elevated permissions", "Operation not permitted (os error 1)"]
)
def test_it_may_not(spy: Path, words: str) -> None:
    """It says how to allow it, and does not try again."""
    does(spy, f"echo '{words}' >&2", "exit 1")

    assert read_stacks(1) == ((), NOT_ALLOWED)
    assert count(spy) == 1


def test_it_fails_once(spy: Path) -> None:
    """The process has changed under its eyes."""
    does(spy, f"test $(wc -l < {spy}.count) -gt 1 || {{ echo 'Error: moved' >&2; exit 1; }}", f"echo '{GOOD}'")
    found = read_stacks(1)

    assert found.error == ""
    assert len(found.stacks) == 1
    assert count(spy) == 2


def test_it_fails_with_a_trace_of_its_own(spy: Path) -> None:
    """The error is passed on, not where in py-spy it was."""
    does(spy, "printf 'Error: Bad address\\n\\nStack backtrace:\\n  11: main\\n' >&2", "exit 1")

    assert read_stacks(1) == ((), "py-spy: Error: Bad address")


def test_it_fails_each_time(spy: Path) -> None:
    """Its last words are passed on."""
    does(spy, "printf 'Error: first\\nError: last\\n\\n' >&2", "exit 1")

    assert read_stacks(1) == ((), "py-spy: Error: last")
    does(spy, "exit 1")
    assert read_stacks(1) == ((), "py-spy: exit code 1")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "garbage",
        "7",
        "null",
        "{}x",
        "[1]",
        "[null]",
        '{"a": 1}',
        "[{}]",
        GOOD.replace('"Numbers.__getitem__"', "5"),
        GOOD.replace('"line":3', '"line":null'),
        GOOD.replace('"line":3', '"line":"x"'),
    ],
)
def test_it_writes_something_else(spy: Path, text: str) -> None:
    """Another version, or a program of that name."""
    does(spy, f"echo '{text}'")
    found = read_stacks(1)

    assert found.stacks == ()
    assert found.error.startswith("unexpected output of py-spy")


def test_it_hangs(spy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is ended, and tried no more."""
    monkeypatch.setattr(_thread_stacks, "_DUMP_TIMEOUT_S", 0.2)
    does(spy, "exec sleep 1000")
    found = read_stacks(1)

    assert found.stacks == ()
    assert "timed out" in found.error
    assert count(spy) == 1


def test_it_cannot_be_run(spy: Path) -> None:
    """It is no program."""
    spy.write_text("x")

    assert read_stacks(1).error.startswith("py-spy: ")


def test_no_process_has_this_number() -> None:
    """The job may end while it is looked at."""
    found = read_stacks(2**22 + 1)

    assert found.stacks == ()
    assert found.error


def test_its_own_stacks_are_known_without_it() -> None:
    """Without the calls of the doctor itself."""
    here, go = threading.Event(), threading.Event()

    def waits() -> None:
        here.set()
        go.wait(60)

    thread = threading.Thread(target=waits, name="other")
    thread.start()
    assert here.wait(60)
    try:
        found = own_stacks()
    finally:
        go.set()
        thread.join(60)

    main = next(stack for stack in found.stacks if stack.tid == os.getpid())
    assert main.frames[0].function == "test_its_own_stacks_are_known_without_it"
    other = next(stack for stack in found.stacks if stack.name == "other")
    assert "waits" in [frame.function for frame in other.frames]
    assert other.tid == thread.native_id
    assert thread.native_id not in own_threads()


ASKS = """
import os, threading
from antifreeze import diagnose
from antifreeze.doctor.job import _observe, _verdict
_observe.MIN_OBSERVATION_S, _observe.MAX_OBSERVATION_S, _verdict.STUCK_GRACE_S = 0.1, 1.5, 0.5
found = []
reading, writing = os.pipe()

def asks():
    try:
        found.append(diagnose())
    finally:
        os.write(writing, b"x")

thread = threading.Thread(target=asks)
thread.start()
os.read(reading, 1)
thread.join(60)
print(found[0].verdict.value, found[0].suspects[0].cause.value, "asks.py" in found[0].summary)
"""


def test_a_job_that_asks_of_itself_is_not_moved_by_the_answer(tmp_path: Path) -> None:
    """Reading /proc takes CPU and bytes: those are the doctor's, not the job's.

    In a process of its own: this one has threads that other tests and their runner use.
    """
    script = tmp_path / "asks.py"
    script.write_text(ASKS)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=110, check=False)

    assert (done.stdout.strip(), done.stderr) == ("stuck child True", "")
