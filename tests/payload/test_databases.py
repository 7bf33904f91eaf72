"""Handles of SQLite, HDF5 and LMDB are opened again in a worker, and deliver there what they deliver in the trainer."""

from __future__ import annotations

import datetime as dt
import importlib
import os
import sqlite3
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sent import loaded, payload_of, sent

from antifreeze import NotPicklable

h5py: Any = importlib.import_module("h5py")
lmdb: Any = importlib.import_module("lmdb")

# -- SQLite --------------------------------------------------------------------------------------------------------


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "a #name? with%20signs.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE t (i INTEGER, day date)")
    connection.executemany("INSERT INTO t VALUES (?, ?)", [(i, dt.date(2024, 1, 1 + i)) for i in range(5)])
    connection.commit()
    connection.close()
    return path


def test_a_connection_reads_the_same_file(table: Path) -> None:
    connection = sqlite3.connect(table, isolation_level=None, timeout=1.5)
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA query_only = 1")
    found, again = sent(connection, connection)

    assert found is again is not connection
    assert [row["i"] for row in found.execute("SELECT i FROM t")] == [0, 1, 2, 3, 4]
    assert found.isolation_level is None
    assert found.execute("PRAGMA busy_timeout").fetchone()[0] == 1500
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        found.execute("DELETE FROM t")
    found.close()
    connection.close()


@pytest.mark.parametrize("flags", [0, sqlite3.PARSE_DECLTYPES, sqlite3.PARSE_COLNAMES, 3])
def test_values_have_the_same_types(table: Path, flags: int) -> None:
    """A connection does not tell whether it converts by the types of columns, or by their names."""
    before = dict(sqlite3.converters)
    connection = sqlite3.connect(table, detect_types=flags)
    found = sent(connection)
    for query in ("SELECT day FROM t", "SELECT day AS 'd [date]' FROM t", "SELECT '2024-01-01' AS 'd [date]'"):
        assert found.execute(query).fetchall() == connection.execute(query).fetchall()

    assert sqlite3.converters == before
    found.close()
    connection.close()


def test_text_is_made_by_the_same_function(table: Path) -> None:
    connection = sqlite3.connect(table)
    connection.text_factory = bytes
    found = sent(connection)

    assert found.execute("SELECT 'x'").fetchone() == (b"x",)
    assert connection.text_factory is bytes
    found.close()
    connection.close()


def test_attached_databases_and_those_in_memory_come_along(table: Path) -> None:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE m (x)")
    connection.execute("INSERT INTO m VALUES (7)")
    connection.commit()
    connection.execute("ATTACH ? AS other", (str(table),))
    connection.execute("ATTACH ':memory:' AS empty")
    found = sent(connection)

    assert found.execute("SELECT x, (SELECT count(*) FROM other.t) FROM m").fetchall() == [(7, 5)]
    found.execute("CREATE TABLE empty.t (x)")
    found.execute("INSERT INTO m VALUES (8)")
    assert connection.execute("SELECT count(*) FROM m").fetchone() == (1,), "each has memory of its own"
    found.close()
    connection.close()


class Named(sqlite3.Connection):
    """Has something more."""

    name = "none"


class Holder:
    """A dataset whose connection leads back to it."""

    def __init__(self, path: Path) -> None:
        self.connection = sqlite3.connect(path, factory=Named)
        self.connection.name = "mine"
        self.connection.row_factory = self.row
        self.cursor = self.connection.cursor()

    def row(self, _: Any, row: Any) -> list[Any]:
        return [type(self).__name__, *row]


def test_a_connection_may_lead_back_to_the_dataset(table: Path) -> None:
    holder = Holder(table)
    found = sent(holder, by_value=__name__)

    assert found.connection.name == "mine"
    assert found.connection.row_factory.__self__ is found
    assert found.cursor.execute("SELECT i FROM t LIMIT 1").fetchone() == ["Holder", 0]
    for each in (found, holder):
        each.connection.close()


def test_a_closed_connection_is_closed(table: Path) -> None:
    connection = sqlite3.connect(table)
    connection.close()

    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        sent(connection).execute("SELECT 1")


REFUSED = {
    "uncommitted": ("INSERT INTO t VALUES (9, NULL)", r"open transaction.*\n  hint: call commit"),
    "temporary": ("CREATE TEMP TABLE q (x)", "temporary tables"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_workers_would_not_see_is_refused(table: Path, case: str) -> None:
    statement, message = REFUSED[case]
    connection = sqlite3.connect(table)
    connection.execute(statement)
    with pytest.raises(NotPicklable, match=message) as caught:
        sent(connection)
    connection.close()

    assert "parts[0] (a sqlite3.Connection)" in str(caught.value)


def test_a_cursor_with_rows_to_fetch_is_refused(table: Path) -> None:
    """Its rows would be missing, without a word."""
    connection = sqlite3.connect(table)
    with pytest.raises(NotPicklable, match=r"Cursor.*remaining rows"):
        sent(connection.execute("SELECT * FROM t"))
    connection.close()


def test_a_connection_of_another_thread_says_what_to_do(table: Path) -> None:
    made: list[Any] = []
    thread = threading.Thread(target=lambda: made.append(sqlite3.connect(table)))
    thread.start()
    thread.join(60)
    with pytest.raises(NotPicklable, match="check_same_thread=False"):
        sent(made[0])


def test_a_database_that_is_gone_or_replaced_is_an_error_and_not_an_empty_one(table: Path) -> None:
    connection = sqlite3.connect(table)
    payload = payload_of(connection)
    table.rename(table.with_suffix(".old"))
    with pytest.raises(sqlite3.OperationalError):
        loaded(payload)
    table.write_bytes(table.with_suffix(".old").read_bytes())
    with pytest.raises(FileNotFoundError, match="dataset has open was replaced"):
        loaded(payload)
    payload.close()
    connection.close()


# -- HDF5 ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    path = tmp_path / "tree.h5"
    with h5py.File(path, "w", libver="latest") as file:
        file["x"] = np.arange(10)
        group = file.create_group("group")
        group["y"] = np.arange(4) * 2
        group.attrs["name"] = "some"
        file["x"].attrs["unit"] = "m"
    return path


def test_files_groups_and_datasets_are_opened_again(tree: Path) -> None:
    with h5py.File(tree, "r") as file:
        parts = {"file": file, "list": [file["group"], file["x"]], "same": file, "cast": file["x"].astype("f4")}
        found = sent(parts)
        (group, x), opened = found["list"], found["file"]

        assert opened is found["same"]
        assert (opened.mode, opened.filename) == ("r", str(tree))
        assert (opened["x"][3], group["y"][:].tolist(), x[4]) == (3, [0, 2, 4, 6], 4)
        assert (type(group), type(x), group.name, x.name) == (h5py.Group, h5py.Dataset, "/group", "/x")
        assert found["cast"][1:3].dtype == np.float32
        assert opened is not file
        assert file["x"][0] == 0, "the trainer's stays open"
        opened.close()


def test_attributes_and_keys_of_a_file_come_along(tree: Path) -> None:
    with h5py.File(tree, "r") as file:
        attributes, keys = sent(file["group"].attrs, file.keys())

        assert (attributes["name"], list(keys)) == ("some", ["group", "x"])


@pytest.mark.parametrize("options", [{"swmr": True, "libver": "latest"}, {"driver": "core"}, {"driver": "stdio"}])
def test_a_file_is_opened_as_it_was(tree: Path, options: dict[str, Any]) -> None:
    with h5py.File(tree, "r", rdcc_nbytes=1 << 16, **options) as file, sent(file) as found:
        assert (found.driver, found.swmr_mode, found.libver) == (file.driver, file.swmr_mode, file.libver)
        assert found.id.get_access_plist().get_cache() == file.id.get_access_plist().get_cache()
        assert found["x"][:].sum() == 45


def test_a_file_is_found_after_a_change_of_directory(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree.parent)
    with h5py.File(tree.name, "r") as file:
        monkeypatch.chdir("/")
        with sent(file) as found:
            assert found["x"][1] == 1


def test_a_closed_file_and_what_was_in_it_are_closed(tree: Path) -> None:
    with h5py.File(tree, "r") as file:
        parts = (file, file["group"], file["x"])

    assert [bool(each) for each in sent(*parts)] == [False, False, False]


class Subclass(h5py.File):  # type: ignore[misc]  # it has no types
    """Has something more."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "r")
        self.more = [1, 2]


def test_a_class_derived_from_a_file_is_made_without_its_constructor(tree: Path) -> None:
    with Subclass(tree) as file, sent(file, by_value=__name__) as found:
        assert (type(found).__name__, found.more, found["x"][2]) == ("Subclass", [1, 2], 2)


def test_a_file_that_is_open_for_writing_is_refused_with_what_to_do(tree: Path) -> None:
    with h5py.File(tree, "r+") as file:
        for part in (file, file["x"], file["group"].attrs):
            with pytest.raises(NotPicklable, match=r"mode 'r\+'.*\n  hint: open the file with mode 'r'"):
                sent(part)


def test_a_file_in_memory_and_a_bare_number_of_h5py_are_refused(tree: Path) -> None:
    """h5py would send the number of an object, which is another object in a worker."""
    with tree.open("rb") as raw, h5py.File(raw, "r") as file, pytest.raises(NotPicklable, match="driver 'fileobj'"):
        sent(file)
    with h5py.File(tree, "r") as file, pytest.raises(NotPicklable, match="DatasetID"):
        sent(file["x"].id)


def test_a_tree_that_was_replaced_is_not_taken_for_it(tree: Path) -> None:
    with h5py.File(tree, "r") as file:
        payload = payload_of(file["group"])
        tree.rename(tree.with_suffix(".old"))
        tree.write_bytes(tree.with_suffix(".old").read_bytes())
        with pytest.raises(FileNotFoundError, match="dataset has open was replaced"):
            loaded(payload)
        payload.close()


# -- LMDB ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store.lmdb"
    with lmdb.open(str(path), map_size=1 << 20, max_dbs=3) as environment:
        with environment.begin(write=True) as transaction:
            for i in range(5):
                transaction.put(b"%d" % i, b"value %d" % i)
        environment.open_db(b"named")
    return path


def in_a_worker(payload: Any) -> Any:
    """Return what is loaded where the trainer's environments are not open: LMDB takes each once in a process."""
    return loaded(payload)


@pytest.mark.parametrize("options", [{"readonly": True, "lock": False, "readahead": False}, {}, {"max_readers": 7}])
def test_an_environment_is_opened_as_it_was(store: Path, options: dict[str, Any]) -> None:
    with lmdb.open(str(store), map_size=1 << 21, **options) as environment:
        facts = environment.info()["map_size"], environment.max_readers(), environment.flags()
        payload = payload_of(environment)
    with in_a_worker(payload) as found:
        assert (found.info()["map_size"], found.max_readers(), found.flags()) == facts
        with found.begin() as transaction:
            assert transaction.get(b"3") == b"value 3"
            assert transaction.get(b"x") is None
        found.open_db(b"named", create=False)
    assert "lmdb environment" in payload.per_worker_reason
    payload.close()


@pytest.mark.parametrize("buffers", [False, True])
def test_a_transaction_that_reads_is_begun_again(store: Path, buffers: bool) -> None:
    with lmdb.open(str(store), readonly=True) as environment:
        transaction = environment.begin(buffers=buffers)
        payload = payload_of(environment, transaction)
        transaction.abort()
    found, again = in_a_worker(payload)
    assert bytes(again.get(b"2")) == b"value 2"
    assert isinstance(again.get(b"2"), memoryview if buffers else bytes)
    again.abort()
    found.close()
    payload.close()


@pytest.mark.parametrize("what", ["a write", "of another", "named", "a database", "closed"])
def test_other_handles_of_lmdb_are_refused_with_what_to_do(store: Path, tmp_path: Path, what: str) -> None:
    other = lmdb.open(str(tmp_path / "other"))
    environment = lmdb.open(str(store), max_dbs=3)
    named = environment.open_db(b"named")
    with environment.begin(write=True) as writing:
        writing.put(b"x", b"y", db=named)
    transaction = {
        "a write": lambda: environment.begin(write=True),
        "of another": other.begin,
        "named": lambda: environment.begin(db=named),
        "a database": lambda: environment.begin(),
        "closed": lambda: environment.begin(),
    }[what]()
    try:
        if what == "closed":
            other.close()
        part = {"a database": named, "closed": other}.get(what, transaction)
        with pytest.raises(NotPicklable, match=r"hint: (keep the lmdb|set it to None)"):
            sent(environment, part)
    finally:
        transaction.abort()
        for each in (environment, other):
            each.close()


def test_an_environment_in_one_file_is_found_too(tmp_path: Path) -> None:
    path = os.path.relpath(tmp_path / "single")
    with lmdb.open(path, subdir=False) as environment:
        with environment.begin(write=True) as transaction:
            transaction.put(b"a", b"b")
        payload = payload_of(environment)
    with in_a_worker(payload) as found, found.begin() as transaction:
        assert transaction.get(b"a") == b"b"
    payload.close()
