"""Thrift is read as it was written, and whatever else the bytes are is a ValueError."""

import struct
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antifreeze.formats import _thrift
from antifreeze.formats._thrift import MAX_DEPTH, CompactReader, Wire


def varint(number: int) -> bytes:
    out = b""
    while number > 0x7F:
        out, number = out + bytes([number & 0x7F | 0x80]), number >> 7
    return out + bytes([number])


def zigzag(number: int) -> bytes:
    return varint(number * 2 if number >= 0 else -number * 2 - 1)


def value_bytes(value: Any) -> tuple[Wire, bytes]:
    if isinstance(value, bool):
        return (Wire.TRUE if value else Wire.FALSE), b""
    if isinstance(value, int):
        return Wire.I64, zigzag(value)
    if isinstance(value, float):
        return Wire.DOUBLE, struct.pack("<d", value)
    if isinstance(value, bytes):
        return Wire.BINARY, varint(len(value)) + value
    if isinstance(value, dict):
        return Wire.STRUCT, struct_bytes(value)
    items = [value_bytes(item) for item in value]
    wire = items[0][0] if items else Wire.I64
    head = bytes([len(items) << 4 | wire]) if len(items) < 15 else bytes([0xF0 | wire]) + varint(len(items))
    return Wire.LIST, head + b"".join(data for _, data in items)


def struct_bytes(fields: dict[int, Any]) -> bytes:
    out, last = b"", 0
    for number, value in sorted(fields.items()):
        wire, data = value_bytes(value)
        head = bytes([number - last << 4 | wire]) if 0 < number - last < 16 else bytes([wire]) + zigzag(number)
        out, last = out + head + data, number
    return out + b"\0"


NUMBERS = st.integers(-(2**63), 2**63 - 1)
SCALARS = NUMBERS | st.booleans() | st.binary(max_size=90) | st.floats(allow_nan=False)
LISTS = st.lists(NUMBERS, max_size=20) | st.lists(st.binary(max_size=9), max_size=20)
STRUCTS = st.recursive(
    st.dictionaries(st.integers(1, 300), SCALARS | LISTS, max_size=6),
    lambda inner: st.dictionaries(st.integers(1, 300), SCALARS | inner | st.lists(inner, max_size=3), max_size=6),
    max_leaves=12,
)


@given(STRUCTS)
def test_a_struct_is_read_and_skipped_as_it_was_written(fields: dict[int, Any]) -> None:
    data = struct_bytes(fields)
    reader, skipper = CompactReader(b"##" + data, 2), CompactReader(data)

    assert reader.read_struct() == fields
    skipper.skip(Wire.STRUCT)

    assert (reader.position, skipper.position) == (len(data) + 2, len(data))


@given(STRUCTS, st.data())
def test_skipping_with_and_without_patterns_agrees(fields: dict[int, Any], data: Any) -> None:
    """The regular expressions only save time, whatever the bytes are."""
    changed = bytearray(struct_bytes(fields))
    changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))

    class Never:
        @staticmethod
        def match(*_: object) -> None:
            return None

    def skipped() -> int | None:
        reader = CompactReader(bytes(changed))
        try:
            reader.skip(Wire.STRUCT)
        except ValueError:
            return None
        return reader.position

    fast = skipped()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_thrift, "_SMALL_STRUCT", Never)
        assert skipped() == fast


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for action in (CompactReader.read_struct, lambda reader: reader.skip(Wire.STRUCT)):
        reader = CompactReader(data)
        try:
            action(reader)
        except ValueError:
            continue
        assert reader.position <= len(data)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "the data ends at byte 0"),
        (b"\x15", "the data ends at byte 1"),
        (b"\x1d\x00\x00", "unknown type 13"),
        (b"\x1b\x00\x00", "unknown type 11"),
        (b"\x18\x7fxx\x00", "127 items of at least 1 bytes are claimed, and 3 bytes are left"),
        (b"\x19\xfc\xff\xff\xff\xff\x07\x00", "2,147,483,647 items"),
        (b"\x16" + b"\xff" * 9 + b"\x02\x00", "more than 64 bits"),
        (b"\x16" + b"\xff" * 40 + b"\x00", "more than 64 bits"),
        (b"\x15\x02\x05\x02\x02\x00", "field 1 occurs twice"),
        (b"\x1c" * (MAX_DEPTH + 2) + b"\x00" * (MAX_DEPTH + 3), "nested more than"),
        (b"\x19" + b"\x19" * (MAX_DEPTH + 2) + b"\x03\x00", "nested more than"),
    ],
)
def test_what_is_odd_is_refused(data: bytes, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        CompactReader(data).read_struct()


def test_the_number_of_values_is_bounded() -> None:
    data = struct_bytes({1: [0] * 1000})

    assert len(CompactReader(data).read_struct(1001)[1]) == 1000
    with pytest.raises(ValueError, match="more values"):
        CompactReader(data).read_struct(1000)


def test_skipping_takes_time_linear_in_the_bytes() -> None:
    """Structs that are almost small, over and over: the worst for patterns that are tried first."""

    def taken_s(count: int) -> float:
        data = struct_bytes({1: [{1: b"x" * 60, 2: [{1: {1: {1: {1: 1}}}}]}] * count})
        began_s = time.thread_time()  # of this thread alone: what else the machine does must not matter
        CompactReader(data).skip(Wire.STRUCT)
        return time.thread_time() - began_s

    small = min(taken_s(1000) for _ in range(3))

    assert min(taken_s(16_000) for _ in range(3)) < 16 * 10 * small
