"""How many values the longest row of a nested column has, from its repetition levels.

A list of 200 million equal numbers takes some bytes in a file and more than a gigabyte in memory, and nothing but the
repetition levels says that it is one row. Levels are runs: a header, then either one value that is repeated, or values
of some bits each. A level of 0 begins a row.

The loop below is plain Python, about a microsecond for each run. It is used only where the values of a
column chunk do not fit in a piece, which with the default ``memory_limit`` are hundreds of megabytes.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class LongestRow:
    """The longest row so far; pages are added in their order, because a row may span several."""

    num_values: int = 0
    """Values of the longest row. A little more, if it lies within one run of packed values with shorter ones."""
    row: int = 0
    """Its number in the row group."""
    _current: int = 0
    """Values of the row that the last page ended with."""
    _rows: int = 0
    """Rows that have begun."""

    def add(self, levels: memoryview, bit_width: int, num_values: int) -> None:
        """Add the repetition levels of a page.

        Raises:
            ValueError: the levels end before ``num_values`` of them.
        """
        data, width = bytes(levels), (bit_width + 7) // 8
        position, left, end = 0, num_values, len(data)
        while left > 0:
            header, position = _varint(data, position)
            is_packed, count = header & 1, header >> 1
            size = count * bit_width if is_packed else width
            if not count or position + size > end:
                raise ValueError("its repetition levels end too early")
            run = data[position : position + size]
            position += size
            if is_packed:
                count = min(count * 8, left)
                self._add_packed(int.from_bytes(run, "little"), bit_width, count)
            else:
                count = min(count, left)
                if any(run):
                    self._current += count
                else:  # rows of one value each; the last of them may become longer
                    self._note(self._current)
                    self._rows += count
                    self._current = 1
            left -= count
        self._note(self._current)

    def _add_packed(self, run: int, bit_width: int, count: int) -> None:
        lowest_bits = ((1 << bit_width * count) - 1) // ((1 << bit_width) - 1)
        is_set = run
        for shift in range(1, bit_width):
            is_set |= run >> shift
        if not (begins := ~is_set & lowest_bits):  # one bit for each level of 0
            self._current += count
            return
        first, last = ((begins & -begins).bit_length() - 1) // bit_width, (begins.bit_length() - 1) // bit_width
        self._note(self._current + first)
        self._rows += begins.bit_count()
        self._note(last - first)
        self._current = count - last

    def _note(self, num_values: int) -> None:
        if num_values > self.num_values:
            self.num_values, self.row = num_values, max(0, self._rows - 1)


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Return the number at a position, and the position after it."""
    number = shift = 0
    while position < len(data):
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
        shift += 7
        if shift > 35:
            break
    raise ValueError("its repetition levels end too early")
