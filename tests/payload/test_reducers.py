"""What pickle refuses is made anew in a worker, and does there what it did."""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import fnmatch
import functools
import io
import os
import pickle
import tarfile
import threading
import types
import weakref
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from antifreeze import NotPicklable
from antifreeze.payload._payload import bytes_at, make_payload


def sent(*parts: Any) -> Any:
    """Return what a worker gets of these; functions and classes of this module go by value."""
    payload = make_payload(types.SimpleNamespace(parts=parts), {__name__})
    try:
        head, *buffers = bytes_at(payload.layout.pieces, payload.fd, [])
        program = pickle.loads(head.data, buffers=buffers)  # noqa: S301  we wrote it
    finally:
        payload.close()
    return program.parts if len(parts) > 1 else program.parts[0]


# -- caches of functions -------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=7, typed=True)
def fibonacci(n: int) -> int:
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


class Cached:
    """Caches in all ways."""

    def __init__(self) -> None:
        self.load = functools.lru_cache(maxsize=3)(self._load)

    def _load(self, i: int) -> int:
        return i + 1

    @functools.cache  # noqa: B019  what people write
    def square(self, i: int) -> int:
        return i * i

    @functools.cached_property
    def table(self) -> list[int]:
        return [1, 2, 3]


def test_a_cached_function_of_a_script_begins_empty_and_keeps_its_options() -> None:
    assert fibonacci(30) == 832040
    found = sent(fibonacci)

    assert found is not fibonacci
    assert found.cache_info().currsize == 0
    assert found.cache_parameters() == {"maxsize": 7, "typed": True}
    assert found(30) == 832040
    assert found.cache_info().currsize == 7, "it calls itself by its name, through the cache"


def test_cached_methods_are_those_of_the_object_that_was_sent() -> None:
    before = Cached()
    before.load(1)
    found = sent(before)

    assert (found.load(4), found.square(4), found.table) == (5, 16, [1, 2, 3])
    assert found.load.__wrapped__.__self__ is found


def test_a_cached_function_that_can_be_imported_is_itself() -> None:
    """It is not the user's to be copied: here, one of the standard library."""
    assert sent(fnmatch._compile_pattern) is fnmatch._compile_pattern


@functools.singledispatch
def described(_: object) -> str:
    return "something"


@described.register
def _(value: int) -> str:
    return f"number {value}"


def test_a_generic_function_finds_its_implementations() -> None:
    described(3)
    found = sent(described)

    assert (found(3), found("x")) == ("number 3", "something")


# -- references and variables --------------------------------------------------------------------------------------


class Thing:
    """Can be referred to."""


def test_weak_references_are_to_what_was_sent_beside_them() -> None:
    thing, gone = Thing(), weakref.ref(Thing())
    values, keys = weakref.WeakValueDictionary({"a": thing}), weakref.WeakKeyDictionary({thing: "a"})
    found, reference, dead, by_name, by_thing, group = sent(
        thing, weakref.ref(thing), gone, values, keys, weakref.WeakSet([thing])
    )

    assert reference() is found
    assert dead() is None
    assert dict(by_name) == {"a": found}
    assert dict(by_thing) == {found: "a"}
    assert list(group) == [found]


def test_what_is_only_held_weakly_is_gone() -> None:
    thing = Thing()
    reference, group = sent(weakref.ref(thing), weakref.WeakSet([thing]))

    assert reference() is None
    assert not group


@pytest.mark.parametrize("default", [(), (5,)])
@pytest.mark.parametrize("value", [(), (7,)])
def test_a_context_variable_has_its_default_and_its_value(default: tuple[int, ...], value: tuple[int, ...]) -> None:
    variable = contextvars.ContextVar[int]("depth", **({"default": default[0]} if default else {}))
    for each in value:
        variable.set(each)
    found, again = sent(variable, variable)

    assert found is again
    assert found.name == "depth"
    assert found.get("nothing") == (*value, *default, "nothing")[0]
    assert contextvars.Context().run(found.get, "nothing") == "nothing"
    if default:
        assert contextvars.Context().run(found.get) == default[0]


def test_a_read_only_mapping_is_one() -> None:
    found = sent(types.MappingProxyType({"a": [1]}))

    assert type(found) is types.MappingProxyType
    assert found == {"a": [1]}


# -- native libraries ----------------------------------------------------------------------------------------------


def test_a_library_knows_the_types_of_its_functions() -> None:
    library = ctypes.CDLL(None, use_errno=True)
    library.strtod.restype = ctypes.c_double
    library.strtod.argtypes = [ctypes.c_char_p, ctypes.POINTER(ctypes.c_char_p)]
    found, pointer = sent(library, ctypes.POINTER(ctypes.c_int))

    assert found.strtod(b"2.5", None) == 2.5
    assert found.strtod.argtypes == library.strtod.argtypes
    assert pointer is ctypes.POINTER(ctypes.c_int)
    assert type(sent(ctypes.PyDLL(None))) is ctypes.PyDLL


# -- files ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "some bytes"
    path.write_bytes(bytes(range(100)))
    return path


@pytest.mark.parametrize("buffering", [-1, 0])
def test_an_open_file_is_opened_again_at_its_place(file: Path, buffering: int) -> None:
    with file.open("rb", buffering=buffering) as before:
        before.seek(10)
        found, again = sent(before, before)
        with found:
            assert found is again
            assert type(found) is type(before)
            assert found.fileno() != before.fileno()
            assert found.read(3) == b"\x0a\x0b\x0c"
            assert before.tell() == 10, "each has a place of its own"


def test_a_file_that_was_replaced_is_not_taken_for_it(file: Path) -> None:
    with file.open("rb") as before:
        payload = make_payload(types.SimpleNamespace(file=before), set())
        try:
            (file.parent / "other").write_bytes(b"other")
            (file.parent / "other").rename(file)
            head, *_ = bytes_at(payload.layout.pieces, payload.fd, [])
            with pytest.raises(FileNotFoundError, match="dataset has open was replaced"):
                pickle.loads(head.data)  # noqa: S301  we wrote it
        finally:
            payload.close()


@pytest.mark.parametrize("kind", ["deleted", "for writing", "a pipe"])
def test_other_files_are_refused_by_name(file: Path, kind: str) -> None:
    if kind == "a pipe":
        ends = os.pipe()
        os.close(ends[1])
        before: Any = io.FileIO(ends[0])
    else:
        before = file.open("r+b" if kind == "for writing" else "rb")
    with before:
        if kind == "deleted":
            file.unlink()
        with pytest.raises(NotPicklable, match=r"parts\[0\] \(a _io\."):
            sent(before)


def test_archives_can_be_read(tmp_path: Path) -> None:
    names = [f"{i}.txt" for i in range(5)]
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive, tarfile.open(tmp_path / "a.tar", "w") as tape:
        for name in names:
            archive.writestr(name, name)
            (tmp_path / name).write_text(name)
            tape.add(tmp_path / name, name)
    np.savez(tmp_path / "a.npz", x=np.arange(3), y=np.arange(4))
    with (
        zipfile.ZipFile(tmp_path / "a.zip") as one,
        tarfile.open(tmp_path / "a.tar") as two,
        np.load(tmp_path / "a.npz") as three,
    ):
        two.getnames()
        first, second, third = sent(one, two, three)
        with first, second, third:
            assert [first.read(name).decode() for name in reversed(names)] == names[::-1]
            assert [second.extractfile(name).read().decode() for name in reversed(names)] == names[::-1]
            assert third["y"].tolist() == [0, 1, 2, 3]
        assert one.read("3.txt") == b"3.txt"


# -- event loops ---------------------------------------------------------------------------------------------------


async def doubled(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


def test_an_event_loop_that_ran_in_a_thread_runs_in_one() -> None:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(doubled(1), loop).result(60)
        found, again = sent(loop, loop)
        assert found is again is not loop
        assert asyncio.run_coroutine_threadsafe(doubled(4), found).result(60) == 8
        (inner,) = [t for t in threading.enumerate() if t.name == "event-loop"]
        found.call_soon_threadsafe(found.stop)
        inner.join(60)
        found.close()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()


def test_an_event_loop_that_did_not_run_is_a_fresh_one() -> None:
    loop = asyncio.new_event_loop()
    found = sent(loop)
    try:
        assert found.run_until_complete(doubled(4)) == 8
    finally:
        found.close()
        loop.close()


# -- objects that ask another one for what they do not have ---------------------------------------------------------


class Wrapper:
    """As datasets that add something to another one are written."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class Slotted(Wrapper):
    """Has something that is not in its ``__dict__``."""

    __slots__ = ("__hidden",)

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.__hidden = 4

    def hidden(self) -> int:
        return self.__hidden


class Frozen(Wrapper):
    """Can be set once."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "inner" or "inner" in self.__dict__:
            raise AttributeError("frozen")
        super().__setattr__(name, value)


class Restored(Wrapper):
    """Has a say."""

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state, restored=True)


@pytest.mark.parametrize("kind", [Wrapper, Slotted, Frozen])
def test_a_wrapper_can_be_rebuilt_though_it_has_nothing_to_ask_yet(kind: type[Wrapper]) -> None:
    found = sent(kind(kind(Cached())))

    assert type(found.inner).__name__ == kind.__name__
    assert found.square(5) == 25
    if kind is Slotted:
        assert found.hidden() == 4


def test_a_wrapper_that_knows_how_it_is_rebuilt_is_asked() -> None:
    assert sent(Restored([1])).restored


# -- what is left --------------------------------------------------------------------------------------------------


def test_semaphores_made_for_forks_are_refused_with_what_to_do() -> None:
    import multiprocessing

    with pytest.raises(NotPicklable, match="SemLock") as caught:
        sent(multiprocessing.get_context("fork").Event())

    assert "get_context('spawn')" in str(caught.value)


# -- compiled models -----------------------------------------------------------------------------------------------


class Scaled(torch.nn.Module):
    """Something to compile."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(3.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight if self.training else x


@pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated")
def test_a_compiled_model_travels_as_it_would_be_saved() -> None:
    before = torch.jit.script(Scaled()).eval()
    traced = torch.jit.trace(Scaled(), torch.ones(3))
    found, second = sent(before, traced)

    assert isinstance(found, torch.jit.ScriptModule)
    assert not found.training
    assert torch.equal(found(torch.ones(3)), torch.ones(3))
    assert torch.equal(found.train()(torch.ones(3)), torch.arange(3.0))
    assert torch.equal(second(torch.ones(3)), torch.arange(3.0))


@pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated")
def test_a_compiled_function_can_be_called() -> None:
    function = torch.jit.trace(lambda x: x + 1, torch.ones(2))
    assert torch.equal(sent(function)(torch.zeros(2)), torch.ones(2))
