"""However a trainer leaves its loader, or its life: no process, thread, descriptor or memory of it remains."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from worker_datasets import Fault, Sums, plain
from worker_engines import ENGINES, make, undisturbed
from worker_processes import PATIENCE_S, identity, lives, nurseries, send, state_of, until, workers
from worker_trainers import Trainer, Trainers

import antifreeze as af
from antifreeze.pool import _tree
from conftest import more

STUCK = Fault("holds_the_interpreter", "sample", 30)
ASLEEP = Fault("sleeps", "sample", 30)


def gone() -> bool:
    return not nurseries() and not workers()


@pytest.fixture(autouse=True)
def nothing_is_left_of_other_tests(no_shared_fork_server: None) -> None:
    """A loader in the frames of an error that another test has caught has processes until it is collected."""
    if not gone():
        gc.collect()
        until(gone, "what other tests have started is gone")


def open_fds() -> dict[str, str]:
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found[entry.name] = str(entry.readlink())
        except OSError:
            continue
    return found


# -- in a trainer that goes on -------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("persistent", [False, True])
def test_leaving_the_loop_ends_the_workers(engine: str, persistent: bool) -> None:
    """By break, with one of them stuck in user code. Workers that stay do so until their loader goes."""
    loader = make(engine, STUCK, persistent_workers=persistent, delay_s=0.005)
    batches = []
    for batch in loader:
        assert workers()
        batches.append(batch)
        break
    if persistent:
        assert workers()
    del loader
    until(gone, "all processes are gone")

    assert plain(batches[0]) == undisturbed(engine)[0][0]


@pytest.mark.parametrize("engine", ENGINES)
def test_an_error_in_the_loop_ends_the_workers_even_if_it_is_kept(engine: str) -> None:
    """A notebook keeps the last error, with its frames and all their variables, the iterator among them."""

    def train() -> None:
        for batch in make(engine, ASLEEP, delay_s=0.005):
            raise RuntimeError(plain(batch)[0])

    with pytest.raises(RuntimeError) as caught:
        train()
    caught.traceback[-1].frame.f_locals.clear()
    until(lambda: caught and gone(), "all processes are gone")


@pytest.mark.parametrize("kept", ["iterator", "error"])
def test_an_error_of_the_loader_that_is_kept_holds_no_worker(kept: str) -> None:
    """Nor does the iterator that has raised it."""
    iterator = iter(make("map", Fault("raises", "sample", 17)))
    with pytest.raises(af.UserCodeError) as caught:
        list(iterator)
    error = caught.value
    if kept == "error":
        del iterator
    # The process that has loaded the dataset stays as long as the loader does, which both hold.
    until(lambda: not workers(), "all workers are gone")

    assert "dataset[17]" in str(error)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("num_batches", [1, *more(0, 1000)])
def test_a_loader_that_is_dropped_needs_no_collector(engine: str, persistent: bool, num_batches: int) -> None:
    """Nothing of it is in a cycle: workers, dataset and memory go at once, and not when the collector comes by."""
    gc.disable()
    try:
        loader = make(engine, persistent_workers=persistent)
        dataset = weakref.ref(loader.dataset)
        iterator = iter(loader)
        for _ in range(num_batches):
            if next(iterator, None) is None:
                break
        del iterator, loader
        until(lambda: dataset() is None, "the dataset is gone")
        until(lambda: not workers(), "all workers are gone")
    finally:
        gc.enable()


DROPPED = """
import torch
from antifreeze.pool import PoolConfig
from antifreeze.pool._supervisor import the_supervisor

class Kept:
    config = PoolConfig(num_workers=1, dataset="Kept")
    def __init__(self, num_tensors):
        self.tensors = [torch.zeros(1) for _ in range(num_tensors)]
    def poll(self):
        pass

kept = Kept(0)
the_supervisor().supervise(kept)
the_supervisor().end(Kept(200_000))  # and the program is over while our thread lets go of these
"""


@pytest.mark.parametrize("attempt", [1, *more(2, 3)])  # of those without a cure, half fail
def test_an_exit_while_our_thread_lets_go_of_tensors(attempt: int) -> None:
    """A tensor that a daemon lets go of while the interpreter ends would abort the process."""
    done = subprocess.run([sys.executable, "-c", DROPPED], capture_output=True, text=True, timeout=PATIENCE_S)

    assert (done.returncode, done.stderr) == (0, "")


AT_EXIT = """
import atexit

class Numbers:
    def __len__(self):
        return 8
    def __getitem__(self, i):
        return i

def read():
    print([batch.tolist() for batch in antifreeze.DataLoader(Numbers(), batch_size=4, num_workers=1)])

atexit.register(read)  # before antifreeze has registered its own: this one is called later
import antifreeze
read()
"""


def test_a_loader_that_is_read_at_exit() -> None:
    """Our thread rests by then, and is woken."""
    done = subprocess.run([sys.executable, "-c", AT_EXIT], capture_output=True, text=True, timeout=PATIENCE_S)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "[[0, 1, 2, 3], [4, 5, 6, 7]]\n" * 2


def test_an_iterator_that_was_not_asked_has_no_worker() -> None:
    """Frameworks make iterators that they throw away."""
    iterator = iter(make("map"))

    assert gone()
    del iterator


@pytest.mark.parametrize("order", ["loader first", "iterator first", "in a cycle", "in another thread"])
def test_what_is_dropped_ends(order: str) -> None:
    """In whichever order, by whichever thread."""
    loader = make("map", ASLEEP, delay_s=0.005)
    iterator = iter(loader)
    next(iterator)
    watched = weakref.ref(iterator)
    if order == "loader first":
        del loader
        assert plain(next(iterator)) == undisturbed("map")[0][1]
        del iterator
    elif order == "iterator first":
        del iterator
    elif order == "in a cycle":
        cycle: list[Any] = [iterator]
        cycle.append(cycle)
        del iterator, cycle
        gc.collect()
    else:
        box = [iterator]
        del iterator
        thread = threading.Thread(target=box.clear)
        thread.start()
        thread.join(PATIENCE_S)
    # The process that has loaded the dataset stays as long as the loader does.
    until(gone if order == "loader first" else lambda: not workers(), "all workers are gone")

    assert watched() is None


def test_many_epochs_leave_no_descriptor_and_no_mapping() -> None:
    """Whole ones, those that are left early, and those in which workers die."""

    def epochs(count: int) -> None:
        for number in range(count):
            loader = make("map", persistent_workers=number % 2 == 0, num_workers=1 + number % 3, delay_s=0.001)
            for step, _ in enumerate(loader):
                if step == 2 and number % 3 == 0:
                    break
                if step == 3 and number % 3 == 1:
                    send(signal.SIGKILL, workers()[:1])

    def facts() -> tuple[int, int]:
        until(gone, "all processes are gone")
        until(lambda: not [t for t in threading.enumerate() if t.name.startswith("antifreeze")], "no thread is left")
        maps = Path("/proc/self/maps").read_text()
        return len(open_fds()), maps.count("memfd:antifreeze")

    epochs(3)
    before = facts()
    epochs(9)

    assert facts() == before


def test_many_iterators_at_once() -> None:
    """Each has workers of its own; all of them come from one fork server."""
    iterators = [iter(make("map", num_workers=1)) for _ in range(8)]
    found: list[list[Any]] = [[] for _ in iterators]
    for batches in zip(*iterators, strict=True):
        assert len(nurseries()) <= 1
        for one, batch in zip(found, batches, strict=True):
            one.append(plain(batch))

    assert found == [undisturbed("map")[0]] * 8


def test_iterators_in_many_threads() -> None:
    """The one thread that keeps all workers serves them all."""
    found: dict[int, list[Any]] = {}

    def read(number: int) -> None:
        found[number] = [plain(batch) for batch in make("map", num_workers=2)]

    threads = [threading.Thread(target=read, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)

    assert found == dict.fromkeys(range(4), undisturbed("map")[0])


# -- a trainer that forks ------------------------------------------------------------------------------------------


def forked(function: Callable[[], None]) -> int:
    """Run a function in a fork of this process; return its exit code."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            function()
            code = 0
        except BaseException:  # noqa: BLE001
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    end_s = time.monotonic() + PATIENCE_S
    while (found := os.waitpid(pid, os.WNOHANG)) == (0, 0):
        if time.monotonic() > end_s:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return -1
        time.sleep(0.01)
    return os.waitstatus_to_exitcode(found[1])


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("persistent", [False, *more(True)])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_fork_of_the_trainer_has_no_part_in_its_iterator(engine: str, persistent: bool) -> None:
    """It can have its own, from the same loader; neither its life nor its end disturbs the parent's."""
    expected = undisturbed(engine)[0]
    loader = make(engine, persistent_workers=persistent, delay_s=0.005)
    iterator = iter(loader)
    found = [plain(next(iterator)) for _ in range(2)]

    def child(loader: Any = loader, iterator: Any = iterator) -> None:
        with pytest.raises(af.ConfigError, match="fork"):
            next(iterator)
        if engine == "streaming":
            loader.set_epoch(0)
        other = [plain(batch) for batch in (make(engine) if engine != "streaming" else loader)]
        assert other == expected
        for _ in loader:
            break

    assert forked(child) == 0
    del child
    assert found + [plain(batch) for batch in iterator] == expected
    del iterator, loader
    until(gone, "all processes are gone")


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_that_lives_on_does_not_keep_the_workers() -> None:
    """It has copies of all descriptors, the ends of the workers' channels among them."""
    read, write = os.pipe()
    iterator = iter(make("map", ASLEEP, delay_s=0.005))
    next(iterator)
    pid = os.fork()
    if not pid:
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    os.close(read)
    processes = [identity(p) for p in workers() + nurseries()]
    del iterator
    until(lambda: not any(map(lives, processes)), "all processes are gone")
    os.close(write)
    os.waitpid(pid, 0)


# -- a trainer that ends -------------------------------------------------------------------------------------------

SCRIPT = """
import os, sys, time, signal, threading
import worker_engines
from worker_engines import make
from worker_datasets import Fault, plain
from worker_processes import workers, nurseries, programs, until

def train(engine="map", kind="sleeps", **options):
    loader = make(engine, Fault(kind, "sample", 30), delay_s=0.005, **options)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    until(lambda: len(workers()) == 2, "two workers are there")
    print("pids", *nurseries(), *workers(), flush=True)
    return loader, iterator

"""


@pytest.fixture(scope="session")
def trainers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainers]:
    """Start trainers in processes of their own."""
    found = Trainers(tmp_path_factory.mktemp("trainers"))
    yield found
    found.close()


Run = Callable[[str], Trainer]


@pytest.fixture
def run(trainers: Trainers) -> Iterator[Run]:
    """Run a script as a trainer; whatever is left of it at the end of the test is ended."""
    started: list[Trainer] = []

    def start(body: str) -> Trainer:
        started.append(trainers.start(SCRIPT + body))
        return started[-1]

    yield start
    for trainer in started:
        if lives(identity(trainer.pid)):
            trainer.send(signal.SIGKILL)
            trainer.wait()


def check_gone(processes: list[tuple[int, str]]) -> None:
    assert len(processes) >= 3
    until(lambda: not any(map(lives, processes)), "all processes are gone")


WAYS = {
    "the end of the script": "loader, iterator = train()",
    "sys.exit": "loader, iterator = train()\nsys.exit(7)",
    "os._exit": "loader, iterator = train()\nos._exit(7)",
    "an error": "loader, iterator = train()\nraise ValueError('my own')",
    "an iterator in a module": "import builtins\nbuiltins.kept = train()",
    "a thread that reads": (
        "loader, iterator = train()\n"
        "threading.Thread(target=lambda: [None for _ in iterator], daemon=True).start()\ntime.sleep(0.05)"
    ),
    "a thread that reads in front": "threading.Thread(target=train).start()",
    "exit while waiting": (
        "loader, iterator = train()\n"
        "threading.Timer(0.3, lambda: os._exit(7)).start()\n"
        "for _ in iterator: pass\ntime.sleep(60)"
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_trainer_that_ends_takes_its_workers_with_it(way: str, run: Run) -> None:
    """One of them sleeps for an hour in user code; the interpreter says nothing, and has its own exit code."""
    trainer = run(WAYS[way])
    processes = trainer.processes()

    assert trainer.wait() == (7 if "exit" in way else 1 if way == "an error" else 0)
    check_gone(processes)
    assert way == "an error" or not trainer.errors


@pytest.mark.parametrize("engine", ["map", *more("iterable", "streaming")])
@pytest.mark.parametrize("kind", ["holds_the_interpreter", "stopped"])
def test_a_trainer_does_not_wait_for_a_worker_that_cannot_end(engine: str, kind: str, run: Run) -> None:
    """Persistent workers, one of which runs no Python any more."""
    trainer = run(f"loader, iterator = train({engine!r}, {kind!r}, persistent_workers=True)")
    processes = trainer.processes()

    assert (trainer.wait(), trainer.errors) == (0, "")
    check_gone(processes)


@pytest.mark.parametrize("engine", ENGINES)
def test_ctrl_c_is_the_trainers_affair(engine: str, run: Run) -> None:
    """It goes to all processes of the terminal: one KeyboardInterrupt, no traceback of a worker, and nothing stays."""
    trainer = run(
        f"loader, iterator = train({engine!r})\n"
        "threading.Timer(0.3, lambda: os.killpg(0, signal.SIGINT)).start()\n"  # it waits for the worker that sleeps
        "try:\n    [None for _ in iterator]\nexcept KeyboardInterrupt:\n    print('caught')"
    )
    processes = trainer.processes()

    assert (trainer.wait(), trainer.line(), trainer.errors) == (0, "caught", "")
    check_gone(processes)


def test_who_goes_on_after_ctrl_c_misses_nothing() -> None:
    """In a notebook, the loop is interrupted and later goes on with the same iterator."""
    loader = make("map", delay_s=0.01)
    iterator, found, interrupts = iter(loader), [], 0

    def interrupt() -> None:
        signal.raise_signal(signal.SIGINT)

    while True:
        timer = threading.Timer(0.15, interrupt) if interrupts < 2 else None
        try:
            if timer is not None:
                timer.start()
            found.append(plain(next(iterator)))
        except KeyboardInterrupt:
            interrupts += 1
        except StopIteration:
            break
        finally:
            if timer is not None:
                timer.cancel()
                timer.join(PATIENCE_S)

    assert found == undisturbed("map")[0]


KILLED = """
import random
rng = random.Random({seed})
def report():
    seen = set()
    while True:
        for pid in nurseries() + workers():
            if pid not in seen:
                seen.add(pid)
                print("pid", pid, flush=True)
threading.Thread(target=report, daemon=True).start()
for _ in range(100):
    for number, batch in enumerate(make({engine!r}, num_workers=3, persistent_workers=rng.random() < 0.5)):
        if rng.random() < 0.05:
            break
"""


@pytest.mark.parametrize("seed", [*range(4), *more(*range(4, 12))])
def test_kill_9_of_the_trainer_at_any_moment_leaves_nothing(seed: int, run: Run) -> None:
    """While the fork server starts, while workers load, in the middle of an epoch, between two."""
    rng = random.Random(seed)  # noqa: S311
    trainer = run(KILLED.format(seed=seed, engine=ENGINES[seed % 3]))
    first = trainer.line()
    time.sleep(rng.random() * (0.3 if seed % 2 else 1.2))
    if seed % 4 == 1:
        send(signal.SIGSTOP, nurseries(trainer.pid))
    processes = [identity(pid) for pid in nurseries(trainer.pid) + workers(trainer.pid)]
    trainer.send(signal.SIGKILL)

    assert trainer.wait() == -signal.SIGKILL
    reported = [identity(int(line.split()[1])) for line in [first, *trainer.output] if line.startswith("pid ")]
    until(lambda: not any(map(lives, processes)), "all processes are gone")
    until(lambda: not any(_is_ours(pid) for pid, _ in reported), "those that it has seen before are gone")


def _is_ours(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text().startswith("af-") and state_of(pid) not in ("Z", "X", "")
    except OSError:
        return False


def test_kill_9_of_a_trainer_whose_nursery_and_workers_are_stopped(run: Run) -> None:
    """What is stopped does not read a socket; the kernel ends it all the same."""
    trainer = run("kept = train()\ntime.sleep(60)")
    processes = trainer.processes()
    send(signal.SIGSTOP, [pid for pid, _ in processes])
    trainer.send(signal.SIGKILL)
    trainer.wait()
    check_gone(processes)


@pytest.mark.parametrize("nursery", ["", "stopped"])
def test_what_a_worker_has_started_ends_with_the_trainer(nursery: str, run: Run) -> None:
    """A program that decodes for a worker has no use for anybody when both are gone."""
    trainer = run("""
loader = make("map", Fault("waits_for_a_child", "sample", 0))
threading.Thread(target=next, args=[iter(loader)], daemon=True).start()
until(programs, "a worker has started a program")
print("pids", *nurseries(), *workers(), *programs(), flush=True)
time.sleep(60)
""")
    processes = trainer.processes()
    if nursery == "stopped":
        send(signal.SIGSTOP, nurseries(trainer.pid))
    trainer.send(signal.SIGKILL)
    trainer.wait()
    check_gone(processes)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGSEGV])
def test_any_signal_that_ends_the_trainer_ends_its_workers(number: signal.Signals, run: Run) -> None:
    """No handler of ours is needed for it."""
    # Who runs the tests may have had it ignored, as nohup does.
    ready = (
        f"import resource\nresource.setrlimit(resource.RLIMIT_CORE, (0, 0))\nsignal.signal({number}, signal.SIG_DFL)\n"
    )
    trainer = run(f"{ready}kept = train()\ntime.sleep(60)")
    processes = trainer.processes()
    trainer.send(number)

    assert trainer.wait() == -number
    check_gone(processes)


FORKING = """
loader, iterator = train()
pid = os.fork()
if not pid:
    kept = train()
    sys.exit(0)
_, status = os.waitpid(pid, 0)
for _ in range(2):
    next(iterator)
os._exit(status)
"""


def test_a_fork_that_exits_in_order_with_its_own_iterator_ends_its_own_workers(run: Run) -> None:
    """And not those of its parent."""
    trainer = run(FORKING)
    parents, childs = trainer.processes(), trainer.processes()

    assert (trainer.wait(), trainer.errors) == (0, "")
    check_gone(parents)
    check_gone(childs)
    assert not set(parents) & set(childs)


# -- little to live on ---------------------------------------------------------------------------------------------

FEW = """
import resource
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
kept = []
for persistent in (False, True):
    loader = make({engine!r}, num_workers=4, persistent_workers=persistent, num_samples=160)
    for _ in range(2):
        kept.append(list(loader))
print(len(kept), {{len(epoch) for epoch in kept}}, len({{plain(batch) for epoch in kept for batch in epoch}}) >= 40)
"""


@pytest.mark.parametrize("engine", ENGINES)
def test_64_descriptors_are_enough_to_keep_every_batch(engine: str, run: Run) -> None:
    """A batch that is kept keeps memory and no descriptor."""
    trainer = run(FEW.format(engine=engine))

    assert (trainer.line(), trainer.wait(), trainer.errors) == ("4 {40} True", 0, "")


NONE_LEFT = """
import resource
import antifreeze as af
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
taken = []

def take(left):
    while True:
        try:
            taken.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            break
    for _ in range(left):
        os.close(taken.pop())

def give():
    while taken:
        os.close(taken.pop())

iterator = iter(make("map", num_workers=2, num_samples=200, delay_s=0.002))
found, errors = [], []
at_start = {at_start}
if at_start:
    take({left})
while len(errors) < 5:
    try:
        found.append(plain(next(iterator)))
    except StopIteration:
        break
    except (af.AntifreezeError, OSError) as error:
        errors.append(str(error))
        give()
    if len(found) == 3 and not at_start and not errors and not taken:
        take({left})
        if {kill}:
            for pid in workers():
                os.kill(pid, 9)
            time.sleep(0.5)  # the keeper is the one who notices it
give()
from worker_engines import undisturbed
print(found == undisturbed("map", num_samples=200)[0], all("escriptor" in e or "open files" in e for e in errors))
"""


@pytest.mark.parametrize("left", [0, 9, 14, *more(3, 6, 11, 13, 15, 17, 20)])
def test_no_descriptor_left_at_the_start_is_said_and_costs_nothing(left: int, run: Run) -> None:
    """Whatever step of the start it is that fails; who makes room and asks on gets everything."""
    assert run(NONE_LEFT.format(left=left, at_start=True, kill=False)).line() == "True True"


@pytest.mark.parametrize("left", [0, *more(5)])
@pytest.mark.parametrize("kill", [False, True])
def test_no_descriptor_left_in_the_middle_is_said_and_costs_nothing(left: int, kill: bool, run: Run) -> None:
    """Neither a batch nor a worker can be received then."""
    assert run(NONE_LEFT.format(left=left, at_start=False, kill=kill)).line() == "True True"


NURSERY = """
import antifreeze as af
from pathlib import Path
Path({folder!r}, "sitecustomize.py").write_text(
    "import os, sys, time\\nif any('start.py' in a for a in sys.orig_argv): {does}"
)
os.environ["PYTHONPATH"] = {folder!r}
try:
    print(len(list(make("map", stall_limit=1))))
except af.WorkerDied as error:
    print(error.facts["cause"], str(error).splitlines()[0])
"""


@pytest.mark.parametrize("does", ["os._exit(1)", "raise SystemExit(3)", "os.kill(os.getpid(), 9)"])
def test_an_interpreter_that_does_not_come_up_is_an_error(does: str, run: Run, tmp_path: Path) -> None:
    """Something in its start, which is not ours: a hook, a library that is broken."""
    found = run(NURSERY.format(folder=str(tmp_path), does=does)).line()

    assert found == "startup the fork server exited 3 times before it was ready"


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (None, "ConfigError: cannot start workers: expected sys.executable to be a Python interpreter, got an empty"),
        (
            "/opt/train",
            "ConfigError: cannot start workers: expected sys.executable to be a Python interpreter, got /opt/train",
        ),
        ("/opt/python3", "WorkerDied: a worker could not be started or reached: [Errno 2] No such file"),
    ],
)
def test_without_an_interpreter_there_is_an_error_and_no_endless_start(
    program: str | None, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A packed program would start itself, and that one itself again."""
    monkeypatch.setattr(sys, "executable", program)
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(af.AntifreezeError) as caught:
        next(iter(make("map")))

    assert f"{type(caught.value).__name__}: {caught.value}".startswith(words)
    assert "sys.executable" in str(caught.value.hint)


def test_a_keeper_that_fails_again_and_again_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it is that we have not thought of, nobody waits for workers that nobody starts."""

    def fail() -> Any:
        raise ValueError("something else")

    monkeypatch.setattr(_tree, "start_server", fail)
    with pytest.raises(af.WorkerDied, match="failed repeatedly: ValueError: something else"):
        next(iter(make("map")))


def test_an_interpreter_that_stands_still_is_an_error(run: Run, tmp_path: Path) -> None:
    """A disk that is dead, a hook that waits: nobody waits for it for ever."""
    trainer = run(NURSERY.format(folder=str(tmp_path), does="time.sleep(1000)"))

    assert trainer.line() == "sleeping the fork server did not answer 3 times; the last one sleeps"
    assert trainer.wait() == 0  # a kill now would leave the last one, which sleeps before a line of ours has run


def test_an_interpreter_that_stands_still_once_is_replaced(run: Run, tmp_path: Path) -> None:
    """Nothing is lost but time."""
    does = f"os.path.exists({str(tmp_path / 'once')!r}) or (open({str(tmp_path / 'once')!r}, 'x'), time.sleep(1000))"
    trainer = run(NURSERY.format(folder=str(tmp_path), does=does))

    assert int(trainer.line()) == len(undisturbed("map")[0])
    assert "it is replaced" in trainer.errors


def test_nothing_is_written_to_named_shared_memory() -> None:
    """It may be 64 KB in a container, and full."""
    folder = Path("/dev/shm")  # noqa: S108
    before = {entry.name for entry in folder.iterdir()} if folder.exists() else set()
    seen: set[str] = set()
    for batch in make("map", num_samples=200):
        seen |= {entry.name for entry in folder.iterdir()} - before if folder.exists() else set()
        del batch

    assert not [name for name in seen if name.startswith(("antifreeze", "torch_", "psm_"))]


def test_a_loader_in_a_worker_of_a_loader_ends_with_it() -> None:
    """A dataset may use a loader of its own; killing the outer worker ends the inner ones."""
    loader = af.DataLoader(Sums(), batch_size=None, num_workers=1)
    iterator: Iterator[Any] = iter(loader)
    first = next(iterator)
    (outer,) = workers()
    inner = [identity(pid) for pid in nurseries(outer) + workers(outer)]
    send(signal.SIGKILL, [outer])
    until(lambda: not any(map(lives, inner)), "the inner ones are gone")

    assert [first, *iterator] == [0, 6, 12, 18]
    assert inner
