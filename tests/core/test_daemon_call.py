"""A call that may hang: its result, its error, and an interpreter that ends without it."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from antifreeze.core import DaemonCall

PATIENCE_S = 60.0


def test_the_result_of_a_call_is_returned() -> None:
    """In the thread that asks."""
    call = DaemonCall(lambda: threading.current_thread().name, "a-name")

    assert call.wait(PATIENCE_S)
    assert call.is_done
    assert call.outcome() == "a-name"


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt(), SystemExit(3)])
def test_the_error_of_a_call_is_raised(error: BaseException) -> None:
    """Whatever it is: nothing that is raised may look like a call that hangs."""

    def fail() -> None:
        raise error

    call = DaemonCall(fail, "fails")
    assert call.wait(PATIENCE_S)
    with pytest.raises(type(error)):
        call.outcome()


def test_a_call_that_hangs_is_waited_for_as_long_as_asked() -> None:
    """And its age is known."""
    go = threading.Event()
    call = DaemonCall(lambda: go.wait(PATIENCE_S), "hangs")

    assert not call.wait(0.01)
    assert not call.is_done
    assert call.elapsed_s >= 0.01
    go.set()
    call.join(PATIENCE_S)
    assert call.outcome() is True


def test_an_interpreter_ends_while_a_call_hangs() -> None:
    """The reason for a daemon."""
    code = "import time; from antifreeze.core import DaemonCall; DaemonCall(lambda: time.sleep(1000), 'hangs')"
    subprocess.run([sys.executable, "-c", code], timeout=PATIENCE_S, check=True)
