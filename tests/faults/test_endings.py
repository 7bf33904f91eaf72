"""Forks, signals, collected garbage and the end of the interpreter, each with an epoch open."""

from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from antifreeze import AntifreezeError, ConfigError, CorruptFile, StreamingDataLoader, StreamingDataset
from antifreeze.decode import _threads as threads_module
from antifreeze.formats import Parquet

if TYPE_CHECKING:
    from conftest import Data

Threads = Callable[[], list[str]]
BOUND_S = 60.0
RAISED, DELIVERED, OTHER = 3, 4, 5


def small_steps(data: Data, **options: Any) -> StreamingDataLoader:
    chosen = {"batch_size": 10, "num_workers": 2} | options
    return StreamingDataLoader(StreamingDataset(data.path), **chosen)


class Gate:
    """Stops a decoder thread at a place where it holds the epoch's lock."""

    def __init__(self) -> None:
        self.armed, self.reached, self.released = threading.Event(), threading.Event(), threading.Event()

    def __call__(self) -> None:
        if self.armed.is_set() and threading.current_thread().name.startswith("antifreeze"):
            self.armed.clear()
            self.reached.set()
            self.released.wait(BOUND_S)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """Return a gate in the rule that a waiting decoder thread asks, again and again, under the lock."""
    gate, real = Gate(), threads_module.may_begin

    def may_begin(*args: Any, **kwargs: Any) -> bool:
        gate()
        return real(*args, **kwargs)

    monkeypatch.setattr(threads_module, "may_begin", may_begin)
    yield gate
    gate.released.set()


# -- fork ----------------------------------------------------------------------------------------------------------


def in_child(function: Callable[[], int]) -> int:
    """Run a function in a forked child and return its exit status; a child that hangs is ended by its alarm."""
    pid = os.fork()
    if pid == 0:
        code = OTHER
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(20)
            code = function()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def take_one(iterator: Any) -> Callable[[], int]:
    def take() -> int:
        try:
            next(iterator)
        except AntifreezeError as error:
            return RAISED if "fork" in str(error) else OTHER
        return DELIVERED

    return take


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("batch_size", [10, 90])
def test_an_iterator_does_not_live_on_in_a_forked_child(shared_data: Data, shuffle: bool, batch_size: int) -> None:
    """Both processes would deliver the rows that were decoded already: each of them twice."""
    iterator = iter(small_steps(shared_data, shuffle=shuffle, batch_size=batch_size))
    first = next(iterator)

    assert in_child(take_one(iterator)) == RAISED
    shared_data.check_all([first, *iterator])


def test_a_fork_while_a_thread_holds_the_lock_hangs_nobody(shared_data: Data, gate: Gate) -> None:
    """The child inherits a lock that no thread of it will ever let go."""
    iterator = iter(small_steps(shared_data, num_workers=1, prefetch_factor=1, batch_size=23))
    first = next(iterator)
    gate.armed.set()
    assert gate.reached.wait(BOUND_S)

    status = in_child(take_one(iterator))
    gate.released.set()

    assert status == RAISED, f"exit status {status}; {-signal.SIGALRM} is a hang"
    shared_data.check_all([first, *iterator])


@pytest.mark.parametrize("locked", [False, True])
def test_dropping_an_iterator_in_a_forked_child_hangs_nobody(shared_data: Data, gate: Gate, locked: bool) -> None:
    """Its threads are the parent's; the child has nothing to end."""
    kept = [iter(small_steps(shared_data, num_workers=1, prefetch_factor=1, batch_size=23))]
    first = next(kept[0])
    if locked:
        gate.armed.set()
        assert gate.reached.wait(BOUND_S)

    def drop() -> int:
        kept.clear()
        gc.collect()
        return RAISED

    status = in_child(drop)
    gate.released.set()

    assert status == RAISED, f"exit status {status}; {-signal.SIGALRM} is a hang"
    shared_data.check_all([first, *kept[0]])


def test_a_forked_child_can_read_for_itself(shared_data: Data) -> None:
    """With iterators of its own, from the loader it inherited."""
    loader = small_steps(shared_data)
    iterator = iter(loader)
    first = next(iterator)

    def read() -> int:
        shared_data.check_all(loader)
        return RAISED

    assert in_child(read) == RAISED
    shared_data.check_all([first, *iterator])


def test_a_forked_child_that_exits_in_order_does_not_hang(shared_data: Data) -> None:
    """multiprocessing's children run exit handlers, ours among them."""
    code = (
        "import multiprocessing, sys\n"
        "import antifreeze as af\n"
        "def work(): pass\n"
        "dataset = af.StreamingDataset(sys.argv[1], format='numpy')\n"
        "iterator = iter(af.StreamingDataLoader(dataset, batch_size=10, num_workers=3))\n"
        "next(iterator)\n"
        "children = [multiprocessing.get_context('fork').Process(target=work) for _ in range(5)]\n"
        "[c.start() for c in children]\n"
        "[c.join(30) for c in children]\n"
        "print([c.exitcode for c in children], 10 + sum(len(b['n']) for b in iterator))\n"
    )
    command = [sys.executable, "-c", code, str(shared_data.path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND_S, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["[0, 0, 0, 0, 0] 309"]


# -- garbage -------------------------------------------------------------------------------------------------------


COLLECT = """
import gc, sys, threading
import antifreeze as af
from antifreeze.decode import _threads as module

armed, real = threading.Event(), module.may_begin

def may_begin(*args, **kwargs):
    if armed.is_set() and threading.current_thread() is not threading.main_thread():
        armed.clear()
        gc.collect()
    return real(*args, **kwargs)

module.may_begin = may_begin
dataset = af.StreamingDataset(sys.argv[1], format="numpy")
gc.collect()
gc.disable()
loader = af.StreamingDataLoader(dataset, batch_size=23, num_workers=1, prefetch_factor=1)
cycle = [iter(loader)]
next(cycle[0])
cycle.append(cycle)
(thread,) = [t for t in threading.enumerate() if t.name.startswith("antifreeze")]
armed.set()
del cycle
thread.join(15)
print("alive" if thread.is_alive() else "ended", sum(len(b["n"]) for b in loader))
"""


def test_an_iterator_collected_by_its_own_thread_under_the_lock_ends_cleanly(shared_data: Data) -> None:
    """The collector runs in whichever thread allocates next, also in one that holds the lock that closing needs.

    In a process of its own: a collector that never returns is the end of garbage collection in a process.
    """
    command = [sys.executable, "-W", "error", "-c", COLLECT, str(shared_data.path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND_S, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["ended", "309"], "the thread waits for a lock that it holds itself"


def test_an_iterator_collected_in_another_thread_ends_its_threads(shared_data: Data, our_threads: Threads) -> None:
    """Whoever drops the last reference."""
    kept = [iter(small_steps(shared_data))]
    next(kept[0])

    thread = threading.Thread(target=kept.clear)
    thread.start()
    thread.join(BOUND_S)

    assert our_threads() == []


def test_an_iterator_in_a_cycle_ends_when_it_is_collected(shared_data: Data, our_threads: Threads) -> None:
    """Frameworks hold iterators in objects that refer to each other."""

    class Trainer:
        def __init__(self) -> None:
            self.me = self
            self.batches = iter(small_steps(shared_data))

    trainer = Trainer()
    next(trainer.batches)
    gone = weakref.ref(trainer)
    del trainer
    gc.collect()

    assert gone() is None
    assert our_threads() == []


# -- threads -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_several_threads_read_at_once_each_with_its_own_iterator(
    shared_data: Data,
    shuffle: bool,
    workers: int,
    our_threads: Threads,
) -> None:
    """From one loader that nobody has used before, all starting together."""
    loader = small_steps(shared_data, shuffle=shuffle, num_workers=workers)
    start, results = threading.Barrier(4), []

    def read() -> None:
        start.wait(BOUND_S)
        results.append(shared_data.check_all(loader))

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(BOUND_S)

    assert len(results) == 4
    assert our_threads() == []


def test_rows_by_number_can_be_asked_for_from_several_threads(
    shared_data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dataset is a sequence, and sequences are read from thread pools: here, while another row is being decoded."""
    reached, released, real = threading.Event(), threading.Event(), Parquet.open

    class Slow:
        def __init__(self, inner: Any) -> None:
            self._inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        def pieces(self) -> Iterator[Any]:
            reached.set()
            released.wait(BOUND_S)
            yield from self._inner.pieces()

        def close(self) -> None:
            self._inner.close()

    def open_(self: Parquet, path: str, group: int, *rest: Any) -> Any:
        opened = real(self, path, group, *rest)
        return Slow(opened) if group == 0 and path.endswith("part-1.parquet") and not reached.is_set() else opened

    dataset = StreamingDataset(shared_data.path, columns=["n", "label"])
    assert int(dataset[308]["n"]) == 308
    monkeypatch.setattr(Parquet, "open", open_)
    found: dict[int, int | str] = {}

    def read(i: int) -> None:
        try:
            found[i] = int(dataset[i]["n"])
        except Exception as error:  # noqa: BLE001 - compared below
            found[i] = repr(error)

    first, second = (threading.Thread(target=read, args=(i,)) for i in (5, 30))
    first.start()
    assert reached.wait(BOUND_S)
    second.start()
    second.join(0.5)  # it may go on or wait for the first: both are right
    released.set()
    first.join(BOUND_S)
    second.join(BOUND_S)

    assert found == {5: 5, 30: 30}
    assert [int(dataset[i]["n"]) for i in (5, 30, 6, 31, 0, 22, 23)] == [5, 30, 6, 31, 0, 22, 23]


def test_a_machine_without_threads_to_give_is_an_error_that_leaves_nothing(
    shared_data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Containers limit the number of threads; some start, and then one does not."""
    real, started = threading.Thread.start, []

    def start(self: threading.Thread) -> None:
        if self.name.startswith("antifreeze"):
            if len(started) == 2:
                raise RuntimeError("can't start new thread")
            started.append(self)
        real(self)

    loader = small_steps(shared_data, num_workers=4)
    monkeypatch.setattr(threading.Thread, "start", start)

    with pytest.raises(ConfigError, match="can't start new thread"):
        next(iter(loader))
    gc.collect()

    for thread in started:
        thread.join(10)
        assert not thread.is_alive()


@pytest.mark.parametrize("after", [1, 2, 3])
def test_an_interrupt_while_threads_are_started_ends_those_that_were(
    shared_data: Data, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """The object is not even made yet, so only its maker can end its threads; the error is kept, as a shell does."""
    real, started = threading.Thread.start, []

    def start(self: threading.Thread) -> None:
        real(self)
        if re.fullmatch(r"antifreeze-\d+", self.name):
            started.append(self)
            if len(started) == after:
                raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(KeyboardInterrupt) as kept:
        next(iter(small_steps(shared_data, num_workers=3)))

    for thread in started:
        thread.join(10)
    assert kept.value is not None
    assert [thread.name for thread in started if thread.is_alive()] == []


# -- signals and exits ---------------------------------------------------------------------------------------------

INTERRUPT = """
import signal, sys, threading
import antifreeze as af

signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts in the background ignores it
from antifreeze.formats import Parquet

real = Parquet.open

def open_(self, path, group, *rest):
    if sys.argv[2] == "stuck" and path.endswith("part-1.parquet") and group == 2:
        print("now", flush=True)
        threading.Event().wait(600)
    return real(self, path, group, *rest)

dataset = af.StreamingDataset(sys.argv[1], format="numpy", columns=["n", "label"])
Parquet.open = open_
loader = af.StreamingDataLoader(dataset, batch_size=2, num_workers=2, shuffle=sys.argv[2] == "shuffled")
try:
    first = True
    while True:
        for batch in loader:
            if first and sys.argv[2] != "stuck":
                print("now", flush=True)
            first = False
except KeyboardInterrupt:
    # A thread that was being started when the signal came ends by itself; one that is stuck does not.
    for _ in range(500):
        left = [t for t in threading.enumerate() if t.name.startswith("antifreeze")]
        if len(left) <= (sys.argv[2] == "stuck"):
            break
        threading.Event().wait(0.02)  # not join: one that has not begun cannot be joined
    print("interrupted", len(left), flush=True)
    raise
"""


@pytest.mark.parametrize("mode", ["plain", "shuffled", "stuck"])
def test_ctrl_c_ends_the_program_at_once(shared_data: Data, mode: str) -> None:
    """In the middle of an epoch, and in the middle of waiting for a read that never returns."""
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", INTERRUPT, str(shared_data.path), mode],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "now\n"
            begin_s = time.monotonic()
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=BOUND_S)
        finally:
            process.kill()
    seconds = time.monotonic() - begin_s

    assert process.returncode == -signal.SIGINT
    assert out.split() == ["interrupted", "1" if mode == "stuck" else "0"]
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert "Exception ignored" not in err
    assert seconds < 10.0, f"{seconds:.1f} s from the signal to the end"


OPEN_AT_EXIT = """
import sys
import antifreeze as af

form, workers, shuffle, how = sys.argv[2], int(sys.argv[3]), sys.argv[4] == "True", sys.argv[5]
dataset = af.StreamingDataset(sys.argv[1], format=form)
iterator = iter(af.StreamingDataLoader(dataset, batch_size=10, num_workers=workers, shuffle=shuffle, prefetch_factor=1))
batch = next(iterator)
rows = iter(dataset)
row = next(rows), dataset[5]
if how == "cycle":
    cycle = [iterator]
    cycle.append(cycle)
if how == "exit":
    sys.exit(0)
if how == "error":
    sys.exit("bye")
"""


@pytest.mark.parametrize("form", ["torch", "numpy", "arrow"])
@pytest.mark.parametrize(
    ("workers", "shuffle"), [(3, True), *(pytest.param(n, False, marks=pytest.mark.more) for n in (0, 3))]
)
@pytest.mark.parametrize("how", ["end", "cycle"])
def test_the_interpreter_ends_in_silence_with_an_epoch_open(
    shared_data: Data, form: str, workers: int, shuffle: bool, how: str
) -> None:
    """Nobody closes iterators before the last line of a script."""
    command = [sys.executable, "-W", "error", "-c", OPEN_AT_EXIT, str(shared_data.path)]
    done = subprocess.run(
        [*command, form, str(workers), str(shuffle), how], capture_output=True, text=True, timeout=BOUND_S, check=False
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(("how", "code", "text"), [("exit", 0, ""), ("error", 1, "bye\n")])
def test_sys_exit_with_an_epoch_open_is_what_it_says(shared_data: Data, how: str, code: int, text: str) -> None:
    """Its status, and its words alone."""
    command = [sys.executable, "-W", "error", "-c", OPEN_AT_EXIT, str(shared_data.path), "numpy", "2", "True", how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND_S, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (code, "", text)


NO_HANDLES = """
import os, resource, sys
import antifreeze as af
from antifreeze.datasets import _reading

_reading.WINDOW_NBYTES = 400  # so that many files are open at a time
dataset = af.StreamingDataset(sys.argv[1], format="numpy", columns=["n", "label"])
now = len(os.listdir("/proc/self/fd"))
resource.setrlimit(resource.RLIMIT_NOFILE, (now + 4, now + 4))
try:
    list(af.StreamingDataLoader(dataset, batch_size=10, num_workers=2, shuffle=True))
except af.AntifreezeError as error:
    print(type(error).__name__, error)
"""


def test_running_out_of_file_handles_is_not_called_damage(write_data: Callable[..., Data]) -> None:
    """Who is told that a file is damaged restores it, in vain: the cause must be the cause."""
    data = write_data(*[30] * 20)

    command = [sys.executable, "-W", "error", "-c", NO_HANDLES, str(data.path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND_S, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert "Too many open files" in done.stdout
    assert not done.stdout.startswith(CorruptFile.__name__), done.stdout
    assert "damaged" not in done.stdout


def test_a_loader_for_each_of_many_epochs_leaves_nothing(shared_data: Data, our_threads: Threads) -> None:
    """A leak of one handle or thread in an epoch is a dead run after a night."""
    handles = len(list(Path("/proc/self/fd").iterdir()))
    for epoch in range(30):
        for step, batch in enumerate(small_steps(shared_data, shuffle=epoch % 2 == 0)):
            shared_data.check(batch)
            if step == epoch:
                break

    assert our_threads() == []
    assert len(list(Path("/proc/self/fd").iterdir())) <= handles
