"""Handles that a dataset opens in its constructor are there in its workers: no sample is wrong, and none is missing."""

from __future__ import annotations

import importlib
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import antifreeze as af

h5py: Any = importlib.import_module("h5py")
lmdb: Any = importlib.import_module("lmdb")
NUM_ROWS = 40


class Everything(torch.utils.data.Dataset[Any]):
    """Opens everything when it is made, as scripts do that were only ever forked."""

    def __init__(self, folder: Path, *, has_lmdb: bool) -> None:
        self.env = lmdb.open(str(folder / "rows.lmdb"), readonly=True, lock=False) if has_lmdb else None
        self.txn = self.env.begin() if self.env else None
        self.h5 = h5py.File(folder / "rows.h5", "r")
        self.images = self.h5["group"]["images"]
        self.db = sqlite3.connect(folder / "rows.db")
        self.lines = (folder / "rows.txt").open()
        self.raw = (folder / "rows.bin").open("rb")
        self.log = (folder / "log.txt").open("a")

    def __len__(self) -> int:
        return NUM_ROWS

    def __getitem__(self, i: int) -> list[int]:
        self.lines.seek(4 * i)
        self.raw.seek(i)
        self.log.write(f"{i}\n")
        (label,) = self.db.execute("SELECT label FROM rows WHERE i = ?", (i,)).fetchone()
        value = int(self.txn.get(b"%d" % i)) if self.txn else i
        return [int(self.images[i]), value, label, int(self.lines.readline()), self.raw.read(1)[0]]

    def close(self) -> None:
        """Close what is the trainer's."""
        if self.env:
            self.txn.abort()
            self.env.close()
        for each in (self.h5, self.db, self.lines, self.raw, self.log):
            each.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file["group/images"] = np.arange(NUM_ROWS)
    with lmdb.open(str(tmp_path / "rows.lmdb")) as env, env.begin(write=True) as txn:
        for i in range(NUM_ROWS):
            txn.put(b"%d" % i, b"%d" % i)
    db = sqlite3.connect(tmp_path / "rows.db")
    db.execute("CREATE TABLE rows (i, label)")
    db.executemany("INSERT INTO rows VALUES (?, ?)", [(i, i) for i in range(NUM_ROWS)])
    db.commit()
    db.close()
    (tmp_path / "rows.txt").write_text("".join(f"{i:03d}\n" for i in range(NUM_ROWS)))
    (tmp_path / "rows.bin").write_bytes(bytes(range(NUM_ROWS)))
    return tmp_path


def told(loader: Any) -> str:
    """Return what the report says, in one line."""
    return " ".join(str(loader.report()).split())


@pytest.mark.parametrize("has_lmdb", [False, True])
def test_handles_opened_in_the_constructor_are_there_in_workers(folder: Path, has_lmdb: bool) -> None:
    """Workers are forks of a process that has loaded the dataset, unless it holds what a fork cannot open."""
    dataset = Everything(folder, has_lmdb=has_lmdb)
    loader = af.DataLoader(dataset, batch_size=4, num_workers=2)
    for _ in range(2):  # the trainer's own handles are still good for a second epoch
        rows = torch.cat([torch.stack(batch, 1) for batch in loader])
        assert torch.equal(rows, torch.arange(NUM_ROWS)[:, None].expand(NUM_ROWS, 5))
    assert dataset[7] == [7] * 5
    dataset.close()

    assert ("holds an lmdb environment" in told(loader)) is has_lmdb
    assert sorted(map(int, (folder / "log.txt").read_text().split())) == sorted([*range(NUM_ROWS)] * 2 + [7])


class Eager(torch.utils.data.Dataset[int]):
    """Uses its handle while it is loaded."""

    def __init__(self, folder: Path) -> None:
        self.db = sqlite3.connect(folder / "rows.db")
        self.count = 0

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        (self.count,) = self.db.execute("SELECT count(*) FROM rows").fetchone()

    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> int:
        return self.count


def test_a_handle_that_is_used_while_the_dataset_is_loaded_is_open(folder: Path) -> None:
    """Then each worker loads for itself."""
    dataset = Eager(folder)
    loader = af.DataLoader(dataset, num_workers=2)

    assert [int(batch) for batch in loader] == [NUM_ROWS] * 4
    assert "loading failed while handles were not open yet" in told(loader)
    dataset.db.close()


def test_the_report_lists_what_was_carried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise nobody could tell which of the trainer's objects and settings a worker has."""
    (tmp_path / "rows.bin").write_bytes(bytes(range(NUM_ROWS)))
    with (tmp_path / "rows.bin").open("rb") as file:
        monkeypatch.setattr("textwrap.dedent", lambda text: text)
        loader = af.DataLoader([1, 2], num_workers=1, collate_fn=lambda rows: (rows, file.closed))  # type: ignore[arg-type]
        assert [closed for _, closed in loader] == [False, False]

    report = loader.report()
    assert {"rebuilt _io.BufferedReader", "replacement of textwrap.dedent"} <= set(report.carried)
    assert "rebuilt _io.BufferedReader" in str(report)
