"""The thread that talks to the store, so that a store that does not answer keeps nobody from saying so."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

from antifreeze.core import get_logger
from antifreeze.distributed._store import JobStore

logger = get_logger()

Errand = Callable[[JobStore], None]

_LOOK_S = 10.0


class Courier:
    """Does one errand after the other. Its thread is a daemon: it may stand in a call that never returns."""

    def __init__(self, store: JobStore) -> None:
        self.store = store
        self.failed = False
        """Whether the store is gone; then there is nothing more to do."""
        self._errands: queue.SimpleQueue[Errand | None] = queue.SimpleQueue()
        self._back = threading.Event()
        self._since_s: float | None = None
        self._thread = threading.Thread(target=self._run, name="antifreeze-ranks-store", daemon=True)
        self._thread.start()

    @property
    def busy_s(self) -> float:
        """For how long it has been on its way; 0 if it is not."""
        since_s = self._since_s
        return 0.0 if since_s is None else time.monotonic() - since_s

    def send(self, errand: Errand, wait_s: float) -> bool:
        """Have an errand done; False if that takes longer, or if it is still at the last one and cannot take it."""
        if self._since_s is not None or self.failed:
            return False
        self._since_s = time.monotonic()
        self._back.clear()
        self._errands.put(errand)
        return self._back.wait(wait_s) and not self.failed

    def end(self, wait_s: float) -> None:
        """Let the thread end; waits no longer than that for it."""
        self._errands.put(None)
        self._thread.join(wait_s)

    def _run(self) -> None:
        while True:
            try:
                errand = self._errands.get(timeout=_LOOK_S)
            except queue.Empty:
                continue
            if errand is None:
                return
            try:
                errand(self.store)
            except Exception as error:  # noqa: BLE001  border: it may fail in as many ways as a network can
                logger.debug("antifreeze: the job's store is gone, ranks are not watched any more: %s", error)
                self.failed = True
            self._since_s = None
            self._back.set()
