"""Open files are opened again in a worker, where the trainer's was, and nothing that is open for writing is."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from sent import loaded, payload_of, sent

from antifreeze import NotPicklable


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "a text.txt"
    path.write_text("one\nzwei ä\nthree\n", encoding="utf-8")
    return path


def test_a_text_is_read_where_the_trainer_was(text: Path) -> None:
    with text.open(encoding="utf-8") as before:
        before.readline()
        found = sent(before)
        with found:
            assert (found.read(), found.encoding, found.name) == ("zwei ä\nthree\n", "utf-8", str(text))
        assert before.read() == "zwei ä\nthree\n", "each has a place of its own"


def test_a_text_is_not_copied(tmp_path: Path) -> None:
    path = tmp_path / "large.txt"
    with path.open("wb") as out:
        out.truncate(1 << 30)
    with path.open() as before:
        payload = payload_of(before)
        try:
            assert sum(piece[1] for piece in payload.layout.pieces if isinstance(piece[1], int)) < 1 << 16
        finally:
            payload.close()


CONTENTS = [b"a\r\nb\nc\rd\r\n", b"a\nb\n", b"a\r\nb\r\n", b"x" * 99_999 + b"\n\r\nb\rc", b""]
NEWLINES = [None, "", "\n", "\r\n", "\r"]
# A file without the ends that it was opened with reads as one line, and shows nothing of how it was opened.
LINES = [(c, n) for c in CONTENTS for n in NEWLINES if b"\r" in c or n not in ("\r", "\r\n")]


@pytest.mark.parametrize(("content", "newline"), LINES)
def test_the_ends_of_lines_are_read_as_in_the_trainer(tmp_path: Path, newline: str | None, content: bytes) -> None:
    """A file does not tell what it was opened with."""
    (tmp_path / "lines").write_bytes(content)
    with (tmp_path / "lines").open(newline=newline) as before, sent(before) as found:
        assert found.readlines() == before.readlines()


@pytest.mark.parametrize("encoding", ["utf-16", "latin-1", "utf-8-sig"])
def test_a_text_keeps_its_encoding_and_its_errors(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "text").write_text("ä\r\nb\n", encoding=encoding, newline="")
    with (tmp_path / "text").open(encoding=encoding, errors="replace", newline="") as before, sent(before) as found:
        assert (found.read(), found.errors) == ("ä\r\nb\n", "replace")


def test_a_text_in_the_middle_of_a_loop_over_its_lines_is_refused(text: Path) -> None:
    """It does not tell where it is."""
    with text.open(encoding="utf-8") as before:
        next(before)
        with pytest.raises(NotPicklable, match="parts"):
            sent(before)


@pytest.mark.parametrize("mode", ["a", "ab", "a+", "ab+"])
def test_a_log_is_appended_to(tmp_path: Path, mode: str) -> None:
    path, binary = tmp_path / "log", "b" in mode
    path.write_text("before\n")

    def line(content: str) -> Any:
        return content.encode() if binary else content

    with path.open(mode, buffering=0 if mode == "ab" else -1) as log:
        log.write(line("trainer 1\n"))
        log.flush()
        with sent(log) as found:
            found.write(line("worker 1\n"))
            if mode == "ab+":
                found.flush()  # a binary file keeps what it is given until it is full
            log.write(line("trainer 2\n"))
            log.flush()
            found.write(line("worker 2\n"))

    assert path.read_text().split("\n")[:-1] == ["before", "trainer 1", "worker 1", "trainer 2", "worker 2"]


def test_a_log_that_was_rotated_is_begun_again(tmp_path: Path) -> None:
    """A worker that is replaced hours later must not end the training for it."""
    with (tmp_path / "log").open("a") as log:
        payload = payload_of(log)
        (tmp_path / "log").rename(tmp_path / "log.1")
        try:
            with loaded(payload) as found:
                found.write("later\n")
        finally:
            payload.close()

    assert (tmp_path / "log").read_text() == "later\n"


@pytest.mark.parametrize("mode", ["w", "r+", "wb", "w+b", "x"])
def test_a_file_that_is_open_for_writing_is_refused(tmp_path: Path, mode: str) -> None:
    if mode == "r+":
        (tmp_path / "file").touch()
    with (tmp_path / "file").open(mode) as file, pytest.raises(NotPicklable, match=r"parts\[0\] \(a _io\."):
        sent(file)


@pytest.mark.parametrize("mode", ["r", "rb", "w"])
def test_a_closed_file_is_closed(text: Path, mode: str) -> None:
    with text.open(mode) as file:
        pass
    found = sent(file)

    assert found.closed


def test_the_streams_of_a_process_are_its_own() -> None:
    """Also if they are redirected to a file."""
    assert sent(sys.__stdout__, sys.__stderr__) == (sys.__stdout__, sys.__stderr__)
