"""Nothing that is opened can hang or flood: pipes, terminals, devices, sparse files, folders that link in circles."""

from __future__ import annotations

import os
import pty
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from antifreeze import AntifreezeError, StreamingDataset
from antifreeze.core import UnsafeFile, open_regular, read_regular
from antifreeze.decode._thread_progress import _line_of
from antifreeze.diagnosis import Frame
from antifreeze.doctor.check._script import CannotCheck, read_text
from antifreeze.doctor.job._fix import read_source
from antifreeze.doctor.job._job_report import CannotRead, read
from antifreeze.formats import read_footer
from antifreeze.storage import list_files, read_manifest

LIMIT_S = 20.0
"""For what takes milliseconds."""


def within(call: Callable[[], Any], limit_s: float = LIMIT_S) -> Any:
    """Return what a call returns or raises; fail if it waits for something."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(call())
        except Exception as error:  # noqa: BLE001  it is what the call returns
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(limit_s)
    assert not thread.is_alive(), f"still waiting after {limit_s} s"
    return found[0]


@contextmanager
def planted(kind: str, path: Path) -> Iterator[None]:
    """Put something at a path that is not what a reader expects."""
    with socket.socket(socket.AF_UNIX) as bound:
        ends: tuple[int, ...] = ()
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "pipe that is read":
            os.mkfifo(path)
            ends = (os.open(path, os.O_RDWR),)
        elif kind == "link to a pipe":
            os.mkfifo(path.with_name("the pipe"))
            path.symlink_to("the pipe")
        elif kind == "terminal":
            ends = pty.openpty()
            path.symlink_to(os.ttyname(ends[1]))
        elif kind == "socket":
            here = Path.cwd()
            os.chdir(path.parent)  # names of sockets are short
            try:
                bound.bind(path.name)
            finally:
                os.chdir(here)
        elif kind == "folder":
            path.mkdir()
        elif kind == "sparse":
            with path.open("wb") as file:
                file.truncate(8 << 30)
        else:
            path.symlink_to(kind)
        try:
            yield
        finally:
            for end in ends:
                os.close(end)


KINDS = [
    "pipe",
    "pipe that is read",
    "link to a pipe",
    "terminal",
    "socket",
    "folder",
    "/dev/zero",
    "/dev/full",
    "sparse",
]
READERS: dict[str, Callable[[Path], Any]] = {
    "manifest": lambda path: read_manifest(str(path)),
    "dataset with this manifest": lambda path: StreamingDataset(path.parent / "data", index_path=path),
    "footer": lambda path: read_footer(str(path)),
    "dataset": lambda path: StreamingDataset(path),
    "script": lambda path: read_text(str(path)),
    "report": lambda path: read(path),
    "content": lambda path: read_regular(path, 1 << 20),
}
ERRORS = (AntifreezeError, CannotCheck, CannotRead, UnsafeFile)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    pq.write_table(pa.table({"x": [1, 2, 3]}), tmp_path / "data" / "a.parquet")
    return tmp_path


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_regular_file_is_refused_at_once(kind: str, reader: str, folder: Path) -> None:
    """By an error that names it."""
    path = folder / "it.py"
    with planted(kind, path):
        found = within(lambda: READERS[reader](path))

    assert isinstance(found, ERRORS), found
    assert "it.py" in str(found)


@pytest.mark.parametrize("kind", KINDS)
def test_lines_of_source_are_left_out(kind: str, tmp_path: Path) -> None:
    """They are an ornament: a report without them is a report."""
    path = tmp_path / "it.py"
    with planted(kind, path):
        assert within(lambda: read_source(Frame(file=str(path), line=1, function="f"), str(tmp_path))) is None
        assert within(lambda: _line_of(str(path), 1)) == ""

    path = tmp_path / "good.py"
    path.write_text("first = 1\nsecond = 2\n")
    assert _line_of(str(path), 2) == "second = 2"


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 1000)

    assert read_regular(path, 1000) == b"x" * 1000
    with pytest.raises(UnsafeFile, match="it has 1,000 bytes, expected at most 999"):
        read_regular(path, 999)
    # The kernel's own files have no size, and content.
    assert b"python" in read_regular("/proc/self/cmdline", 1 << 20)
    with pytest.raises(UnsafeFile, match="expected at most 3"):
        read_regular("/proc/self/cmdline", 3)


def open_descriptors() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    before = open_descriptors()
    for kind in KINDS:
        path = tmp_path / f"the {kind.replace('/', ' ')}"
        path.parent.mkdir(exist_ok=True)
        if kind == "link to a pipe":
            continue
        action = (lambda path: read_regular(path, 10)) if kind == "sparse" else open_regular
        with planted(kind, path), pytest.raises(OSError, match="it "):
            action(path)

    assert open_descriptors() == before


SPARSE = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_opened_files import ERRORS, READERS, StreamingDataset
path = Path(sys.argv[1])
def peak_kb():
    # Not ru_maxrss, which begins with the peak of the process that has started this one.
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
StreamingDataset(path.parent / "data")  # imports what it needs
before = peak_kb()
for name, reader in READERS.items():
    try:
        reader(path)
    except ERRORS as error:
        print(name, type(error).__name__)
print((peak_kb() - before) // 1024)
"""


def test_sparse_files_take_no_memory(folder: Path) -> None:
    """Of eight gigabytes, and with the end of a Parquet file whose footer fills it."""
    path = folder / "it.py"
    with path.open("wb") as file:
        file.truncate(3 << 30)
        file.seek(0, os.SEEK_END)
        file.write((3 << 30).to_bytes(4, "little") + b"PAR1")
    words = [sys.executable, "-c", SPARSE, str(path), str(Path(__file__).parent)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)

    *errors, grown_mb = done.stdout.splitlines()
    assert len(errors) == len(READERS), done
    assert int(grown_mb) < 100


# -- folders ---------------------------------------------------------------------------------------------------------


def tree(seed: int, folder: Path) -> set[Path]:
    """Make folders that link to each other at random, and return the files in them, by their real names."""
    chance = random.Random(seed)  # noqa: S311
    folders = [folder]
    for number in range(chance.randint(1, 12)):
        folders.append(chance.choice(folders) / f"d{number}")
        folders[-1].mkdir()
    files = set()
    for number, place in enumerate(folders):
        files.add(place / f"{number}.parquet")
        (place / f"{number}.parquet").touch()
    for number in range(chance.randint(1, 24)):
        (chance.choice(folders) / f"link{number}").symlink_to(chance.choice(folders), target_is_directory=True)
    return files


def check_tree(seed: int, folder: Path) -> None:
    files = tree(seed, folder)
    patterns = [folder, f"{folder}/**/*.parquet", f"{folder}/**/**/*.parquet", f"{folder}/**"]

    for source in patterns:
        found = within(lambda source=source: list_files(str(source)))
        paths = [Path(found.root, file.path) for file in found.files]
        # Every file once, and where a folder can be reached without links, under that name.
        assert sorted(paths) == sorted(files), (seed, source)
    deep = within(lambda: list_files(f"{folder}/*/*/*/*/*/*/*/*/*.parquet")) if seed % 5 == 0 else None
    if deep is not None and not isinstance(deep, Exception):
        real = [Path(deep.root, file.path).resolve() for file in deep.files]
        assert len(real) == len(set(real))


@pytest.mark.parametrize("seed", range(60))
def test_every_folder_is_entered_once(seed: int, tmp_path: Path) -> None:
    check_tree(seed, tmp_path)


@pytest.mark.soak
def test_every_folder_is_entered_once_in_thousands_of_trees(tmp_path: Path) -> None:
    for seed in range(1000, 6000):
        (tmp_path / str(seed)).mkdir()
        check_tree(seed, tmp_path / str(seed))


def test_folders_that_all_link_to_each_other(tmp_path: Path) -> None:
    """Forty of them: more ways through them than there are atoms."""
    for number in range(40):
        (tmp_path / f"d{number}").mkdir()
        (tmp_path / f"d{number}" / "a.parquet").touch()
    for number in range(40):
        for other in range(40):
            (tmp_path / f"d{number}" / f"to{other}").symlink_to(tmp_path / f"d{other}")

    for source in (str(tmp_path), f"{tmp_path}/**/*.parquet"):
        found = within(lambda source=source: list_files(source))
        assert [file.path for file in found.files] == sorted((f"d{i}/a.parquet" for i in range(40)), key=_number)
    found = within(lambda: list_files(f"{tmp_path}/d0/*/*/*/*/*/*.parquet"))
    assert len(found.files) == 40


def _number(path: str) -> int:
    return int(path[1:].partition("/")[0])


def test_the_name_of_a_folder_does_not_depend_on_the_order_of_links(tmp_path: Path) -> None:
    for name, links in (("one", "abc"), ("two", "cba")):
        (tmp_path / name / "far").mkdir(parents=True)
        (tmp_path / name / "far" / "x.parquet").touch()
        (tmp_path / name / "data").mkdir()
        for link in links:
            (tmp_path / name / "data" / link).symlink_to("../far")

        assert [file.path for file in list_files(tmp_path / name / "data").files] == ["a/x.parquet"]


# -- Ctrl-C ----------------------------------------------------------------------------------------------------------

INTERRUPTED = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background is started with it ignored
import antifreeze as af
from antifreeze.formats import _chunks
thorough = _chunks._read_group
told = []
def tell(*given, **named):
    if not told:
        told.append(True)
        os.write(1, b"reading\\n")
    return thorough(*given, **named)
_chunks._read_group = tell
af.StreamingDataset(sys.argv[1])
os.write(1, b"done\\n")
"""


def odd_footer(num_chunks: int) -> bytes:
    """Return a footer whose chunks are all read field by field: in one group, with fields in an unusual order."""
    numbers = b"\x15\x00" + b"\x16\x02" * 3 + b"\x26\x08"
    chunk = b"\x3c" + b"\x45" + numbers[1:] + b"\x00" + b"\x06\x04\x00" + b"\x00"
    count = b""
    left = num_chunks
    while left > 0x7F:
        count, left = count + bytes([left & 0x7F | 0x80]), left >> 7
    group = b"\x19\xfc" + count + bytes([left]) + chunk * num_chunks + b"\x16\x02\x16\x02\x00"
    schema = b"\x48\x01s\x15\x02\x00" + b"\x15\x02\x25\x00\x18\x01x\x00"
    return b"\x15\x04\x19\x2c" + schema + b"\x16\x02\x19\x1c" + group + b"\x00"


def test_ctrl_c_works_while_a_large_footer_is_read(tmp_path: Path) -> None:
    """48 MB that take half a minute, or ten seconds, or five minutes: the answer comes in a second."""
    footer = odd_footer(2_500_000)
    assert len(footer) > 40_000_000
    path = tmp_path / "large.parquet"
    path.write_bytes(b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    words = [sys.executable, "-c", INTERRUPTED, str(path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "reading\n"
            sent_s = time.monotonic()
            process.send_signal(signal.SIGINT)
            rest, errors = process.communicate(timeout=60)
        finally:
            process.kill()

    assert time.monotonic() - sent_s < LIMIT_S
    assert "KeyboardInterrupt" in errors
    assert "done" not in rest
