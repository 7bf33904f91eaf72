"""What every format must do, as a suite that its author runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from antifreeze.core import CorruptFile, Format, ReadLimits


class FormatSuite(ABC):
    """Subclass it in a test module, say how files are written, and pytest runs the checks.

    Example:
        class TestParquet(FormatSuite):
            def format(self):
                return Parquet()

            def write(self, path, table, group_rows):
                pq.write_table(table, path, row_group_size=group_rows)
    """

    LIMITS = ReadLimits.of(256 << 20)
    NUM_ROWS = 100
    GROUP_ROWS = 40

    @abstractmethod
    def format(self) -> Format:
        """Return the format under test."""

    @abstractmethod
    def write(self, path: Path, table: Any, group_rows: int) -> None:
        """Write an Arrow table as a file whose fragments have ``group_rows`` rows."""

    def _file(self, tmp_path: Path) -> tuple[str, Any]:
        import pyarrow as pa

        numbers = list(range(self.NUM_ROWS))
        table = pa.table({"n": numbers, "text": [f"row {n}" for n in numbers], "pair": [[n, -n] for n in numbers]})
        path = tmp_path / "file"
        self.write(path, table, self.GROUP_ROWS)
        return str(path), table

    def _read(self, path: str, group: int, columns: Sequence[str], piece_rows: int) -> list[Any]:
        fragment = self.format().open(path, group, columns, piece_rows, self.LIMITS)
        try:
            return list(fragment.pieces())
        finally:
            fragment.close()

    def test_every_row_of_a_fragment_is_read_in_order(self, tmp_path: Path) -> None:
        """Fragments together are the file; a short last one included."""
        path, table = self._file(tmp_path)
        for group, start in enumerate(range(0, self.NUM_ROWS, self.GROUP_ROWS)):
            pieces = self._read(path, group, ["n", "text", "pair"], 7)
            rows = [row for piece in pieces for row in piece.to_pylist()]
            assert rows == table.slice(start, self.GROUP_ROWS).to_pylist()

    def test_pieces_are_no_larger_than_asked_for(self, tmp_path: Path) -> None:
        """Memory is bounded by pieces."""
        path, _ = self._file(tmp_path)
        assert all(0 < piece.num_rows <= 7 for piece in self._read(path, 0, ["n"], 7))

    def test_columns_come_as_asked_for(self, tmp_path: Path) -> None:
        """Only those, and in that order, whatever the order in the file."""
        path, _ = self._file(tmp_path)
        (piece, *_rest) = self._read(path, 0, ["pair", "n"], 7)
        assert piece.schema.names == ["pair", "n"]

    def test_pieces_share_no_memory(self, tmp_path: Path) -> None:
        """A piece is handed to the user, who may write into it."""
        path, _ = self._file(tmp_path)
        spans = [
            (buffer.address, buffer.address + buffer.size)
            for piece in self._read(path, 0, ["n", "pair"], 7)
            for column in piece.columns
            for buffer in column.buffers()
            if buffer is not None and buffer.is_mutable and buffer.size
        ]
        ordered = sorted(set(spans))
        assert len(ordered) == len(spans)
        assert all(end <= begin for (_, end), (begin, _) in pairwise(ordered))

    def test_two_readers_of_one_fragment_do_not_disturb_each_other(self, tmp_path: Path) -> None:
        """Each iterator of a loader has its own."""
        path, _ = self._file(tmp_path)
        one, two = (self.format().open(path, 0, ["n"], 7, self.LIMITS) for _ in range(2))
        first = one.pieces()
        next(first)
        rows = [n for piece in two.pieces() for n in piece.column("n").to_pylist()]
        two.close()
        assert rows == list(range(self.GROUP_ROWS))
        assert next(first).column("n").to_pylist() == list(range(7, 14))
        one.close()

    def test_closing_twice_and_early_is_fine(self, tmp_path: Path) -> None:
        """A consumer may leave at any moment."""
        path, _ = self._file(tmp_path)
        fragment = self.format().open(path, 0, ["n"], 7, self.LIMITS)
        next(fragment.pieces())
        fragment.close()
        fragment.close()

    def test_damage_is_a_corrupt_file_that_names_it(self, tmp_path: Path) -> None:
        """Whatever is damaged, the error is of one kind, and never more rows come than there are.

        Wrong values can only be noticed by a format that has checksums; that is for the format's own tests.
        """
        path, table = self._file(tmp_path)
        content = Path(path).read_bytes()
        expected = table.column("n").to_pylist()[: self.GROUP_ROWS]
        for at in range(4, len(content) // 2, 37):
            Path(path).write_bytes(content[:at] + bytes(16) + content[at + 16 :])
            seen: list[int] = []
            try:
                for piece in self._read(path, 0, ["n"], 7):
                    seen.extend(piece.column("n").to_pylist())
            except CorruptFile as error:
                assert error.file == path
            assert len(seen) <= len(expected)
