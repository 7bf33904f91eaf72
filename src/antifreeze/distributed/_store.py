"""The job's store, through our own connection and in a thread that may hang.

On the connection that training uses, a call would block while another thread waits there, and make others wait. Of the
calls, only those are used that the store answers at once: ``set``, ``check``, and ``multi_get`` of keys that exist.
Still they can take forever, if the process that holds the store is stopped.
"""

from __future__ import annotations

import datetime as dt
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from antifreeze.core import DaemonCall, get_logger

logger = get_logger()

_MAX_CHECKS = 64
MAX_READ_NBYTES = 128_000
"""No value of ours is longer. The store sends a value as a whole, so a longer one can be refused only after it has
arrived; then it is not read again for a while."""
_REFUSED_S = 30.0
_PREFIX = "antifreeze/ranks"


def job_key() -> str:
    """Return the key at which the rank that reads for all publishes what it has found."""
    return f"{_PREFIX}/found"


def node_key(host: str) -> str:
    """Return the key at which the rank that reads for a machine publishes what it has found."""
    return f"{_PREFIX}/found/{host}"


def rank_key(rank: int) -> str:
    """Return the key of a rank's record."""
    return f"{_PREFIX}/{rank}"


def default_store(distributed: Any) -> Any:
    """Return the store of the default process group; None if it has none that can be used."""
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


class Answer(NamedTuple):
    """What was read, and the keys that were asked for."""

    keys: list[str]
    values: dict[str, bytes]


class JobStore:
    """Writes and reads records without ever blocking its caller for longer than it says. Used by one thread."""

    def __init__(self, store: Any) -> None:
        self.of = weakref.ref(store)
        self.where = "{}:{}".format(*_address(store) or ("?", "?"))
        self.failed = False
        """True once a call has failed: the store is gone for good."""
        self.answers: deque[Answer] = deque()
        """What was read and not yet consumed. An answer may arrive after ``exchange`` has stopped waiting for it."""
        self._call: DaemonCall[None] | None = None
        self._own: Any = None
        self._there: set[str] = set()
        self._turn = 0
        self._refused_until_s: dict[str, float] = {}
        """Keys whose values are too long to be ours, and until when they are not read."""

    def is_of(self, store: Any) -> bool:
        """True if this is a connection to that store."""
        return store is not None and self.of() is store

    @property
    def busy_s(self) -> float:
        """For how long a call has been running; 0 if there is none."""
        return 0.0 if self._call is None or self._call.is_done else self._call.elapsed_s

    def exchange(self, texts: Mapping[str, str], keys: list[str], timeout_s: float) -> bool:
        """Write values and read others in a thread. What was read is appended to ``answers``.

        Returns False if that has failed, takes longer than the timeout, or cannot begin as the last call still runs.
        """
        if self.failed or (self._call is not None and not self._call.is_done):
            return False
        self._call = DaemonCall(lambda: self._exchange(texts, keys), "antifreeze-ranks-store")
        return self._call.wait(timeout_s) and not self.failed

    def close(self, timeout_s: float) -> None:
        """Wait for the last call for a limited time."""
        if self._call is not None:
            self._call.join(timeout_s)

    def put(self, key: str, text: str) -> None:
        """Write a value. Blocks."""
        self._connected().set(key, text)

    def fetch(self, keys: Sequence[str]) -> dict[str, bytes]:
        """Return the values of those keys that exist, without values that are longer than any of ours. Blocks."""
        own, now_s = self._connected(), time.monotonic()
        self._refused_until_s = {key: end_s for key, end_s in self._refused_until_s.items() if end_s > now_s}
        keys = [key for key in keys if key not in self._refused_until_s]
        missing = [key for key in keys if key not in self._there]
        if missing:
            self._turn = (self._turn + _MAX_CHECKS // 2) % len(missing)
            missing = missing[self._turn :] + missing[: self._turn]
            self._there.update(present(own.check, missing, _MAX_CHECKS))
        there = [key for key in keys if key in self._there]
        found = dict(zip(there, own.multi_get(there), strict=True)) if there else {}
        refused = [key for key, raw in found.items() if len(raw) > MAX_READ_NBYTES]
        self._refused_until_s.update(dict.fromkeys(refused, now_s + _REFUSED_S))
        return {key: raw for key, raw in found.items() if key not in self._refused_until_s}

    def _exchange(self, texts: Mapping[str, str], keys: list[str]) -> None:
        try:
            for key, text in texts.items():
                self.put(key, text)
            if keys:
                self.answers.append(Answer(keys, self.fetch(keys)))
        except Exception as error:  # noqa: BLE001  border: it may fail in as many ways as a network can
            logger.debug("antifreeze: the job's store is gone, ranks are not watched any more: %s", error)
            self.failed = True

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
    """Return keys that exist, with at most ``most`` questions: a group of which one is missing is halved."""
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
