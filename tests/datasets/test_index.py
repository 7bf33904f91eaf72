"""Indexing writes one file, where it is told to, or says why it cannot."""

import io
import os
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from antifreeze.core import AntifreezeError, ConfigError, CorruptFile, InputError
from antifreeze.datasets import index_parquet_dataset
from antifreeze.storage import MANIFEST_NAME, read_manifest


def make(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"x": [1, 2]}), root / name)


def test_the_manifest_stands_in_the_directory(tmp_path: Path) -> None:
    make(tmp_path, "a/1.parquet", "2.parquet")

    path = index_parquet_dataset(tmp_path)

    assert path == f"{tmp_path}/{MANIFEST_NAME}"
    assert read_manifest(path).num_rows == 4
    assert {entry.name for entry in tmp_path.iterdir()} == {"2.parquet", MANIFEST_NAME, "a"}


def test_called_again_it_writes_again(tmp_path: Path) -> None:
    make(tmp_path, "1.parquet")
    index_parquet_dataset(tmp_path)
    make(tmp_path, "2.parquet")

    assert read_manifest(index_parquet_dataset(tmp_path, num_workers=3, progress=False)).num_rows == 4


@pytest.mark.parametrize("form", ["{}/*.parquet", "{}/1.parquet", ["{}"]])
def test_what_is_no_directory_needs_a_place(tmp_path: Path, form: str | list[str]) -> None:
    make(tmp_path, "1.parquet")
    source = form.format(tmp_path) if isinstance(form, str) else [item.format(tmp_path) for item in form]

    with pytest.raises(ConfigError, match="index_path is required for a glob, a file or a list") as caught:
        index_parquet_dataset(source)
    assert caught.value.argument == "index_path"
    assert read_manifest(index_parquet_dataset(source, index_path=tmp_path / "m.json")).num_rows == 2


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "1.parquet")
    with pytest.raises(InputError, match="there is no such folder"):
        index_parquet_dataset(tmp_path, index_path=tmp_path / "none/m.json")

    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(AntifreezeError, match="the folder is read-only") as caught:
        index_parquet_dataset(tmp_path)
    assert "pass index_path=..." in caught.value.hint
    assert "do not index at all" in caught.value.hint


def test_a_disk_that_refuses_to_write_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read-only mount lets the superuser pass the first check."""
    make(tmp_path, "1.parquet")
    real = os.open

    def refuse(path: str, flags: int, *rest: int, dir_fd: int | None = None) -> int:
        if flags & os.O_CREAT:
            raise OSError(30, "Read-only file system")
        return real(path, flags, *rest, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(InputError, match="cannot be written: Read-only file system") as caught:
        index_parquet_dataset(tmp_path)
    assert "pass index_path=..." in caught.value.hint
    assert list(tmp_path.iterdir()) == [tmp_path / "1.parquet"]


def test_a_bad_file_leaves_no_manifest(tmp_path: Path) -> None:
    make(tmp_path, "1.parquet")
    (tmp_path / "2.parquet").write_bytes(b"x")

    with pytest.raises(CorruptFile, match=r"2\.parquet is not a Parquet file"):
        index_parquet_dataset(tmp_path)
    assert not (tmp_path / MANIFEST_NAME).exists()


def test_a_senseless_number_of_workers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="num_workers cannot be 0"):
        index_parquet_dataset(tmp_path, num_workers=0)


@pytest.mark.parametrize(("progress", "shown"), [(True, True), (False, False)])
def test_progress_is_shown_on_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, progress: bool, shown: bool
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    make(tmp_path, "1.parquet", "2.parquet")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)

    index_parquet_dataset(tmp_path, progress=progress)

    assert ("Indexing" in terminal.getvalue() and "2/2 files" in terminal.getvalue()) is shown
