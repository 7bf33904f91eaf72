"""The sizes of column chunks, taken from the bytes of a footer.

Tried: ``metadata.row_group(i).column(j)``. Arrow (26.0) checks a chunk's statistics when it is asked for, and the C++
exception that a damaged one raises is not caught: it ends the interpreter, for about one damaged footer in 500.
``ParquetFile`` and ``row_group(i)`` raise properly.

So the few bytes that matter are found by their shape. In thrift's compact form a chunk's facts always follow the
name of its column, in the order of their field numbers:

    0x19 list header, name, inner names | 0x15 codec | 0x16 num_values | 0x16 uncompressed size | 0x16 ...

What is found is used for estimates only. Anything unexpected gives None: not known.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_VARINT = rb"([\x80-\xff]{0,9}[\x00-\x7f])"
_FACTS = rb"\x15[\x00-\x7f]\x16" + _VARINT + rb"\x16" + _VARINT + rb"\x16"
# Longer than the inner names of any column in use; it bounds the search when nothing follows.
_INNER_NAMES = rb".{2,1024}?"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkSizes:
    """What a footer says of one leaf of a column in one row group."""

    num_values: int
    uncompressed: int


def chunk_pattern(name: str, is_flat: bool) -> re.Pattern[bytes]:
    """Return what the chunks of a top-level column look like in a footer."""
    text = name.encode()
    # The number of names on the path, and in the low half what they are: strings.
    head = rb"\x19\x18" if is_flat else rb"\x19[\x28\x38\x48\x58\x68\x78\x88\x98\xa8\xb8\xc8\xd8\xe8\xf8]"
    return re.compile(
        head + re.escape(_varint(len(text)) + text) + (b"" if is_flat else _INNER_NAMES) + _FACTS, re.DOTALL
    )


def find_chunks(footer: bytes, pattern: re.Pattern[bytes], count: int) -> list[ChunkSizes] | None:
    """Return the sizes of all chunks of a column, group by group, or None if there are not ``count`` of them."""
    found = pattern.findall(footer)
    if len(found) != count:
        return None
    chunks = [ChunkSizes(num_values=_signed(values), uncompressed=_signed(size)) for values, size in found]
    if any(chunk.num_values < 0 or chunk.uncompressed < 0 for chunk in chunks):
        return None
    return chunks


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _signed(data: bytes) -> int:
    number = 0
    for place, byte in enumerate(data):
        number |= (byte & 0x7F) << (7 * place)
    # Zigzag: the sign is the lowest bit.
    return (number >> 1) ^ -(number & 1)
