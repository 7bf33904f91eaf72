"""Rewrites single facts in the bytes of Parquet files: thrift's compact form, taken apart and put together again.

Written for these tests, and independent of how antifreeze reads such bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

BOOL_TRUE, BOOL_FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return an unsigned number and where it ends."""
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7


def write_varint(number: int) -> bytes:
    """Return an unsigned number."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def zigzag(number: int) -> int:
    return (number << 1) ^ (number >> 63)


def read_struct(data: bytes, at: int) -> tuple[dict[int, tuple[int, Any]], int]:
    """Return the fields of a struct, each with its type, and where it ends."""
    fields: dict[int, tuple[int, Any]] = {}
    number = 0
    while data[at]:
        head = data[at]
        at += 1
        if head >> 4:
            number += head >> 4
        else:
            raw, at = read_varint(data, at)
            number = (raw >> 1) ^ -(raw & 1)
        value, at = read_value(data, at, head & 15)
        fields[number] = (head & 15, value)
    return fields, at + 1


def read_value(data: bytes, at: int, kind: int) -> tuple[Any, int]:
    """Return a value and where it ends."""
    if kind in (BOOL_TRUE, BOOL_FALSE):
        return kind == BOOL_TRUE, at
    if kind in (I16, I32, I64):
        raw, at = read_varint(data, at)
        return (raw >> 1) ^ -(raw & 1), at
    if kind == BINARY:
        size, at = read_varint(data, at)
        return data[at : at + size], at + size
    if kind == STRUCT:
        return read_struct(data, at)
    raise AssertionError(f"type {kind} is not needed here")


def write_struct(fields: dict[int, tuple[int, Any]]) -> bytes:
    """Return a struct."""
    out, last = bytearray(), 0
    for number, (kind, value) in sorted(fields.items()):
        if kind in (BOOL_TRUE, BOOL_FALSE):
            kind = BOOL_TRUE if value else BOOL_FALSE
        out.append((number - last) << 4 | kind)
        last = number
        if kind in (I16, I32, I64):
            out += write_varint(zigzag(value))
        elif kind == BINARY:
            out += write_varint(len(value)) + value
        elif kind == STRUCT:
            out += write_struct(value)
    return bytes(out) + b"\0"


def rewrite_page_header(path: Path, change: Callable[[dict[int, Any]], dict[int, Any]]) -> None:
    """Change the numbers of the first page header of a file with one column, and nothing else.

    A longer header takes bytes from the statistics in it, so that everything stays where it is.
    """
    data = path.read_bytes()
    begin = pq.read_metadata(path).row_group(0).column(0).data_page_offset
    fields, end = read_struct(data, begin)
    numbers = {number: value for number, (kind, value) in fields.items() if kind == I32}
    for number, value in change(numbers).items():
        fields[number] = (I32, value)
    kind, inner = fields[5]
    fields[5] = (kind, {number: field for number, field in inner.items() if number != 5})  # without statistics
    header = write_struct(fields)
    padding = end - begin - len(header)
    assert padding >= 0, "the statistics were too short"
    # An unknown field of bytes fills the gap: 2 bytes of its own, and the rest.
    if padding:
        assert padding >= 2
        header = header[:-1] + bytes([(15 - max(fields)) << 4 | BINARY]) + write_varint(padding - 2) + b"\0" * padding
        header = header[: end - begin - 1] + b"\0"
    path.write_bytes(data[:begin] + header + data[end:])
