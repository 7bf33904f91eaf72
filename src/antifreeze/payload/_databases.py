"""Handles of SQLite, HDF5 and LMDB, reopened in a worker from what they report about themselves.

None of the libraries is imported for this: a handle exists only if a script has imported its library. No handle may be
used after a fork; ``_reopen`` describes how each is protected. A handle that cannot be inspected, or would not be the
same in a worker (an open transaction, a file open for writing, a cursor with unfetched rows), is rejected.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import operator
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from antifreeze.core import NotPicklable
from antifreeze.payload._reopen import PER_WORKER, check_identity, identity_of, open_in_worker

Reduce = Callable[[Any], Any]


def _rejected(problem: str, hint: str) -> NotPicklable:
    return NotPicklable(problem, hint=hint, path="")


def _make(kind: Any, open_handle: Callable[..., None], *facts: Any) -> Any:
    """Return an object whose handle is opened in the worker."""
    made = kind.__new__(kind)
    open_in_worker(functools.partial(open_handle, made, *facts))
    return made


# -- SQLite --------------------------------------------------------------------------------------------------------

_PRAGMAS = ("busy_timeout", "cache_size", "mmap_size", "query_only", "temp_store", "foreign_keys", "recursive_triggers")
"""Settings that a connection reports."""


class _Database(NamedTuple):
    """One database of a connection: in a file, or in memory."""

    name: str
    path: str
    identity: tuple[int, int] | None
    content: bytes


class _Sqlite(NamedTuple):
    """What is needed to reconnect; no databases if the connection is closed."""

    databases: tuple[_Database, ...]
    pragmas: tuple[tuple[str, int], ...] = ()
    options: dict[str, Any] = {}  # noqa: RUF012  it is not changed


def _reduce_connection(connection: Any) -> Any:
    """Return how to reconnect: to the same files, and to copies of in-memory databases."""
    state = {name: getattr(connection, name) for name in ("row_factory", "text_factory")}
    members = dict(getattr(connection, "__dict__", {}))
    facts = _sqlite_facts(connection)
    # Order: factories may refer to the dataset, so they are set when the connection is known to the pickle.
    return _make, (type(connection), _connect, facts), (state, members), None, None, _set_connection


def _sqlite_facts(connection: Any) -> _Sqlite:
    sqlite3: Any = sys.modules["sqlite3"]
    try:
        is_busy = connection.in_transaction
    except sqlite3.ProgrammingError:
        return _Sqlite(())
    if is_busy:
        raise _rejected(
            "the sqlite3.Connection has an open transaction: workers would not see its changes",
            "call commit() before iterating",
        )
    before, connection.text_factory = connection.text_factory, str
    try:
        ask = functools.partial(_asked, sqlite3.Cursor(connection))
        databases = tuple(_database(connection, ask, name, path) for _, name, path in ask("PRAGMA database_list"))
        pragmas = [(name, ask(f"PRAGMA {name}")) for name in _PRAGMAS]
        options = {"detect_types": _detected_types(sqlite3, ask), "isolation_level": connection.isolation_level}
        if hasattr(connection, "autocommit"):
            options["autocommit"] = connection.autocommit
    except sqlite3.ProgrammingError as error:
        raise _rejected(
            f"the sqlite3.Connection was created by another thread, and cannot be inspected: {error}",
            "pass check_same_thread=False to sqlite3.connect, or connect in the worker",
        ) from error
    finally:
        connection.text_factory = before
    return _Sqlite(databases, tuple((name, int(found[0][0])) for name, found in pragmas if found), options)


def _asked(cursor: Any, statement: str) -> list[Any]:
    cursor.row_factory = None
    found: list[Any] = cursor.execute(statement).fetchall()
    return found


def _database(connection: Any, ask: Callable[[str], list[Any]], name: str, path: str) -> _Database:
    if path:
        return _Database(name, path, identity_of(path), b"")
    quoted = name.replace('"', '""')
    (num_objects,) = ask(f'SELECT count(*) FROM "{quoted}".sqlite_master')[0]  # noqa: S608  a name that it reported
    if name == "temp" and num_objects:
        raise _rejected(
            "the sqlite3.Connection has temporary tables, which belong to the connection",
            "connect in the worker, when the connection is first used, and create them there",
        )
    return _Database(name, "", None, connection.serialize(name=name) if num_objects else b"")


def _detected_types(sqlite3: Any, ask: Callable[[str], list[Any]]) -> int:
    """Return the argument ``detect_types``, which a connection does not report.

    With it, values are converted by the type of their column; without it, workers would deliver strings for dates. So
    two converters are registered that convert as SQLite does, and record whether they are called. The table of all
    tables has a column of the type ``int``.
    """
    seen, thread, name = set[int](), threading.get_ident(), "ANTIFREEZE"

    def note(flag: int, value: bytes) -> int:
        if threading.get_ident() == thread:
            seen.add(flag)
        return int(value)

    added = {name: sqlite3.PARSE_COLNAMES, "INT": sqlite3.PARSE_DECLTYPES}
    before = dict(sqlite3.converters)
    try:
        sqlite3.converters.update({key: functools.partial(note, flag) for key, flag in added.items()})
        ask(f'SELECT 1 AS "one [{name}]"')
        ask("SELECT rootpage FROM sqlite_master LIMIT 1")
    finally:
        for key in added:
            sqlite3.converters.pop(key, None)
            if key in before:
                sqlite3.converters[key] = before[key]
    return sum(seen)


def _connect(connection: Any, facts: _Sqlite) -> None:
    from urllib.parse import quote  # which few workers need

    sqlite3: Any = importlib.import_module("sqlite3")
    main = next((found for found in facts.databases if found.name == "main"), None)
    # Never created: a missing database is an error, not an empty one.
    target = f"file:{quote(os.fsencode(main.path))}?mode=rw" if main is not None and main.path else ":memory:"
    sqlite3.Connection.__init__(connection, target, uri=True, check_same_thread=False, **facts.options)
    if main is None:
        sqlite3.Connection.close(connection)
        return
    cursor = sqlite3.Cursor(connection)
    for found in facts.databases:
        if found.identity is not None:
            check_identity(found.path, found.identity)
        if found.name not in ("main", "temp"):
            cursor.execute("ATTACH ? AS ?", (found.path or ":memory:", found.name))
        if found.content:
            sqlite3.Connection.deserialize(connection, found.content, name=found.name)
    for name, value in facts.pragmas:
        cursor.execute(f"PRAGMA {name} = {value}").fetchall()


def _set_connection(connection: Any, state: tuple[dict[str, Any], dict[str, Any]]) -> None:
    factories, members = state
    if members:
        connection.__dict__.update(members)
    for name, value in factories.items():
        open_in_worker(functools.partial(setattr, connection, name, value))


def _reduce_cursor(cursor: Any) -> Any:
    """Return how to recreate a cursor that has nothing to fetch."""
    if cursor.description is not None:
        raise _rejected(
            "the sqlite3.Cursor has run a query: its remaining rows would be lost",
            "keep the connection, and call connection.execute() in the worker",
        )
    return _make, (type(cursor), _begin_cursor, cursor.connection, cursor.arraysize)


def _begin_cursor(cursor: Any, connection: Any, arraysize: int) -> None:
    importlib.import_module("sqlite3").Cursor.__init__(cursor, connection)
    cursor.arraysize = arraysize
    cursor.row_factory = connection.row_factory


# -- HDF5 ----------------------------------------------------------------------------------------------------------

_H5_HINT = "open the file with mode 'r', or in the worker, when it is first used (in __getitem__)"


class _H5File(NamedTuple):
    """What is needed to reopen a file."""

    path: str
    identity: tuple[int, int]
    options: tuple[tuple[str, Any], ...]


def _reduce_h5(found: Any) -> Any:
    if not found:
        return _make_closed_h5, (type(found),)
    h5py: Any = sys.modules["h5py"]
    file = _h5_file(found.file)
    name = None if isinstance(found, h5py.File) else found.name
    if name is None and not isinstance(found, h5py.File):
        raise _rejected("the h5py object has no name by which a worker could find it", _H5_HINT)
    own = {key: value for key, value in vars(found).items() if not key.startswith("_")}
    return _make, (type(found), _open_h5, file, name), own or None


def _h5_file(file: Any) -> _H5File:
    """Return how to reopen a file that is open for reading."""
    if file.mode != "r":
        raise _rejected(f"the h5py file is open for writing (mode {file.mode!r})", _H5_HINT)
    properties, driver = file.id.get_access_plist(), file.driver
    options: dict[str, Any] = {"libver": file.libver, "swmr": file.swmr_mode}
    options |= dict(zip(("rdcc_nslots", "rdcc_nbytes", "rdcc_w0"), properties.get_cache()[1:], strict=True))
    if driver == "core":
        options |= dict(zip(("block_size", "backing_store"), properties.get_fapl_core(), strict=True))
    elif driver == "family":
        options["memb_size"] = properties.get_fapl_family()[0]
    elif driver not in ("sec2", "stdio"):
        raise _rejected(f"a worker cannot reopen an h5py file with the driver {driver!r}", _H5_HINT)
    with contextlib.suppress(AttributeError):  # of an older HDF5
        is_locked, ignores_errors = properties.get_file_locking()
        options["locking"] = "best-effort" if is_locked and ignores_errors else bool(is_locked)
    path = str(Path(file.filename).absolute())
    if driver == "sec2":
        options["driver"] = None
        if sys.platform == "linux":  # which knows its path even after a change of directory
            path = str(Path(f"/proc/self/fd/{file.id.get_vfd_handle()}").readlink())
    else:
        options["driver"] = driver
    real = path % 0 if driver == "family" else path
    if not Path(real).exists():
        raise _rejected(f"the h5py file {path} does not exist any more", _H5_HINT)
    return _H5File(path, identity_of(real), tuple(options.items()))


def _reduce_h5_attributes(found: Any) -> Any:
    h5py: Any = sys.modules["h5py"]
    name = h5py.h5i.get_name(found._id)
    if name is None:
        raise _rejected("the h5py object of these attributes has no name by which a worker could find it", _H5_HINT)
    return _make, (type(found), _open_h5_attributes, _h5_file(h5py.File(found._id)), name)


def _refuse_h5_id(found: Any) -> Any:
    # h5py would send the number, which refers to another object in a worker.
    raise _rejected(
        f"a {type(found).__name__} of h5py is valid in one process only", "keep the h5py.File, Group or Dataset instead"
    )


def _open_h5(made: Any, file: _H5File, name: str | None) -> None:
    h5py: Any = importlib.import_module("h5py")
    if name is None:
        check_identity(file.path % 0 if dict(file.options)["driver"] == "family" else file.path, file.identity)
        h5py.File.__init__(made, file.path, "r", **dict(file.options))
    elif isinstance(made, h5py.Dataset):
        h5py.Dataset.__init__(made, _whole(file)[name].id, readonly=True)
    else:
        h5py.Group.__init__(made, _whole(file)[name].id)


@functools.cache
def _whole(file: _H5File) -> Any:
    """Return the file in which the groups and datasets of this process are looked up."""
    return _make(importlib.import_module("h5py").File, _open_h5, file, None)


def _open_h5_attributes(made: Any, file: _H5File, name: bytes) -> None:
    importlib.import_module("h5py").AttributeManager.__init__(made, _whole(file)[name])


def _make_closed_h5(kind: Any) -> Any:
    h5py: Any = importlib.import_module("h5py")
    made = kind.__new__(kind)
    ids = ((h5py.File, h5py.h5f.FileID), (h5py.Dataset, h5py.h5d.DatasetID), (h5py.Group, h5py.h5g.GroupID))
    made._id = next(make(0) for known, make in ids if issubclass(kind, known))
    return made


# -- LMDB ----------------------------------------------------------------------------------------------------------

_LMDB_HINT = "keep the lmdb.Environment in the dataset, and begin the transaction or open the database in the worker"
_MAX_DBS = 128
"""Maximum number of named databases, which an environment does not report; the memory for these is small."""


def lmdb_reducers(environments: list[Any]) -> dict[str, Reduce]:
    """Return the handle types of LMDB and their reducers, which share the environments of one pickle."""
    return {
        "Environment": functools.partial(_reduce_environment, environments),
        "Transaction": functools.partial(_reduce_transaction, environments),
        "_Database": _refuse_database,
    }


def _reduce_environment(environments: list[Any], environment: Any) -> Any:
    lmdb: Any = sys.modules["lmdb"]
    if type(environment) is not lmdb.Environment:
        return NotImplemented  # how to create one of a subclass is not known
    try:
        path, flags = str(Path(environment.path()).absolute()), environment.flags()
    except lmdb.Error as error:
        raise _rejected(f"the lmdb.Environment is closed: {error}", "set it to None") from error
    environments.append(environment)
    options = {"map_size": environment.info()["map_size"], "max_readers": environment.max_readers(), **flags}
    data = str(Path(path, "data.mdb")) if flags["subdir"] else path
    return _make_environment, (path, (data, identity_of(data)), options)


def _reduce_transaction(environments: list[Any], transaction: Any) -> Any:
    """Return how to restart a read transaction: it sees the contents at the start of the worker."""
    lmdb: Any = sys.modules["lmdb"]
    for environment in environments:
        main = environment.open_db()
        with contextlib.suppress(lmdb.Error):  # it belongs to another environment, or has ended
            is_main = transaction.stat(main) == transaction.stat()
            if not is_main or transaction.id() > environment.info()["last_txnid"]:
                break
            with transaction.cursor() as cursor:
                buffers = cursor.first() and not isinstance(cursor.key(), bytes)
            return operator.methodcaller("begin", buffers=buffers), (environment,)
    raise _rejected(
        "an lmdb.Transaction must read the main database of an environment that is an earlier attribute of the dataset",
        _LMDB_HINT,
    )


def _refuse_database(_: Any) -> Any:
    raise _rejected("a database handle of lmdb does not report its name", _LMDB_HINT)


def _make_environment(path: str, data: tuple[str, tuple[int, int]], options: dict[str, Any]) -> Any:
    check_identity(*data)
    return importlib.import_module("lmdb").Environment(path, max_dbs=_MAX_DBS, create=False, **options)


PER_WORKER[_make_environment] = "an lmdb environment"
DATABASES: dict[str, dict[str, Reduce]] = {
    "sqlite3": {"Connection": _reduce_connection, "Cursor": _reduce_cursor},
    "h5py": {
        "Group": _reduce_h5,  # a File is one
        "Dataset": _reduce_h5,
        "AttributeManager": _reduce_h5_attributes,
        **dict.fromkeys(("h5f.FileID", "h5g.GroupID", "h5d.DatasetID", "h5a.AttrID"), _refuse_h5_id),
    },
}
"""The handle types of each library and their reducers."""
