"""Datasets, transforms and faults that run in worker processes. Without torch: workers would have to load it too."""

from __future__ import annotations

import ctypes
import fcntl
import os
import random
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from worker_processes import until

from antifreeze.worker import _worker_info

NUM_SAMPLES = 40
BATCH_SIZE = 4
LENGTH = 4000
"""A sample has 16 KB of random numbers, so that a batch travels in shared memory, and one sample in the message."""


def once(flag: str | Path) -> bool:
    """Tell whether this is the first call, in any process, with this file."""
    try:
        fd = os.open(flag, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError:
        return False
    os.write(fd, str(os.getpid()).encode())
    os.close(fd)
    return True


# -- what can happen to a worker -----------------------------------------------------------------------------------

FAULTS: dict[str, Callable[[], object]] = {}
_kept: list[Any] = []


def fault(function: Callable[[], object]) -> Callable[[], object]:
    """Make a fault known by its name."""
    FAULTS[function.__name__] = function
    return function


@fault
def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@fault
def stopped() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


@fault
def segfault() -> None:
    ctypes.string_at(0)


@fault
def aborted() -> None:
    os.abort()


@fault
def exits() -> None:
    os._exit(3)


@fault
def exits_as_if_well() -> None:
    os._exit(0)


@fault
def killed_with_its_group() -> None:
    os.killpg(0, signal.SIGKILL)


@fault
def sleeps() -> None:
    time.sleep(3600)


@fault
def holds_the_interpreter() -> None:
    re.match(r"(a+)+$", "a" * 64 + "b")


@fault
def full_pipe() -> None:
    """Print into a pipe that nobody reads, as under a launcher that has died."""
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETFL, fcntl.fcntl(write, fcntl.F_GETFL) & ~os.O_NONBLOCK)
    _kept.append(read)
    os.dup2(write, 1)
    for _ in range(1 << 20):
        os.write(1, b"x" * 4096)


@fault
def silent_peer() -> None:
    ours, theirs = socket.socketpair()
    _kept.append(theirs)
    ours.recv(1)


@fault
def deadlock() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


@fault
def idle_main_thread_behind_a_busy_one() -> None:
    """Leave the interpreter's lock with a thread that never gives it back: the worker says that it is idle."""

    def hold() -> None:
        time.sleep(0.05)
        re.match(r"(a+)+$", "a" * 64 + "b")

    threading.Thread(target=hold, daemon=True).start()


@fault
def waits_for_a_child() -> None:
    subprocess.run([sys.executable, "-c", "import time; time.sleep(3600)"], check=False)


@fault
def raises() -> None:
    raise ValueError("a message of its own")


@fault
def raises_stop_iteration() -> None:
    raise StopIteration


@fault
def exits_in_order() -> None:
    sys.exit(3)


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens, when, and at which sample: once, if there is a file to remember it by; else each time."""

    kind: str
    moment: str
    at: int = -1
    flag: str = ""

    def strike(self, moment: str, sample: int = -1) -> None:
        """Do it, if this is the moment."""
        if moment == self.moment and (self.at < 0 or sample == self.at) and (not self.flag or once(self.flag)):
            FAULTS[self.kind]()


NO_FAULT = Fault("killed", "never")


@dataclass(frozen=True, slots=True)
class Several:
    """Several faults, each at its own moment."""

    faults: tuple[Fault, ...]
    moment: str = ""

    def strike(self, moment: str, sample: int = -1) -> None:
        """Do those whose moment this is."""
        for one in self.faults:
            one.strike(moment, sample)


# -- what workers are given ----------------------------------------------------------------------------------------


def sample_of(number: int) -> Any:
    """Return a sample that depends on its number and on the random numbers of its batch."""
    values = np.random.random(LENGTH)
    values[:2] = number, random.random()  # noqa: S311
    return values


class Numbers:
    """A map-style dataset."""

    def __init__(self, fault: Fault = NO_FAULT, num_samples: int = NUM_SAMPLES, delay_s: float = 0.0) -> None:
        self.fault, self.num_samples, self.delay_s = fault, num_samples, delay_s

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.fault.strike("load")

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> Any:
        if self.delay_s:
            time.sleep(self.delay_s)
        self.fault.strike("sample", index)
        return sample_of(index)


class Share:
    """What an iterable dataset is in a worker: every num_workers-th number, from the worker's own on."""

    def __init__(self, fault: Fault, num_samples: int, delay_s: float) -> None:
        self.fault, self.num_samples, self.delay_s = fault, num_samples, delay_s
        fault.strike("load")

    def __iter__(self) -> Iterator[Any]:
        facts = _worker_info._state.facts  # torch would be imported for its get_worker_info
        for number in range(facts["id"], self.num_samples, facts["num_workers"]):
            if self.delay_s:
                time.sleep(self.delay_s)
            self.fault.strike("sample", number)
            yield sample_of(number)


@dataclass(frozen=True, slots=True)
class Collate:
    """Makes a batch whose last part is pickled by a method of its own."""

    fault: Fault = NO_FAULT

    def __call__(self, samples: Iterable[Any]) -> Any:
        stacked = np.stack([sample["values"] if isinstance(sample, dict) else sample for sample in samples])
        first = int(stacked[0, 0])
        for number in stacked[:, 0]:
            self.fault.strike("collate", int(number))
        return stacked, Slip(first, tuple(map(int, stacked[:, 0])), self.fault)


@dataclass(frozen=True, slots=True)
class Slip:
    """A number that can fail on its way to the trainer, where it is a plain number."""

    value: int
    numbers: tuple[int, ...]
    fault: Fault

    def __reduce__(self) -> Any:
        for number in self.numbers:
            self.fault.strike("pack", number)
        return int, (self.value,)

    def __int__(self) -> int:
        return self.value


@dataclass(frozen=True, slots=True)
class Init:
    """A worker_init_fn."""

    fault: Fault = NO_FAULT

    def __call__(self, worker: int) -> None:
        self.fault.strike("init", worker)


@dataclass(frozen=True)
class Transform:
    """A transform of a streaming dataset's rows."""

    fault: Fault = NO_FAULT
    delay_s: float = 0.0

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state)
        self.fault.strike("load")

    def __call__(self, row: dict[str, Any]) -> Any:
        if self.delay_s:
            time.sleep(self.delay_s)
        number = int(row["n"])
        self.fault.strike("sample", number)
        return {"n": number, "values": sample_of(number)}


def slow_start(_: int) -> None:
    """A worker_init_fn that leaves time for something to happen."""
    time.sleep(0.4)


class Leaky(Numbers):
    """Keeps more than it gives."""

    def __getitem__(self, index: int) -> Any:
        _kept.append(np.ones(8 << 20, np.uint8))
        return super().__getitem__(index)


class Bumpy:
    """Numbers that come at once, but for some that take a second each."""

    def __init__(self, length: int, slow: set[int]) -> None:
        self.length, self.slow = length, slow

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        if index in self.slow:
            time.sleep(1)
        return index


class Native:
    """Its second sample waits in native code that ends when it is interrupted; 1 is the answer of one that was not."""

    def __init__(self, fifo: str) -> None:
        self.fifo = fifo

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        if index == 0:
            return 0
        fd = os.open(self.fifo, os.O_RDONLY | os.O_NONBLOCK)
        Path(self.fifo + ".open").touch()
        readable = struct.pack("@ihh", fd, select.POLLIN, 0)
        return ctypes.CDLL(None).poll(ctypes.create_string_buffer(readable), 1, -1)


class Patient:
    """Its second sample waits until the first has been delivered."""

    def __init__(self, flag: str) -> None:
        self.flag = flag

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        if index == 1:
            until(Path(self.flag).exists, "the sample before this one has arrived")
        return index


class Deadly(Fault):
    """Kills at sample 5, always; and raises at sample 0 when the second worker is about to die of that."""

    def __init__(self, flag: str) -> None:
        super().__init__("", "", -1, flag)

    def strike(self, moment: str, sample: int = -1) -> None:
        """Do it."""
        if moment == "sample" and sample == 5:
            if not once(self.flag + "a"):
                once(self.flag + "b")
            os.kill(os.getpid(), signal.SIGKILL)
        if moment == "sample" and sample == 0:
            until(Path(self.flag + "b").exists, "two have died")
            raise ValueError


class InTurn:
    """An iterable of two shares, of which the second is far ahead when the first fails."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __iter__(self) -> Iterator[int]:
        worker = _worker_info._state.facts["id"]
        for number in range(6):
            if worker == 0 and number == 1:
                until(Path(self.folder, "3").exists, "the other one is ahead")
                raise ValueError
            yield 10 * worker + number
            if worker == 1:
                Path(self.folder, str(number)).touch()


class Skipping:
    """An iterator that goes on after an error, of a dataset whose beginning draws random numbers."""

    def __init__(self, flag: str, bad: tuple[int, ...]) -> None:
        self.fault, self.bad = Fault("killed", "sample", 13, flag), bad

    def __iter__(self) -> Skipping:
        self.number, self.first = -1, np.random.random()
        return self

    def __next__(self) -> float:
        self.number += 1
        if self.number >= 24:
            raise StopIteration
        if self.number in self.bad:
            raise ValueError
        if self.number == 13:
            time.sleep(0.1)  # so that what was made before has been sent
        self.fault.strike("sample", self.number)
        return self.first + self.number + np.random.random()


def plain(batch: Any) -> tuple[int, bytes]:
    """Return a batch as something that can be compared: its first number, and all of its bytes."""
    values, first = batch
    return int(first), np.ascontiguousarray(values).tobytes()


def numbers_of(batch: Any) -> list[int]:
    """Return the numbers of a batch's samples."""
    return [int(number) for number in batch[0][:, 0]]


def first_value(row: dict[str, Any]) -> dict[str, Any]:
    """Leave nothing of a row but its first value."""
    return {"x": int(row["x"][0])}


def tiny(samples: list[Any]) -> int:
    """Make a number of a batch."""
    return int(samples[0][0])


class Sums:
    """A dataset that reads from a loader of its own."""

    def __init__(self) -> None:
        self.batches: Any = None

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        import antifreeze as af

        # Kept: so that its workers are there when the sample has been delivered.
        self.batches = iter(af.DataLoader(Times(index), batch_size=1, num_workers=2, collate_fn=list))
        return sum(batch[0] for batch in [next(self.batches) for _ in range(4)])


class Times:
    """The multiples of a number."""

    def __init__(self, factor: int) -> None:
        self.factor = factor

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> int:
        return index * self.factor
