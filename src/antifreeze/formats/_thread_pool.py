"""Runs many small reads concurrently: results in order, the first error in order, and every wait bounded."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from antifreeze.core import DaemonCall, Stalled

T = TypeVar("T")

_CHUNK = 16
_MAX_THREADS = 16
# A chunk that takes this long is on a mount that does not respond.
_STALL_TIMEOUT_S = 120.0


class DaemonThreadPool(Generic[T]):
    """Threads that apply ``work`` to each item.

    Tried: ThreadPoolExecutor. A read that hangs forever keeps its thread, and the interpreter joins such threads when
    it exits. These are daemons: what cannot be stopped is reported, and left behind.

    Without a number of threads the pool starts as one, and grows while threads wait for the disk. Several threads on
    cached files only wait for each other: measured, 8 take twice the CPU of 1 and longer.
    """

    def __init__(
        self,
        work: Callable[[str], T],
        items: Sequence[str],
        threads: int | None,
        stall_timeout_s: float = _STALL_TIMEOUT_S,
    ) -> None:
        self._work, self._items, self._stall_timeout_s = work, items, stall_timeout_s
        self._first = 1 if threads is None else threads
        self._max_threads = _MAX_THREADS if threads is None else threads
        self._todo: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[int, float] | None] = queue.SimpleQueue()
        """The start of a chunk, and seconds of waiting per second of work; None for a thread that ends."""
        self._results: dict[int, list[T]] = {}
        self._errors: dict[int, BaseException] = {}
        self._stopped = False
        self._threads: list[DaemonCall[None]] = []
        self._at: dict[int, str] = {}
        for start in range(0, len(items), _CHUNK):
            self._todo.put(start)

    def run(self, advance: Callable[[int], None] | None = None) -> list[T]:
        """Return the results in the order of the items, or raise the error of the first item that has one."""
        try:
            self._start(self._first)
            running = len(self._threads)
            while running:
                done = self._next()
                if done is None:
                    running -= 1
                    continue
                start, idle = done
                if advance is not None:
                    advance(len(self._results[start]))
                if start in self._errors:
                    # Invariant: chunks are handed out in order. All earlier ones are done or in hand, and are
                    # waited for, so the error that is raised is always that of the first bad item.
                    self._stopped = True
                elif idle > 2 * len(self._threads):
                    # As many threads as this would keep one core busy: waiting for each other looks like n - 1.
                    running += self._start(len(self._threads))
        finally:
            self._stopped = True
        for thread in self._threads:
            thread.join(1.0)
        if self._errors:
            raise self._errors[min(self._errors)]
        return [result for _, results in sorted(self._results.items()) for result in results]

    def _start(self, more: int) -> int:
        """Start up to ``more`` threads and return how many were started."""
        more = max(0, min(more, self._max_threads - len(self._threads), self._todo.qsize()))
        for _ in range(more):
            self._threads.append(DaemonCall(self._loop, "antifreeze-footers"))
        return more

    def _next(self) -> tuple[int, float] | None:
        try:
            return self._done.get(timeout=self._stall_timeout_s)
        except queue.Empty:
            stuck = sorted(self._at.copy().values())
            raise Stalled(
                f"nothing was read for {self._stall_timeout_s:.0f} s; waiting for {', '.join(stuck[:5])}",
                hint="check that `ls` and `cat` work there: the disk or mount does not respond",
                silent_s=self._stall_timeout_s,
                files=tuple(stuck),
            ) from None

    def _loop(self) -> None:
        while not self._stopped:
            try:
                start = self._todo.get_nowait()
            except queue.Empty:
                break
            self._done.put((start, self._run_chunk(start)))
        self._at.pop(threading.get_ident(), None)
        self._done.put(None)

    def _run_chunk(self, start: int) -> float:
        began_s, cpu_s = time.monotonic(), time.thread_time()
        results = self._results[start] = []
        try:
            for item in self._items[start : start + _CHUNK]:
                self._at[threading.get_ident()] = item
                results.append(self._work(item))
        except BaseException as raised:  # noqa: BLE001 - the border of the thread: raised again by the caller
            self._errors[start] = raised
        work_s = max(time.thread_time() - cpu_s, 1e-9)
        return (time.monotonic() - began_s) / work_s - 1
