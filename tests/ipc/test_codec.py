"""Whatever user code makes arrives as it was: types, values, strides; and belongs to the receiver alone."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from objects import Box, Pair

from antifreeze.ipc import Inbox, Outbox, Packed, dump, fingerprint, pack, unpack, unshare

SMALL, LARGE = 7, 9_000
"""Numbers of items: those of the one stay in the pickle, those of the other travel in a segment."""


class Wire:
    """A sender and a receiver, with everything between them."""

    def __init__(self) -> None:
        self.outbox, self.inbox = Outbox(), Inbox()

    def send(self, value: object) -> Packed:
        """Do what a worker does with a batch. The caller must hold it no more, or get a copy."""
        packed = pack(*dump(value), self.outbox)
        del value
        packed = unshare(packed, self.outbox)
        self.outbox.sent(packed.pieces)
        news = self.outbox.drain_updates()
        self.inbox.apply(news.opened, news.fds, news.dropped)
        return packed

    def carry(self, value: object) -> Any:
        """Return what arrives."""
        return unpack(self.send(value), self.inbox)

    def settle(self) -> None:
        """Tell the sender what the receiver is done with."""
        self.outbox.returned(self.inbox.take_done())


# -- what there is to send -----------------------------------------------------------------------------------------

NUMPY = [np.dtype(name) for name in "?bBhHiIqQefdFD"] + [
    np.dtype(">i4"),
    np.dtype("M8[s]"),
    np.dtype("m8[D]"),
    np.dtype("S3"),
    np.dtype("U5"),
    np.dtype([("a", "i4"), ("b", "f8", (2,))]),
]
TORCH = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32]
TORCH += [torch.float64, torch.bfloat16, torch.complex64, torch.complex128, torch.uint16, torch.uint32, torch.uint64]
TORCH += [torch.float8_e4m3fn, torch.float8_e5m2]
SHAPES: Any = st.sampled_from(
    [(), (0,), (1,), (SMALL,), (0, 5), (3, 0, 2), (2, 3), (1, 1, 4), (LARGE,), (3, LARGE), (2, 3, 41, 43), (LARGE, 1)]
)


def array_of(shape: tuple[int, ...], dtype: np.dtype[Any], seed: int) -> Any:
    raw = np.random.default_rng(seed).bytes(int(np.prod(shape)) * dtype.itemsize)
    if dtype.kind == "b":
        return np.frombuffer(bytes(b & 1 for b in raw), dtype).reshape(shape).copy()
    if dtype.kind == "U":
        return np.frombuffer(raw, np.uint32).__mod__(1000).astype(np.uint32).view(dtype).reshape(shape).copy()
    return np.frombuffer(raw, dtype).reshape(shape).copy()


ARRANGED: dict[str, Callable[[Any], Any]] = {
    "as it is": lambda a: a,
    "every second": lambda a: np.repeat(a, 2, axis=-1)[..., ::2] if a.ndim else a,
    "backwards": lambda a: a[::-1] if a.ndim else a,
    "transposed": lambda a: a.T,
    "Fortran": np.asfortranarray,
    "broadcast": lambda a: np.broadcast_to(a, (2, *a.shape)),
    "read-only": lambda a: (a.setflags(write=False), a)[1],
    "a part": lambda a: np.concatenate([a, a])[len(a) :] if a.ndim else a,
}


@st.composite
def arrays(draw: Any) -> Any:
    array = array_of(draw(SHAPES), draw(st.sampled_from(NUMPY)), draw(st.integers(0, 99)))
    return ARRANGED[draw(st.sampled_from(sorted(ARRANGED)))](array)


TURNED: dict[str, Callable[[Any], Any]] = {
    "as it is": lambda t: t,
    "every second": lambda t: t.repeat_interleave(2, -1)[..., ::2] if t.dim() and t.dtype in _STRONG else t,
    "transposed": lambda t: t.transpose(0, -1) if t.dim() > 1 else t,
    "channels last": lambda t: t.to(memory_format=torch.channels_last) if t.dim() == 4 else t,
    "expanded": lambda t: t.expand(2, *t.shape),
    "a part": lambda t: t[1:] if t.dim() else t,
    "a leaf": lambda t: t.requires_grad_() if t.dtype.is_floating_point else t,
    "a parameter": lambda t: torch.nn.Parameter(t, requires_grad=t.dtype.is_floating_point),
    "permuted": lambda t: t.permute(*range(1, t.dim()), 0) if t.dim() > 2 else t,
}
_STRONG = set(TORCH[:9])


@st.composite
def tensors(draw: Any) -> Any:
    shape, dtype = draw(SHAPES), draw(st.sampled_from(TORCH))
    raw = array_of((*shape, dtype.itemsize), np.dtype("B"), draw(st.integers(0, 99)))
    if dtype is torch.bool:
        raw &= 1
    flat = torch.from_numpy(raw.reshape(-1))
    tensor = flat.view(dtype).reshape(shape) if flat.numel() else torch.empty(shape, dtype=dtype)
    return TURNED[draw(st.sampled_from(sorted(TURNED)))](tensor)


class Own:
    """A class of the test's own module."""

    def __init__(self, content: Any) -> None:
        self.content = content


def local_class() -> Any:
    class Local:
        def __init__(self, content: Any) -> None:
            self.content = content

    return Local


LOCAL = local_class()
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.binary(max_size=9)
LONG = st.sampled_from([b"x" * 200_000, "y" * 200_000, bytearray(200_000), list(range(50_000))])
OBJECTS = st.recursive(
    PLAIN | arrays() | tensors() | LONG,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        | st.builds(Own, inner)
        | st.builds(LOCAL, inner)
        | st.builds(Box, inner)
        | st.builds(Pair, inner, inner)
    ),
    max_leaves=6,
)


def same(one: Any, two: Any) -> bool:
    """Tell whether these are equal in every way that user code can see."""
    if type(one) is not type(two):
        return False
    if isinstance(one, torch.Tensor):
        return _same_tensor(one, two)
    if isinstance(one, np.ndarray):
        return one.dtype == two.dtype and one.shape == two.shape and one.tobytes() == two.tobytes()
    if isinstance(one, dict):
        return list(one) == list(two) and all(same(one[key], two[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(two) and all(map(same, one, two))
    if isinstance(one, (Own, LOCAL, Box)):
        return same(one.content, two.content)
    return repr(one) == repr(two)


def _same_tensor(one: Any, two: Any) -> bool:
    facts = [(t.dtype, t.shape, t.requires_grad, t.is_contiguous()) for t in (one, two)]
    raws = [t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (one, two)]
    # Strides are kept where the memory has no holes in it; a view with holes comes as a plain tensor.
    strides = [[stride for stride, size in zip(t.stride(), t.shape, strict=True) if size > 1] for t in (one, two)]
    alike = strides[0] == strides[1] or one.numel() == 0 or not (_is_dense(one) and _is_dense(two))
    return (facts[0][:3] == facts[1][:3]) and bool(torch.equal(*raws)) and alike


def _is_dense(tensor: Any) -> bool:
    return bool(tensor.detach().clone(memory_format=torch.preserve_format).stride() == tensor.stride())


def buffers_of(value: Any) -> list[Any]:
    """Return all arrays and tensors in an object, as arrays."""
    if isinstance(value, torch.Tensor):
        return (
            [value.detach().view(torch.uint8).numpy()]
            if value.numel() and value.is_contiguous() and value.dim()
            else []
        )
    if isinstance(value, np.ndarray):
        return [value]
    if isinstance(value, dict):
        return [b for v in value.values() for b in buffers_of(v)]
    if isinstance(value, (list, tuple)):
        return [b for v in value for b in buffers_of(v)]
    return buffers_of(value.content) if isinstance(value, (Own, LOCAL, Box)) else []


# -- what arrives --------------------------------------------------------------------------------------------------


@given(OBJECTS)
@example(torch.zeros(2, 3, 60, 60).to(memory_format=torch.channels_last))
@example(np.broadcast_to(np.float32(1), (200, 200)))
def test_an_object_arrives_as_it_was(value: Any) -> None:
    """Nested, of any type, in any order of memory."""
    assert same(Wire().carry(value), value)


@given(OBJECTS)
def test_what_arrives_can_be_written_to_and_reaches_nobody(value: Any) -> None:
    """The sender's own objects stay as they were, and so does what the sender changes later."""
    before = Wire().carry(value)
    found = Wire().carry(value)
    for buffer in buffers_of(found):
        assert buffer.flags.writeable
        if buffer.size:
            buffer.reshape(-1).view(np.uint8)[...] = 1
    assert same(value, before)
    for buffer in buffers_of(value):
        if buffer.size and buffer.flags.writeable and buffer.flags.c_contiguous:
            buffer.reshape(-1).view(np.uint8)[...] = 0
    assert all((b.reshape(-1).view(np.uint8) == 1).all() for b in buffers_of(found) if b.flags.c_contiguous)


@given(st.lists(OBJECTS, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_objects_that_are_kept_stay_while_others_come_and_go(values: list[Any], rng: Any) -> None:
    """Segments are used again, but not those of what somebody holds."""
    wire, kept = Wire(), []
    for value in values * 3:
        kept.append((value, wire.carry(value)))
        if rng.random() < 0.5:
            del kept[rng.randrange(len(kept))]
        wire.settle()
    assert all(same(found, value) for value, found in kept)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_a_large_buffer_is_read_where_it_stands(kind: str) -> None:
    """One copy in, and none out."""
    wire = Wire()
    value = np.arange(LARGE) if kind == "numpy" else torch.arange(LARGE)
    packed = wire.send(value)
    found = unpack(packed, wire.inbox)
    again = unpack(packed, wire.inbox)
    found[0] = -1

    assert int(again[0]) == -1


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_memory_that_was_lent_is_sent_without_a_copy(kind: str) -> None:
    """What is collated into it stands where the receiver reads it."""
    wire = Wire()
    lent = wire.outbox.lend(8 * LARGE)[: 8 * LARGE].view(np.int64)
    lent[...] = np.arange(LARGE)
    batch = [lent if kind == "numpy" else torch.from_numpy(lent)]
    del lent
    head, raws = dump(batch)
    batch.clear()
    packed = pack(head, raws, wire.outbox)
    raws.clear()
    assert unshare(packed, wire.outbox) is packed
    assert len(wire.outbox.drain_updates().opened) == 1


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("part", [slice(None), slice(100, 8000)])
def test_memory_that_user_code_has_kept_is_copied(kind: str, part: slice) -> None:
    """A cache in the worker must not change with the batch in the trainer, nor the batch with the cache."""
    wire, cache = Wire(), []
    lent = wire.outbox.lend(8 * LARGE)[: 8 * LARGE].view(np.int64)
    lent[...] = np.arange(LARGE)
    cache.append(lent if kind == "numpy" else torch.from_numpy(lent))
    del lent
    found = wire.carry([cache[0][part]])
    found[0][...] = -1

    assert cache[0].tolist() == list(range(LARGE))
    cache[0][...] = 7
    assert set(found[0].tolist()) == {-1}
    again = wire.carry([cache[0]])
    assert set(again[0].tolist()) == {7}


def test_a_class_that_no_module_has_is_the_same_class_each_time() -> None:
    """``isinstance`` in the training loop must go on working."""
    wire = Wire()
    found = [wire.carry(LOCAL(number)) for number in range(3)]

    assert {type(one) for one in found} == {LOCAL}


def test_what_cannot_be_sent_is_an_error_and_leaves_nothing_behind() -> None:
    """A lock, a generator: the error is pickle's own."""
    wire, fds = Wire(), len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for value in [iter([1]).__reduce__, (i for i in range(3)), [np.zeros(LARGE), open(os.devnull)]]:  # noqa: SIM115, PTH123
        if callable(value):
            continue
        with pytest.raises(TypeError):
            wire.carry(value)
        if isinstance(value, list):
            value[1].close()
    assert len(os.listdir("/proc/self/fd")) == fds  # noqa: PTH208


def test_a_batch_that_was_sent_outlives_both_sides() -> None:
    """Neither the sender nor its segments need to be there."""
    wire = Wire()
    found = wire.carry({"a": np.arange(LARGE), "b": torch.arange(LARGE), "c": b"x" * 200_000})
    del wire
    gc.collect()

    assert found["a"].tolist() == found["b"].tolist() == list(range(LARGE))


def test_memory_is_given_back_to_the_system() -> None:
    """When the last view has gone, on both sides."""

    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count("antifreeze-batch")

    gc.collect()
    before, wire = mapped(), Wire()
    kept = [wire.carry(np.arange(LARGE + number))[5:9] for number in range(9)]
    assert mapped() > before
    del wire
    gc.collect()
    assert mapped() == before + len(kept)
    kept.clear()
    gc.collect()
    assert mapped() == before


def test_thousands_of_batches_can_be_kept() -> None:
    """A mapping for each would meet the kernel's limit of 65,530."""
    wire = Wire()
    kept = [wire.carry(np.full(LARGE, number)) for number in range(1200)]
    wire.settle()

    assert len(Path("/proc/self/maps").read_text().splitlines()) < 5000
    assert all(int(batch[-1]) == number for number, batch in enumerate(kept))


# -- fingerprints --------------------------------------------------------------------------------------------------


@given(OBJECTS)
def test_equal_objects_have_equal_fingerprints(value: Any) -> None:
    """Also when they have been sent: that is how a share is known again."""
    assert fingerprint(*dump(value), 5) == fingerprint(*dump(value), 5)


@given(st.lists(st.integers(0, 9), max_size=5), st.lists(st.integers(0, 9), max_size=5))
def test_other_sequences_have_other_fingerprints(one: list[int], two: list[int]) -> None:
    """Each batch counts, in its order."""

    def print_of(values: list[int]) -> int:
        number = 0
        for value in values:
            number = fingerprint(*dump({"x": np.full(LARGE, value), "n": value}), number)
        return number

    assert (print_of(one) == print_of(two)) is (one == two)


@pytest.mark.parametrize("place", [0, 100, -1])
def test_a_change_at_the_ends_of_a_large_buffer_is_seen(place: int) -> None:
    """Its middle is not looked at: it is taken of every batch."""
    one, two = np.zeros(LARGE), np.zeros(LARGE)
    two[place] = 1

    assert fingerprint(*dump(one), 0) != fingerprint(*dump(two), 0)
