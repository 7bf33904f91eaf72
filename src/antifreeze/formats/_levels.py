"""How many values the longest row of a nested column has, from its repetition levels.

A list of 200 million equal numbers takes some bytes in a file and more than a gigabyte in memory, and nothing but the
repetition levels says that it is one row. Levels are runs: a header, then either one value that is repeated, or values
of some bits each. A level of 0 begins a row.

The loop below is plain Python, about a microsecond for each run; runs that repeat, as those of lists of one length do,
are passed over at once. It is used only where the values of a column chunk do not fit in a piece, which with the
default ``memory_limit`` are hundreds of megabytes.
"""

from __future__ import annotations

from dataclasses import dataclass

_PACKED_VALUES = 512
"""Packed values are examined in blocks of this size; row starts inside a block are not located exactly."""


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
    _pair_rows: int = 0
    """Rows that have begun in the last two runs."""

    def add(self, levels: memoryview, bit_width: int, num_values: int) -> None:
        """Add the repetition levels of a page.

        Raises:
            ValueError: the levels end before ``num_values`` of them.
        """
        data, position, left = bytes(levels), 0, num_values
        pair, pair_start, pair_values = b"", 0, 0  # two runs: in a column of lists of one length, a row each
        while left > 0:
            is_second = pair_start < position
            position, count = self._add_run(data, position, bit_width, left)
            left -= count
            pair_values += count
            if is_second:
                last, pair = pair, data[pair_start:position]
                if pair == last:
                    repeats = min(_repeats(data, position, pair), left // pair_values)
                    position += repeats * len(pair)
                    left -= repeats * pair_values
                    self._rows += repeats * self._pair_rows
                    if not self._pair_rows:
                        self._current += repeats * pair_values
                pair_start, pair_values, self._pair_rows = position, 0, 0
        self._note(self._current)

    def _add_run(self, data: bytes, position: int, bit_width: int, left: int) -> tuple[int, int]:
        """Add the run at a position. Return the position after it, and how many levels it has."""
        header, position = _varint(data, position)
        is_packed, count = header & 1, header >> 1
        size = count * bit_width if is_packed else (bit_width + 7) // 8
        if not count or position + size > len(data):
            raise ValueError("its repetition levels end too early")
        run = data[position : position + size]
        if is_packed:
            count = min(count * 8, left)
            for begin in range(0, count, _PACKED_VALUES):
                part = run[begin * bit_width // 8 : (begin + _PACKED_VALUES) * bit_width // 8]
                self._add_packed(int.from_bytes(part, "little"), bit_width, min(_PACKED_VALUES, count - begin))
        elif any(run):
            count = min(count, left)
            self._current += count
        else:  # rows of one value each; the last of them may become longer
            count = min(count, left)
            self._note(self._current)
            self._begin_rows(count)
            self._current = 1
        return position + size, count

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
        self._begin_rows(begins.bit_count())
        self._note(last - first)
        self._current = count - last

    def _begin_rows(self, count: int) -> None:
        self._rows += count
        self._pair_rows += count

    def _note(self, num_values: int) -> None:
        if num_values > self.num_values:
            self.num_values, self.row = num_values, max(0, self._rows - 1)


def _repeats(data: bytes, position: int, unit: bytes) -> int:
    """Return how often a unit is repeated from a position on, or somewhat less."""
    count, step = 0, 1
    while step:
        size = step * len(unit)
        if data[position : position + size] == unit * step:
            position += size
            count += step
            step *= 2
        else:
            step //= 2
    return count


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
