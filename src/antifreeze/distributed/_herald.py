"""The thread that tells the other ranks where our loaders stand, and says which rank it is that we wait for.

There is one for a process, while a loader is iterated over in a job of several ranks, and none otherwise. It only
speaks: it kills nothing, raises nothing, and holds up neither training nor the end of the process.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Self, TypeVar

from antifreeze.core import get_logger
from antifreeze.distributed._courier import Courier
from antifreeze.distributed._rank_discovery import distributed_module
from antifreeze.distributed._rank_judge import Told
from antifreeze.distributed._record import RankStatus
from antifreeze.distributed._round import Round
from antifreeze.distributed._store import JobStore, default_store

logger = get_logger()

T = TypeVar("T")

BEAT_S = 0.25
"""How often a rank says where it stands, in a job of up to 512 ranks; beyond, half as often for twice as many."""
_RANKS_PER_S = 2048
_END_S = 0.5


class Watched:
    """A loader that other ranks can see, until it is closed or nobody holds it any more."""

    def __init__(self, owner: T, standing: Callable[[T], RankStatus]) -> None:
        self._owner: Callable[[], Any] = weakref.ref(owner)
        self._standing = standing
        self._open = True
        self._last = RankStatus(0, 0, 0.0, 0.0)

    def standing(self) -> RankStatus | None:
        """Return where it stands; None if it is watched no more."""
        owner = self._owner()
        if owner is None or not self._open:
            return None
        try:
            self._last = self._standing(owner)
        except Exception as error:  # noqa: BLE001  border: it looks at a loader that goes on meanwhile
            logger.debug("antifreeze: where a loader stands cannot be told: %r", error)
        return self._last

    @property
    def is_open(self) -> bool:
        """Whether it is still watched."""
        return self._open and self._owner() is not None

    def close(self) -> None:
        """Watch it no more. Takes no lock and wakes nobody: the collector may call this anywhere."""
        self._open = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def watch_ranks(owner: T, standing: Callable[[T], RankStatus]) -> Watched:
    """Let other ranks see where a loader stands, if this process is one of several. Costs nothing otherwise.

    ``standing`` is called with the owner, from another thread, a few times a second. It must not wait for anything, nor
    hold the owner: that is held weakly, and watched no more when it goes.
    """
    watched = Watched(owner, standing)
    distributed = distributed_module()
    if distributed is not None and distributed.get_world_size() > 1:
        _herald.watch(watched)
    return watched


class Herald:
    """The thread, and what it needs. It starts with the first loader and ends with the last, or with the group."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._watched: dict[int, Watched] = {}
        self._told = Told()
        self._given_up: Callable[[], Any] = lambda: None
        """The store that has failed us, or that cannot be used."""

    def watch(self, watched: Watched) -> None:
        """Take in a loader, and have a thread."""
        with self._lock:
            self._watched[id(watched)] = watched
            if self._stop.is_set() or (self._thread is not None and self._thread.is_alive()):
                return
            self._thread = threading.Thread(target=self._run, name="antifreeze-ranks", daemon=True)
            try:
                self._thread.start()
            except RuntimeError as error:  # no thread can be had; training needs it more than we do
                logger.debug("antifreeze: ranks are not watched: %s", error)
                self._thread = None

    def stop(self) -> None:
        """End the thread for good, because the process ends."""
        self._stop.set()
        thread = self._thread
        if thread is not None:
            thread.join(_END_S)

    # -- the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._is_over():
                self._serve()
        except Exception:  # border: this thread only speaks; whatever fails in it must not be training's concern
            logger.exception("antifreeze: the thread that watches ranks has failed; training goes on without it")
            with self._lock:
                self._thread = None

    def _serve(self) -> None:
        """Speak in one process group, while it is there and a loader is iterated over."""
        distributed = distributed_module()
        store = default_store(distributed)
        if store is None:
            return
        courier = Courier(JobStore(store))
        del store  # its last owner closes the server, and that must not be us
        round_ = Round(courier, self._told, int(distributed.get_rank()), int(distributed.get_world_size()))
        beat_s = max(BEAT_S, round_.reader.world_size / _RANKS_PER_S)
        try:
            while courier.store.is_of(self._usable_store()) and (standings := self._standings()):
                round_.go(standings, time.monotonic())
                if courier.failed:
                    self._given_up = courier.store.of
                self._stop.wait(beat_s)
            if courier.store.is_of(default_store(distributed_module())) and not courier.failed:
                round_.leave()
        finally:
            courier.end(_END_S / 2)

    def _usable_store(self) -> Any:
        store = None if self._stop.is_set() else default_store(distributed_module())
        return None if store is self._given_up() else store

    def _standings(self) -> list[RankStatus]:
        found = []
        for key, watched in list(self._watched.items()):
            standing = watched.standing()
            if standing is None:
                self._watched.pop(key, None)
            else:
                found.append(standing)
        return found

    def _is_over(self) -> bool:
        """Tell whether this thread ends: no loader, or nobody to talk to. The next loader gets a thread of its own."""
        with self._lock:
            needed = any(watched.is_open for watched in self._watched.values()) and self._usable_store() is not None
            if not needed:
                self._thread = None
            return not needed


_herald = Herald()


def _at_exit() -> None:
    # A daemon that comes back from native code while the interpreter ends can bring the process down with it.
    _herald.stop()


def _in_child() -> None:
    """Forget everything that belongs to the parent: its threads are not here, and their locks may be held."""
    global _herald
    _herald = Herald()


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
