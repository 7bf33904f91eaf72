"""What a waiting thread waits for, read from the memory of real processes."""

from __future__ import annotations

import math
import struct

import pytest
from doctor_children import child, in_call, until

from antifreeze.diagnosis import ProcSnapshot, read_proc
from antifreeze.doctor.job._wait_channels import Mapped, Wait, _called, libraries_of, wait_of

READY = "print('ready', flush=True)\n"


def wait_in(code: str, *calls: str) -> Wait:
    """Return the wait of a program that ends up in one of these calls."""
    with child(code) as process:
        until(lambda: in_call(process.pid, *calls), f"a call of {calls}")
        return wait_of(process.pid, read_proc(process.pid), libraries_of(process.pid))


def test_how_much_of_a_sleep_is_left() -> None:
    """It began a moment ago."""
    wait = wait_in(f"import time\n{READY}time.sleep(1000)", "clock_nanosleep", "nanosleep")

    assert wait.limit_s is not None
    assert 0 < wait.limit_s <= 1000
    assert wait.limit_s > 900
    assert not wait.shared


@pytest.mark.parametrize(
    ("line", "limit_s"),
    [
        ("select.select([r], [], [], 1000.5)", 1000.5),
        ("select.select([r], [], [])", math.inf),
        ("p = select.poll(); p.register(r); p.poll(1000500)", 1000.5),
        ("p = select.poll(); p.register(r); p.poll()", math.inf),
        ("p = select.epoll(); p.register(r); p.poll(1000.5)", 1000.5),
        ("p = select.epoll(); p.register(r); p.poll()", math.inf),
    ],
)
def test_a_wait_for_files_with_and_without_a_limit(line: str, limit_s: float) -> None:
    """Whichever call the C library makes of it."""
    calls = ("select", "pselect6", "poll", "ppoll", "epoll_wait", "epoll_pwait")
    wait = wait_in(f"import os, select\nr, w = os.pipe()\n{READY}{line}", *calls)

    assert wait.limit_s == pytest.approx(limit_s, abs=0.01)


@pytest.mark.parametrize(
    ("line", "call"),
    [("os.read(r, 1)", "read"), ("a, b = socket.socketpair(); a.recv(1)", "recvfrom"), ("signal.pause()", "pause")],
)
def test_what_has_no_limit(line: str, call: str) -> None:
    """A read and the like."""
    assert wait_in(f"import os, signal, socket\nr, w = os.pipe()\n{READY}{line}", call).limit_s == math.inf


def test_a_lock_of_this_process_has_no_limit() -> None:
    """Nobody else can release it."""
    wait = wait_in(f"import threading\nlock = threading.Lock(); lock.acquire()\n{READY}lock.acquire()", "futex")

    assert wait.limit_s == math.inf
    assert not wait.shared
    assert wait.owner == 0


def test_a_lock_between_processes_is_shared() -> None:
    """Another process may release it."""
    code = f"import multiprocessing\nlock = multiprocessing.Lock(); lock.acquire()\n{READY}lock.acquire()"
    wait = wait_in(code, "futex")

    assert wait.shared
    assert wait.limit_s == math.inf


def test_an_event_that_is_waited_for_with_a_limit() -> None:
    """The clock of the limit is known, so that the rest of it is."""
    wait = wait_in(f"import threading\n{READY}threading.Event().wait(1000)", "futex")

    assert wait.limit_s is not None
    assert 900 < wait.limit_s <= 1000


MUTEX = f"""
import ctypes, threading
libc = ctypes.CDLL(None)
mutex = ctypes.create_string_buffer(64)
libc.pthread_mutex_lock(mutex)
{READY}libc.pthread_mutex_lock(mutex)
"""


def test_who_holds_a_lock_of_the_c_library() -> None:
    """Its number stands in the lock: here it is the thread that waits."""
    with child(MUTEX) as process:
        until(lambda: in_call(process.pid, "futex"))
        wait = wait_of(process.pid, read_proc(process.pid), libraries_of(process.pid))

        assert wait.owner == process.pid
        assert not wait.shared


def test_the_native_library_that_waits_is_found_on_the_stack() -> None:
    """ctypes calls through a library of its own; the C library and Python are everywhere, and left out."""
    wait = wait_in(MUTEX, "futex")

    assert any(name.startswith(("libffi", "_ctypes")) for name in wait.libraries), wait.libraries
    assert not any(name.startswith(("libc.", "libc-", "python", "ld-linux")) for name in wait.libraries)


def test_libraries_are_named_once_and_innermost_first() -> None:
    """By the words of the stack that lie in their code."""
    libraries = [Mapped(0x1000, 0x2000, "a.so"), Mapped(0x3000, 0x4000, "b.so"), Mapped(0x5000, 0x6000, "c.so")]
    stack = struct.pack("<7Q", 0, 0x3000, 0x1FFF, 0x2000, 0x3FFF, 0x4000, 2**64 - 1)

    assert _called(stack, libraries) == ("b.so", "a.so")
    assert _called(stack + b"odd", libraries) == ("b.so", "a.so")
    assert _called(stack, ()) == ()
    assert _called(b"", libraries) == ()


def test_no_more_than_a_few_libraries_are_named() -> None:
    """The outer ones say nothing."""
    libraries = [Mapped(i * 16, i * 16 + 16, f"{i}.so") for i in range(1, 20)]

    assert _called(struct.pack("<19Q", *(i * 16 for i in range(1, 20))), libraries) == ("1.so", "2.so", "3.so", "4.so")


@pytest.mark.parametrize(
    "seen",
    [
        ProcSnapshot(),
        ProcSnapshot(syscall="poll", arguments=(1, 2)),
        ProcSnapshot(syscall="futex", arguments=(2**64 - 1,) * 8),
        ProcSnapshot(syscall="clock_nanosleep", arguments=(2**64 - 5, 1, 2**63, 0, 0, 0, 0, 0)),
        ProcSnapshot(syscall="select", arguments=(1, 2, 3, 4, 16, 6, 7, 8)),
        ProcSnapshot(syscall="uname", arguments=(1,) * 8),
    ],
)
def test_what_cannot_be_read_is_not_known(seen: ProcSnapshot) -> None:
    """It may have gone on meanwhile, or belong to somebody else."""
    with child(f"{READY}input()") as process:
        assert wait_of(process.pid, seen, ()).limit_s in (None, math.inf)
        assert not wait_of(process.pid, seen, ()).owner
    gone = wait_of(process.pid, seen, ())
    assert (gone.owner, gone.libraries) == (0, ())
    assert libraries_of(process.pid) == ()


def test_a_clock_of_another_process_cannot_be_asked() -> None:
    """A sleep by a clock that only the sleeper knows has no known end."""
    code = f"""
import ctypes, os
libc = ctypes.CDLL(None)
when = (ctypes.c_long * 2)(10**9, 0)
clock = ctypes.c_int()
libc.clock_getcpuclockid(os.getpid(), ctypes.byref(clock))
{READY}libc.clock_nanosleep(clock, 1, when, None)
"""
    wait = wait_in(code, "clock_nanosleep")

    assert wait.limit_s is None
