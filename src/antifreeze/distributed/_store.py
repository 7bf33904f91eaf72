"""The job's store, through a connection of our own.

On the connection that training uses, a call would wait while another thread waits there, and make others wait. Of the
calls, only those are used that the store answers at once: ``set``, ``check``, and ``multi_get`` of keys that are there.
Still they can take for ever, if the process that holds the store is stopped.
"""

from __future__ import annotations

import datetime as dt
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

_MOST_CHECKS = 64
MOST_READ_NBYTES = 128_000
"""Nothing of ours is longer. The store sends a value as a whole, so one that is longer can be refused only after it has
come; then it is not asked for again for a while."""
_REFUSED_S = 30.0
_PREFIX = "antifreeze/ranks"


def job_key() -> str:
    """Return where the one who reads for all says what it has found."""
    return f"{_PREFIX}/found"


def node_key(host: str) -> str:
    """Return where the one who reads for a machine says what it has found."""
    return f"{_PREFIX}/found/{host}"


def rank_key(rank: int) -> str:
    """Return where a rank says where it stands."""
    return f"{_PREFIX}/{rank}"


def default_store(distributed: Any) -> Any:
    """Return the store of the default process group; None if it has none that could be used."""
    try:
        store = distributed.distributed_c10d._get_default_store()
    except Exception:  # noqa: BLE001  border: a private function of torch
        return None
    return store if _address(store) else None


def _address(store: Any) -> tuple[str, int] | None:
    """Return host and port of a store that is a server; a file would grow with every record."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return (store.host, store.port) if type(store).__name__ == "TCPStore" else None


class JobStore:
    """What ranks say to each other. Its calls may take for ever; one thread uses it."""

    def __init__(self, store: Any) -> None:
        self.of = weakref.ref(store)
        self.where = "{}:{}".format(*_address(store) or ("?", "?"))
        self._own: Any = None
        self._there: set[str] = set()
        self._turn = 0
        self._refused_until_s: dict[str, float] = {}
        """Keys at which something stands that is not of ours, and until when they are not read."""

    def is_of(self, store: Any) -> bool:
        """Tell whether this is a connection to that store."""
        return store is not None and self.of() is store

    def put(self, key: str, text: str) -> None:
        """Write."""
        self._connected().set(key, text)

    def fetch(self, keys: Sequence[str]) -> dict[str, bytes]:
        """Return what stands at those of the keys that are there, and is no longer than what we write."""
        own, now_s = self._connected(), time.monotonic()
        self._refused_until_s = {key: end_s for key, end_s in self._refused_until_s.items() if end_s > now_s}
        keys = [key for key in keys if key not in self._refused_until_s]
        missing = [key for key in keys if key not in self._there]
        if missing:
            self._turn = (self._turn + _MOST_CHECKS // 2) % len(missing)
            missing = missing[self._turn :] + missing[: self._turn]
            self._there.update(present(own.check, missing, _MOST_CHECKS))
        there = [key for key in keys if key in self._there]
        found = dict(zip(there, own.multi_get(there), strict=True)) if there else {}
        refused = [key for key, raw in found.items() if len(raw) > MOST_READ_NBYTES]
        self._refused_until_s.update(dict.fromkeys(refused, now_s + _REFUSED_S))
        return {key: raw for key, raw in found.items() if key not in self._refused_until_s}

    def _connected(self) -> Any:
        if self._own is None:
            store = self.of()
            if store is None:
                raise ConnectionError("the process group is gone")
            self._own = store.clone() if hasattr(store, "clone") else _connect(store)
        return self._own


def _connect(store: Any) -> Any:
    """Return another connection to a store that cannot be cloned, which torch before 2.6 has."""
    inner = store
    while hasattr(inner, "underlying_store"):
        inner = inner.underlying_store
    timeout = dt.timedelta(seconds=60)
    return type(inner)(inner.host, inner.port, None, False, timeout=timeout, wait_for_workers=False)


def present(check: Callable[[list[str]], bool], keys: Sequence[str], most: int) -> list[str]:
    """Return keys that are there, found by asking at most so often: a group of which one is missing is halved."""
    found: list[str] = []
    groups = [list(keys)]
    while groups and most > 0:
        group = groups.pop()
        most -= 1
        if check(group):
            found += group
        elif len(group) > 1:
            half = len(group) // 2
            groups += [group[half:], group[:half]]
    return found
