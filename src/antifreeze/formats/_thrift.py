"""Thrift's compact protocol, read from untrusted bytes: footers and page headers of Parquet files.

Every length and count in such bytes is a claim. Guaranteed, whatever the bytes are:

- time is linear in the bytes that are read, and no single call into C covers more than about a megabyte, so that
  signals are handled and other threads run;
- memory is bounded by the bytes that are read: a count is compared with the bytes that are left before it is believed;
- nesting is followed for at most ``MAX_DEPTH`` levels;
- everything odd is a ``ValueError``: bytes missing, an unknown type, a negative length, a number of more than 64 bits,
  a field that occurs twice, or a known field of another type.

A struct is a sequence of fields, ended by a zero byte. A field's header has its type in the low half of a byte and,
in the high half, how much larger its number is than that of the field before it (0: the number follows).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Any

MAX_DEPTH = 32
MAX_ELEMENTS = 65_536


class Wire(IntEnum):
    """The types of values. Maps (11) do not occur in Parquet, and are refused like any unknown type."""

    TRUE = 1
    FALSE = 2
    BYTE = 3
    I16 = 4
    I32 = 5
    I64 = 6
    DOUBLE = 7
    BINARY = 8
    LIST = 9
    SET = 10
    STRUCT = 12


_BOOLS = (Wire.TRUE, Wire.FALSE)
_INTS = (Wire.I16, Wire.I32, Wire.I64)
_LISTS = (Wire.LIST, Wire.SET)
_FIXED_NBYTES = {Wire.TRUE: 1, Wire.FALSE: 1, Wire.BYTE: 1, Wire.DOUBLE: 8}
_SMALLEST_NBYTES = {**dict.fromkeys(Wire, 1), **_FIXED_NBYTES}
_WIRES = {int(wire): wire for wire in Wire}

# Regular expressions for small values. They match exactly what the methods below accept, only 5 to 10 times faster:
# one call into C instead of a few Python instructions for every byte.
# Invariant: all repeats are bounded and possessive, so that there is no backtracking and no long call.
VARINT = rb"[\x80-\xff]{0,8}+[\x00-\x7f]"
SHORT_BINARY = b"(?:" + b"|".join(rb"\x%02x.{%d}" % (n, n) for n in range(64)) + b")"


def field_of(*wires: Wire) -> bytes:
    """Return a pattern for the header of a field of one of the types, whose number is 1 to 15 above the last."""
    return b"[" + b"".join(rb"\x%02x" % (delta << 4 | wire) for delta in range(1, 16) for wire in wires) + b"]"


def short_list(wire: Wire, item: bytes, max_items: int) -> bytes:
    """Return a pattern for a list of at most ``max_items`` items, including its header."""
    return b"(?:" + b"|".join(rb"\x%02x(?:%s){%d}" % (n << 4 | wire, item, n) for n in range(max_items + 1)) + b")"


_SCALAR_FIELD = b"|".join(
    (field_of(*_INTS) + VARINT, field_of(Wire.BINARY) + SHORT_BINARY, field_of(*_BOOLS), field_of(Wire.BYTE) + b".")
)
_INTS_FIELD = (
    field_of(Wire.LIST) + b"(?:" + short_list(Wire.I32, VARINT, 6) + b"|" + short_list(Wire.I64, VARINT, 6) + b")"
)
FLAT_STRUCT = rb"(?:%s|%s){0,32}+\x00" % (_SCALAR_FIELD, _INTS_FIELD)
SMALL_FIELD = b"(?:%s|%s|%s|%s)" % (
    _SCALAR_FIELD,
    _INTS_FIELD,
    field_of(Wire.STRUCT) + FLAT_STRUCT,
    field_of(Wire.LIST) + short_list(Wire.STRUCT, FLAT_STRUCT, 4),
)
# A struct in a struct in a struct: the elements of a schema have a type that is one.
_UNION = rb"(?:%s|%s){0,2}+\x00" % (field_of(Wire.STRUCT) + FLAT_STRUCT, _SCALAR_FIELD)
_SMALL_STRUCT = re.compile(rb"(?:%s|%s){0,32}+\x00" % (_SCALAR_FIELD, field_of(Wire.STRUCT) + _UNION), re.DOTALL)


def signed(data: bytes) -> int:
    """Return the number that a match of ``VARINT`` encodes."""
    number = shift = 0
    for byte in data:
        number |= (byte & 0x7F) << shift
        shift += 7
    return _unzigzag(number)


def _unzigzag(number: int) -> int:
    """Return the signed number; its sign is the lowest bit."""
    return (number >> 1) ^ -(number & 1)


class CompactReader:
    """Reads values one after the other from ``data``; ``position`` is where the next one starts.

    Example:
        >>> CompactReader(bytes([0x15, 0x0A, 0x18, 0x01, 0x78, 0x00])).read_struct()
        {1: 5, 2: b'x'}
    """

    def __init__(self, data: bytes, position: int = 0) -> None:
        self.data = data
        self.position = position
        self._values_left = 0

    def read_varint(self) -> int:
        """Return an unsigned number of at most 64 bits."""
        number = shift = 0
        for byte in self.data[self.position : self.position + 10]:
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80 and not number >> 64:
                self.position += shift // 7
                return number
        self._byte(self.position + 9)
        raise ValueError(f"a number at byte {self.position} has more than 64 bits")

    def read_int(self) -> int:
        """Return a signed number of at most 64 bits."""
        return _unzigzag(self.read_varint())

    def read_binary(self) -> bytes:
        """Return a byte string; never more than the data holds."""
        count = self.read_varint()
        start = self.position
        self._advance(count)
        return self.data[start : start + count]

    def read_list_header(self) -> tuple[Wire, int]:
        """Return the type and the number of the items of a list, which fit into what is left of the data."""
        head = self._byte(self.position)
        self.position += 1
        wire, count = self._wire(head & 0x0F), head >> 4
        if count == 15:
            count = self.read_varint()
        self._check_count(count, _SMALLEST_NBYTES[wire])
        return wire, count

    def fields(self) -> Iterator[tuple[int, Wire]]:
        """Yield number and type of each field of a struct; the caller reads or skips the value before the next one."""
        seen: set[int] = set()
        number = 0
        while True:
            head = self._byte(self.position)
            self.position += 1
            if head == 0:
                return
            number = number + (head >> 4) if head >> 4 else self.read_int()
            if number in seen:
                raise ValueError(f"field {number} occurs twice in one struct")
            if not -(2**15) <= number < 2**15:
                raise ValueError(f"a field has the number {number}")
            seen.add(number)
            yield number, self._wire(head & 0x0F)

    def read_struct(self, max_elements: int = MAX_ELEMENTS) -> dict[int, Any]:
        """Return all fields of a struct by number: bool, int, float, bytes, list, or dict for a struct.

        Raises:
            ValueError: the bytes are no struct, are nested deeper than ``MAX_DEPTH``, or have more than
                ``max_elements`` values.
        """
        self._values_left = max_elements
        return self._struct(MAX_DEPTH)

    def skip(self, wire: Wire, depth: int = MAX_DEPTH) -> None:
        """Move behind the value of a field."""
        if wire is Wire.STRUCT:
            if (found := _SMALL_STRUCT.match(self.data, self.position)) is not None:
                self.position = found.end()
                return
            inner = self._deeper(depth)
            for _, field_wire in self.fields():
                self.skip(field_wire, inner)
        elif wire in _LISTS:
            item, count = self.read_list_header()
            inner = self._deeper(depth)
            if item in _FIXED_NBYTES:
                self._advance(_FIXED_NBYTES[item] * count)
            else:
                for _ in range(count):
                    self.skip(item, inner)
        elif wire in _INTS:
            self.read_varint()
        elif wire is Wire.BINARY:
            self._advance(self.read_varint())
        elif wire not in _BOOLS:  # of a field that is one, the type is the value
            self._advance(_FIXED_NBYTES[wire])

    def _struct(self, depth: int) -> dict[int, Any]:
        return {
            number: (wire is Wire.TRUE) if wire in _BOOLS else self._value(wire, depth)
            for number, wire in self.fields()
        }

    def _value(self, wire: Wire, depth: int) -> Any:
        self._values_left -= 1
        if self._values_left < 0:
            raise ValueError("a struct has more values than are read of one")
        inner = self._deeper(depth)
        if wire in _INTS:
            return self.read_int()
        if wire is Wire.BINARY:
            return self.read_binary()
        if wire is Wire.STRUCT:
            return self._struct(inner)
        if wire in _LISTS:
            item, count = self.read_list_header()
            return [self._value(item, inner) for _ in range(count)]
        start = self.position
        self._advance(_FIXED_NBYTES[wire])
        if wire is Wire.DOUBLE:
            return struct.unpack_from("<d", self.data, start)[0]
        byte = self.data[start]
        return byte == Wire.TRUE if wire in _BOOLS else byte

    def _deeper(self, depth: int) -> int:
        if depth < 1:
            raise ValueError(f"values are nested more than {MAX_DEPTH} deep")
        return depth - 1

    def _byte(self, position: int) -> int:
        try:
            return self.data[position]
        except IndexError:
            raise ValueError(f"the data ends at byte {len(self.data)}, inside a value") from None

    def _wire(self, code: int) -> Wire:
        try:
            return _WIRES[code]
        except KeyError:
            raise ValueError(f"a value before byte {self.position} has the unknown type {code}") from None

    def _advance(self, count: int) -> None:
        self._check_count(count, 1)
        self.position += count

    def _check_count(self, count: int, nbytes: int) -> None:
        left = len(self.data) - self.position
        if count * nbytes > left:
            raise ValueError(f"{count:,} items of at least {nbytes} bytes are claimed, and {left:,} bytes are left")
