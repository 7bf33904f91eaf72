"""Functions travel by value, with all that they look up; large arrays once for all, and not if they stand in a file."""

from __future__ import annotations

import ctypes
import functools
import io
import mmap
import multiprocessing as mp
import os
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from antifreeze import NotPicklable
from antifreeze.ipc import create, map_bytes
from antifreeze.payload._payload import bytes_at, load_payload, make_payload
from antifreeze.worker import UserError, load_program


def make_inner(number: int) -> Any:
    """Define a class, as a dataset may do for each sample."""

    class Inner:
        lock = threading.Lock()

        class Innermost:
            cached = functools.lru_cache(lambda x: x + number)

    return Inner.Innermost.cached(1)


def sent(program: Any) -> tuple[Any, int]:
    """Return what a worker gets, and how many bytes of memory it took."""
    payload = make_payload(program, {__name__})
    fd, *handles = payload.fds()
    payload.close()
    try:
        nbytes = os.fstat(fd).st_size
        found: Any = load_program(payload.layout, [fd, *handles])
    except UserError as caught:
        raise caught.error from caught
    return found, nbytes


def test_a_function_brings_what_the_bodies_of_its_classes_look_up() -> None:
    """``threading`` and ``functools`` are names of the module, which the worker does not have."""
    program, _ = sent(make_inner)

    assert program is not make_inner
    assert {"threading", "functools"} <= set(program.__globals__)
    assert program(4) == 5


# -- what stands in a mapped file ----------------------------------------------------------------------------------

LENGTH = 1 << 28
"""Of a file that is all holes: half a gigabyte that nobody should copy."""
LARGE = 1 << 20
"""Bytes that would do if a copy were made of what is looked at."""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Write a large file of 16-bit numbers; only its last thousand are not 0."""
    path = tmp_path / "a name with spaces.bin"
    with path.open("wb") as out:
        out.truncate(2 * LENGTH)
        out.seek(-2000, io.SEEK_END)
        out.write(np.arange(1000, dtype=np.uint16).tobytes())
    return path


VIEWS: dict[str, Callable[[Any], Any]] = {
    "all": lambda a: a,
    "a part": lambda a: a[-100_000:],
    "backwards": lambda a: a[::-1],
    "every seventh": lambda a: a[-70_000::7],
    "a table": lambda a: a.reshape(-1, 4).T[::2],
    "as an array": np.asarray,
    "as a tensor": lambda a: torch.from_numpy(np.asarray(a).view(np.int16)),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("mode", ["r", "r+", "c"])
@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_what_stands_in_a_mapped_file_is_not_copied(view: str, mode: Any, file: Path) -> None:
    """Whatever part of it, and in whatever clothes."""
    array = VIEWS[view](np.memmap(file, np.uint16, mode))
    found, nbytes = sent(array)

    assert nbytes < LARGE
    assert type(found) is type(array)
    assert (found.shape, found.dtype) == (array.shape, array.dtype)
    some = array[..., -5_000:] if array.ndim == 1 else array[:, -5_000:]
    assert np.array_equal(np.asarray(found[..., -5_000:]), np.asarray(some))
    if isinstance(found, np.ndarray):
        assert found.strides == array.strides
        assert found.flags.writeable == array.flags.writeable


def test_an_arrow_table_in_a_mapped_file_is_not_copied(tmp_path: Path) -> None:
    """As Hugging Face's datasets have it."""
    table = pa.table({"n": np.arange(1 << 20)})
    with pa.OSFile(str(tmp_path / "t.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    with pa.memory_map(str(tmp_path / "t.arrow")) as source:
        mapped = pa.ipc.open_file(source).read_all()
        found, nbytes = sent(mapped)

        assert nbytes < LARGE
        assert found.equals(table)


def test_what_is_written_to_a_shared_mapping_is_seen_by_all(file: Path) -> None:
    """A cache in a file is one cache."""
    array = np.memmap(file, np.uint16, "r+")
    found, _ = sent(array)
    found[3] = 7

    assert array[3] == 7
    array[4] = 8
    assert found[4] == 8


def test_what_is_written_to_a_mapping_of_ones_own_stays_there(file: Path) -> None:
    """Copies are made of what is written to, on both sides."""
    found, _ = sent(np.memmap(file, np.uint16, "c"))
    found[3] = 7

    assert np.fromfile(file, np.uint16, 4).tolist() == [0, 0, 0, 0]


def test_what_was_written_to_a_mapping_of_ones_own_is_copied(tmp_path: Path) -> None:
    """The file has something else there."""
    np.zeros(LARGE, np.uint8).tofile(tmp_path / "file")
    array = np.memmap(tmp_path / "file", np.uint8, "c")
    array[5] = 1
    found, nbytes = sent(array)

    assert nbytes >= LARGE
    assert found[:8].tolist() == [0, 0, 0, 0, 0, 1, 0, 0]


@pytest.mark.parametrize("what", ["deleted", "replaced"])
@pytest.mark.parametrize("is_open", [True, False])
def test_a_mapped_file_that_is_gone_is_copied_unless_it_is_open(what: str, is_open: bool, tmp_path: Path) -> None:
    """What is mapped is still there; a descriptor leads to it."""
    path = tmp_path / "file"
    np.full(LARGE, 3, np.uint8).tofile(path)
    fd = os.open(path, os.O_RDONLY)
    array = map_bytes(fd, LARGE, "r")
    if not is_open:
        os.close(fd)
    path.unlink()
    if what == "replaced":
        np.full(LARGE, 4, np.uint8).tofile(path)
    found, nbytes = sent(array)
    if is_open:
        os.close(fd)

    assert (nbytes >= LARGE) is not is_open
    assert found.min() == found.max() == 3


def test_a_mapped_file_that_is_replaced_on_the_way_is_an_error(tmp_path: Path) -> None:
    """Another one of its name has something else in it."""
    path, other = tmp_path / "file", tmp_path / "other"
    for each in (path, other):
        np.zeros(LARGE, np.uint8).tofile(each)
    payload = make_payload(np.memmap(path, np.uint8, "r"), set())
    other.rename(path)
    try:
        with pytest.raises(FileNotFoundError, match="was replaced"):
            bytes_at(payload.layout.pieces, payload.fd, [])
    finally:
        payload.close()


@pytest.mark.parametrize("access", [mmap.ACCESS_READ, mmap.ACCESS_WRITE, mmap.ACCESS_COPY])
def test_a_mapping_itself_is_made_again(access: int, file: Path) -> None:
    """With its place, and writable or not as it was."""
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), LARGE, access=access, offset=1 << 16) as mapped:
        mapped.seek(100)
        found, nbytes = sent(mapped)
        with found:
            assert (len(found), found.tell(), nbytes < LARGE) == (LARGE, 100, True)
            if access == mmap.ACCESS_READ:
                with pytest.raises(TypeError):
                    found[0] = 1
            else:
                found[0] = 1
                assert mapped[0] == (1 if access == mmap.ACCESS_WRITE else 0)


def test_memory_that_is_mapped_from_no_file_is_refused() -> None:
    """It is this process's alone."""
    with mmap.mmap(-1, LARGE) as mapped, pytest.raises(NotPicklable, match="mmap"):
        make_payload(Holder(mapped), set())


# -- memory that processes share -----------------------------------------------------------------------------------


SHARED: dict[str, Callable[[int], Any]] = {
    "a tensor": lambda n: torch.zeros(n).share_memory_(),
    "a part of a tensor": lambda n: torch.zeros(n + 9).share_memory_()[9:],
    "a multiprocessing.Array": lambda n: np.ctypeslib.as_array(mp.Array(ctypes.c_float, n).get_obj()),
    "a multiprocessing.RawArray": lambda n: np.frombuffer(mp.RawArray(ctypes.c_double, n)),
}


@pytest.mark.parametrize("what", SHARED)
@pytest.mark.parametrize("length", [1, 100, LARGE])
def test_memory_that_processes_share_stays_shared(what: str, length: int) -> None:
    """A flag that the trainer sets, or a cache that workers fill, is one flag and one cache, however small."""
    array = SHARED[what](length)
    found, nbytes = sent(array)
    found[0] = 7
    assert array[0] == 7
    array[-1] = 8
    assert found[-1] == 8
    assert nbytes < LARGE
    assert type(found) is type(array)


def test_what_is_empty_or_small_travels_beside_shared_memory() -> None:
    """It is looked at, and is nobody's but its own."""
    shared, alone = torch.zeros(3).share_memory_(), np.arange(5)
    (_, empty, nothing, found), _ = sent((shared, np.empty((0, 3)), torch.empty(0), alone))
    found[0] = 7

    assert (empty.shape, tuple(nothing.shape), int(alone[0])) == ((0, 3), (0,), 0)


def test_two_views_of_shared_memory_are_of_the_same() -> None:
    """Also if they overlap."""
    tensor = torch.zeros(100).share_memory_()
    (one, two), _ = sent((tensor, tensor[50:]))
    one[60] = 3

    assert (float(two[10]), float(tensor[60])) == (3, 3)


def test_more_pieces_of_shared_memory_than_descriptors_can_be_sent_are_copied_with_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The kernel limits how many are on their way."""
    tensors = [torch.full((3,), float(i)).share_memory_() for i in range(120)]
    found, _ = sent(tensors)
    for tensor in found:
        tensor += 1000

    assert [int(tensor[1]) for tensor in found] == list(range(1000, 1120))
    assert [int(tensor[1]) >= 1000 for tensor in tensors] == [i < 100 for i in range(120)]
    assert (
        "12 bytes of the dataset are in shared memory that workers cannot reopen; each worker gets a private copy"
        in caplog.text
    )


def test_shared_memory_that_nothing_leads_to_is_copied_with_a_word(caplog: pytest.LogCaptureFixture) -> None:
    """Only forks could have it."""
    array = np.frombuffer(mmap.mmap(-1, 800))
    found, _ = sent(array)
    found[0] = 1

    assert array[0] == 0
    assert "are in shared memory that workers cannot reopen" in caplog.text


def test_batches_are_copied_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    """They stand in shared memory, too, but belong to whoever got them."""
    fd = create("antifreeze-batch", LARGE)
    array = map_bytes(fd, LARGE)
    os.close(fd)
    found, nbytes = sent(array)
    found[0] = 1

    assert (array[0], nbytes >= LARGE, caplog.text) == (0, True, "")


class Holder:
    """Has something."""

    def __init__(self, value: Any) -> None:
        self.value = value


@pytest.mark.parametrize(
    ("settings", "libraries"),
    [({"format": "torch"}, ("torch",)), ({"format": "numpy"}, ()), ({"folder": "/data/torch/x"}, ())],
)
def test_a_setting_says_that_workers_will_import_torch(settings: dict[str, str], libraries: tuple[str, ...]) -> None:
    """Then it is imported once, before workers are forked."""
    assert make_payload(settings, set()).libraries == libraries


@pytest.mark.parametrize("items", [[(f"path {i}", i) for i in range(60_000)], ["\N{SNOWMAN}"] * 60_000, [""] * 60_000])
def test_a_payload_with_large_lists_is_the_same_until_an_item_changes(items: list[Any]) -> None:
    """Also if the list before it has changed: its columns are in the memory of the payload then."""
    program = types.SimpleNamespace(first=list(range(60_000)), again=items, items=items)
    payload = make_payload(program, set())
    assert make_payload(program, set(), payload) is payload

    program.first[3] = 5
    changed = make_payload(program, set(), payload)
    assert changed is not payload
    assert make_payload(program, set(), changed) is changed
    found = load_payload(changed.layout, changed.fds())
    assert found.again is found.items
    assert (found.first[3], list(found.items)) == (5, items)
