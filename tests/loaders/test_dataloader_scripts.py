"""Whatever stands in a script, and however it is run: workers do what a fork of it would have done."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAD = """
import asyncio, contextvars, csv, ctypes, enum, functools, socket, sys, threading, types, zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import torch
import antifreeze
"""

BODY = """
# No main guard anywhere below.
POOL, LOCK, DEPTH = ThreadPoolExecutor(2), threading.Lock(), contextvars.ContextVar("depth", default=1)
LOOP = asyncio.new_event_loop()
threading.Thread(target=LOOP.run_forever, daemon=True).start()
LIBRARY = ctypes.CDLL(None)
LIBRARY.atof.restype = ctypes.c_double
TABLE = types.MappingProxyType({"a": 1})
archive = zipfile.ZipFile("a.zip")
DEPTH.set(2)

class Mode(enum.Enum):
    TRAIN = 1

@functools.lru_cache
def cached(i):
    return i if i < 2 else cached(i - 1) + 1

@functools.singledispatch
def kind(value):
    return "other"

@kind.register
def _(value: int):
    return "number"

async def doubled(i):
    return 2 * i

class Samples(torch.utils.data.Dataset):
    def __init__(self, n):
        self.n, self.file, self.load = n, open("bytes", "rb"), functools.lru_cache(self._load)

    def __len__(self):
        return self.n

    def _load(self, i):
        self.file.seek(i)
        return self.file.read(1)

    def __getitem__(self, i):
        with LOCK:
            there = POOL.submit(abs, -i).result()
        beyond = asyncio.run_coroutine_threadsafe(doubled(i), LOOP).result()
        found = [there, beyond, cached(i), kind(i), kind("x"), self.load(i), archive.read(f"{i}.txt"), DEPTH.get()]
        return [*found, LIBRARY.atof(b"2.5"), TABLE["a"], Mode.TRAIN, (lambda: i)()]

class Wrapper(torch.utils.data.Dataset):
    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, i):
        return repr(self.inner[i])

dataset = Wrapper(Samples(20))
cached(7), dataset[3], dataset.n
alone = [b for b in antifreeze.DataLoader(dataset, batch_size=4, collate_fn=lambda b: b)]
for context in (None, "fork", "spawn", "forkserver"):
    options = {"num_workers": 2, "multiprocessing_context": context}
    assert [b for b in antifreeze.DataLoader(dataset, batch_size=4, collate_fn=lambda b: b, **options)] == alone
LOOP.call_soon_threadsafe(LOOP.stop)
archive.close()
print(len(alone), alone[1][3])
"""

WAYS = {
    "a file": (["script.py"], None),
    "a command": (["-c", HEAD + BODY], None),
    "standard input": (["-"], HEAD + BODY),
    "a module of a package": (["-m", "package.train"], None),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    import zipfile

    (tmp_path / "bytes").write_bytes(bytes(range(20)))
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for i in range(20):
            archive.writestr(f"{i}.txt", str(i))
    (tmp_path / "script.py").write_text(HEAD + BODY)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "numbers.py").write_text("def double(i):\n    return 2 * i\n")
    # An import that is relative to the script, and made in the worker.
    inside = BODY.replace("return 2 * i", "from .numbers import double; return double(i)")
    (tmp_path / "package" / "train.py").write_text(HEAD + inside)
    return tmp_path


def run(folder: Path, arguments: list[str], text: str | None = None) -> str:
    """Run Python in a folder; what it prints."""
    done = subprocess.run(
        [sys.executable, *arguments],
        input=text,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        env={**os.environ, "PYTHONPATH": ""},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("way", WAYS)
def test_a_script_without_a_guard_with_all_that_people_write(folder: Path, way: str) -> None:
    arguments, text = WAYS[way]

    assert run(folder, arguments, text).splitlines()[-1].startswith("5 [7, 14, 7, 'number', 'other', b'\\x07', b'7', 2")


CONFIG = """
import os, tempfile
ROOT, LEVEL, DESCRIPTOR = "data", 1, os.open(os.devnull, os.O_RDONLY)
cfg, names = {"a": 1, "deep": {"b": 2}}, ["x"]
"""

DATASET = """
import csv, os, socket, sys
import torch
import config, imaging
from config import ROOT, cfg, names

class Settings(torch.utils.data.Dataset):
    factor = 1

    def __len__(self):
        return 4

    def __getitem__(self, i):
        os.fstat(config.DESCRIPTOR)
        own = [config.ROOT, ROOT, config.LEVEL, cfg, cfg is config.cfg, names, self.factor, imaging.LOAD_TRUNCATED]
        limits = [sys.getrecursionlimit(), csv.field_size_limit(), socket.getdefaulttimeout()]
        return repr([*own, *limits, torch.tensor(1.5).dtype, __debug__, sys.flags.utf8_mode, sys.warnoptions])
"""

TRAIN = """
import csv, os, socket, sys
for _ in range(9):
    os.open(os.devnull, os.O_RDONLY)  # so that descriptors have other numbers than in a worker
import torch
import antifreeze, config, data, imaging

imaging.LOAD_TRUNCATED = True
config.ROOT = data.ROOT = "elsewhere"
config.LEVEL, data.Settings.factor = 5, 3
config.cfg["deep"]["b"] = 9
config.names.append("y")
sys.setrecursionlimit(5000)
csv.field_size_limit(10**7)
socket.setdefaulttimeout(7.5)
torch.set_default_dtype(torch.float64)
theirs, ours = (
    [row for batch in kind(data.Settings(), num_workers=2) for row in batch]
    for kind in (torch.utils.data.DataLoader, antifreeze.DataLoader)
)
print(theirs == ours, *ours, sep="\\n")
"""


def test_settings_of_modules_and_of_the_interpreter_are_those_that_a_fork_has(folder: Path) -> None:
    """Torch's loader, which forks, is what is compared with."""
    library = folder / "site-packages"
    library.mkdir()
    (library / "imaging.py").write_text("LOAD_TRUNCATED = False\n")
    for name, text in (("config.py", CONFIG), ("data.py", DATASET), ("train.py", TRAIN)):
        (folder / name).write_text(text)
    path = f"import sys; sys.path.append({str(library)!r})\n"
    (folder / "train.py").write_text(path + TRAIN)

    alike, first, *_ = run(folder, ["-O", "-X", "utf8", "-Wignore::FutureWarning", "train.py"]).splitlines()

    assert alike == "True", first
    assert first.startswith("['elsewhere', 'elsewhere', 5, {'a': 1, 'deep': {'b': 9}}, True, ['x', 'y'], 3, True, 5000")


LOGGING = """
import logging, sys, torch
from antifreeze import DataLoader

logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stdout)
file = logging.FileHandler("log.txt")
file.setLevel(logging.WARNING)
logging.getLogger("samples").addHandler(file)
logging.getLogger("quiet").setLevel(logging.ERROR)

class Logs(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        logging.getLogger("samples").info("at %d", i)
        logging.getLogger("samples").warning("odd %d", i)
        logging.getLogger("quiet").warning("never seen")
        return i

list(DataLoader(Logs(), num_workers=2))
"""


def test_what_workers_log_is_seen_where_the_trainer_logs(folder: Path) -> None:
    said = run(folder, ["-c", LOGGING])

    assert sorted(said.splitlines()) == sorted(line for i in range(4) for line in (f"INFO at {i}", f"WARNING odd {i}"))
    assert sorted((folder / "log.txt").read_text().splitlines()) == [f"odd {i}" for i in range(4)]


OWN_LOGGING = """
import logging, sys, torch
log = logging.getLogger("own")
log.addHandler(logging.StreamHandler(sys.stdout))
log.setLevel(logging.INFO)

class Logs(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        log.info("at %d", i)
        return i
"""


def test_a_module_that_sets_up_its_own_logger_logs_once(folder: Path) -> None:
    (folder / "own.py").write_text(OWN_LOGGING)
    said = run(folder, ["-c", "import own, antifreeze; list(antifreeze.DataLoader(own.Logs(), num_workers=2))"])

    assert sorted(said.splitlines()) == [f"at {i}" for i in range(4)]


EVENT = """
import multiprocessing, torch
from antifreeze import DataLoader

class Signals(torch.utils.data.Dataset):
    def __init__(self):
        self.event = multiprocessing.get_context("spawn").Event()

    def __len__(self):
        return 4

    def __getitem__(self, i):
        self.event.set()
        return i

dataset = Signals()
print(dataset.event.is_set(), [int(i) for i in DataLoader(dataset, num_workers=2)], dataset.event.wait(60))
"""


def test_an_event_made_for_spawn_is_shared_with_the_trainer(folder: Path) -> None:
    assert run(folder, ["-c", EVENT]) == "False [0, 1, 2, 3] True\n"


SHARED = """
import ctypes, multiprocessing, os, signal, sys
from multiprocessing.shared_memory import SharedMemory
import numpy as np, torch
from antifreeze import DataLoader

class Shared(torch.utils.data.Dataset):
    def __init__(self, memory):
        self.epoch, self.killed = torch.tensor(-1).share_memory_(), torch.tensor(False).share_memory_()
        self.cache = np.frombuffer(multiprocessing.RawArray(ctypes.c_double, 8))
        self.memory, self.named = memory, np.ndarray(8, buffer=memory.buf)

    def __len__(self):
        return 8

    def __getitem__(self, i):
        if i == 3 and self.epoch == 1 and not self.killed:
            self.killed.fill_(True)
            os.kill(os.getpid(), signal.SIGKILL)
        self.cache[i] = self.named[i] + i
        np.ndarray(8, buffer=self.memory.buf)[i] = self.epoch
        return int(self.epoch)

memory = SharedMemory(create=True, size=64)
dataset = Shared(memory)
loader = DataLoader(dataset, batch_size=1, num_workers=2, persistent_workers=bool(int(sys.argv[1])))
for epoch in range(3):
    dataset.epoch.fill_(epoch)
    print([int(batch) for batch in loader])
print(dataset.cache.tolist() == [1 + i for i in range(8)], dataset.named.tolist(), bool(dataset.killed))
del dataset.named
memory.close()
memory.unlink()
"""


@pytest.mark.parametrize("persistent", ["0", "1"])
def test_memory_that_is_shared_is_shared_with_workers_and_those_that_come_after_them(
    folder: Path, persistent: str
) -> None:
    """A flag of the trainer's arrives, a cache fills, and memory that has a name keeps it when workers end."""
    first, second, third, last = run(folder, ["-c", SHARED, persistent]).splitlines()

    assert [first, second, third] == [str([epoch] * 8) for epoch in range(3)]
    assert last == f"True {[2.0] * 8} True"


DEPRECATED = """
import torch, torch.distributed as dist
from antifreeze import DataLoader

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        return i + dist.is_available()

print([int(i) for i in DataLoader(Numbers(), num_workers=2)])
"""


def test_deprecated_names_of_a_library_are_not_asked_for(folder: Path) -> None:
    """torch.distributed holds an object that warns whoever asks it for anything; here a warning is an error."""
    (folder / "train.py").write_text(DEPRECATED)

    assert run(folder, ["-W", "error", "train.py"]) == "[1, 2, 3, 4]\n"
