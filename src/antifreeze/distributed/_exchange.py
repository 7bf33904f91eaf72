"""Ranks tell each other, through the job's store, how far their loaders are, and log which rank holds the others up.

Problem. In a job of several ranks, one that waits for data stops all others in their next collective. Nothing in the
log of those says which rank it is, let alone why; the job ends half an hour later with a timeout of NCCL on every rank.
The rank at fault may be unable to say anything, because it is stopped, or native code holds its interpreter's lock.

How. Each process has one thread, while a loader is iterated over in a process group of several ranks::

    every beat                ──▶ write our record: epoch, step, how long next() has waited, where, why
    our loop takes no batch   ──▶ read the records of the others ──▶ judge ──▶ log what has begun, and what is over

In a job of up to ``EVERYBODY`` ranks, each rank that waits reads the records of all. In a larger one, rank 0 reads for
all and publishes those records that matter under one key. If nothing new comes from there, because rank 0 is the one
that has stalled, the first rank of each machine reads for its machine; if nothing comes from that one either, a rank
reads for itself.

Guarantees:

- The thread only logs: it kills nothing, raises nothing, and delays neither training nor the end of the process.
- A loop that takes its batches in time costs one small write per beat, and no read.
- A store that does not answer is reported like a rank that does not: calls to it run in a thread that may hang.
- A process that was itself suspended accuses nobody: it forgets what it knew, and begins to observe again.

Assumptions. ``torch.distributed`` has a TCP store, as ``torchrun`` and ``init_process_group`` make it. Clocks of
machines are not compared: how long a rank has been silent is measured by the clock of its reader, since its counter
last changed.

# Tried: a collective for the exchange. It hangs with the rank that it should report.
# Tried: the connection to the store that training uses. A blocking wait there blocks us, and ours blocks training.
# Fork-safe: a child forgets the thread, its lock and its connection; they belong to the parent.
"""

from __future__ import annotations

import atexit
import itertools
import math
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self, TypeVar

from antifreeze.core import get_logger, pid_namespace, stat_of
from antifreeze.distributed._rank_discovery import distributed_module, local_rank_of
from antifreeze.distributed._rank_judge import (
    LogThrottle,
    RankProblem,
    RankVerdict,
    Told,
    concerning,
    judge,
    say,
    say_store,
)
from antifreeze.distributed._record import (
    RankRecord,
    RankStatus,
    Seen,
    encode,
    make_record,
    read_found,
    take_in,
    to_json,
    write_found,
)
from antifreeze.distributed._store import Answer, JobStore, default_store, job_key, node_key, rank_key

logger = get_logger()

T = TypeVar("T")

BEAT_S = 0.25
"""How often a rank writes its record, in a job of up to 512 ranks; beyond, half as often for twice as many."""
RANKS_PER_S = 2048
EVERYBODY = 64
"""Up to this number of ranks, each rank reads for itself."""
WAITS_S = 0.75
"""A rank that has taken no batch for this long begins to read."""
READ_S = 0.5
"""How often it reads."""
AWAY_GRACE_S = 1.5
"""A rank that has not read for this long knows nothing of what has happened since."""
JOB_FRESH_S, NODE_FRESH_S = 2.0, 4.0
_LINGER_S, _OPEN_S = 2.0, 10.0  # a rank that has recovered keeps reading, to report what it has waited for
_ANSWER_S = 0.2
_SLACK_S = 0.05
_CLOSE_TIMEOUT_S = 0.5
_beats = itertools.count(1)


# -- loaders that other ranks can see ------------------------------------------------------------------------------


class Watched:
    """A loader that other ranks can see, until it is closed or nobody holds it any more."""

    def __init__(self, owner: T, status: Callable[[T], RankStatus]) -> None:
        self._owner: Callable[[], Any] = weakref.ref(owner)
        self._status = status
        self._open = True
        self._last = RankStatus(0, 0, 0.0, 0.0)

    def status(self) -> RankStatus | None:
        """Return the progress of the loader; None if it is not watched any more."""
        owner = self._owner()
        if owner is None or not self._open:
            return None
        try:
            self._last = self._status(owner)
        except Exception as error:  # noqa: BLE001  border: it looks at a loader that another thread changes
            logger.debug("antifreeze: could not inspect a loader: %r", error)
        return self._last

    @property
    def is_open(self) -> bool:
        """True while it is watched."""
        return self._open and self._owner() is not None

    def close(self) -> None:
        """Watch it no more. Takes no lock and wakes no thread: the garbage collector may call this anywhere."""
        self._open = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def watch_ranks(owner: T, status: Callable[[T], RankStatus]) -> Watched:
    """Let other ranks see how far a loader is, if this process is one of several. Costs nothing otherwise.

    ``status`` is called with the owner, from another thread, a few times a second. It must not block, nor hold the
    owner: that is held weakly, and watched no more when it is gone.
    """
    watched = Watched(owner, status)
    distributed = distributed_module()
    if distributed is not None and distributed.get_world_size() > 1:
        _thread.watch(watched)
    return watched


# -- who reads -----------------------------------------------------------------------------------------------------


class StoreReader(NamedTuple):
    """Which rank of how many, and which of its machine if that is known."""

    rank: int
    world_size: int
    local_rank: int | None

    @property
    def is_one_of_few(self) -> bool:
        """True if every rank reads for itself."""
        return self.world_size <= EVERYBODY


def reads_all(reader: StoreReader, job_silent_s: float, node_silent_s: float) -> bool:
    """True if a rank must read all records. The times are how long those that read for it have published nothing."""
    if reader.is_one_of_few or reader.rank == 0:
        return True
    if job_silent_s < JOB_FRESH_S:
        return False
    return reader.local_rank in (0, None) or node_silent_s >= NODE_FRESH_S


# -- one beat ------------------------------------------------------------------------------------------------------


class RankExchange:
    """What one rank writes, reads and logs. Used by one thread; it has no clock, and blocks for ``_ANSWER_S``."""

    def __init__(self, store: JobStore, told: Told, rank: int, world_size: int) -> None:
        self.reader = StoreReader(rank, world_size, local_rank_of(os.environ))
        self.store = store
        self._told = told
        self._throttle = LogThrottle()
        self._us = _this_process(rank)
        self._seen: dict[int, Seen] = {}
        self._waited_s = self._asked_s = self._read_s = self._went_s = -math.inf
        self._began_s = 0.0
        """When this time of reading began."""
        self._heard: dict[str, tuple[int, float]] = {}
        """The last beat of those that read for others, and when it arrived."""
        self._reported_s: dict[int, float] = {}
        self._found = ""
        """What we have found in the records, for those that do not read them."""
        self._first = RankRecord(rank=0, host=store.where.rpartition(":")[0])
        """The last record of rank 0, which holds the store unless another process hosts it."""
        self._store_is_silent = False

    def go(self, statuses: Sequence[RankStatus], now_s: float) -> None:
        """Write our record; if our loop waits, read those of the others, judge them and log what is new."""
        if rest := self._throttle.rest(now_s):
            logger.warning("%s", rest)
        idle_s = min(status.idle_s for status in statuses)
        status = max(statuses, key=lambda status: (status.waited_s, -status.idle_s))
        own = make_record(self._us, next(_beats), status)
        texts = {rank_key(own.rank): encode(to_json(own))}
        keys = self._keys(now_s) if self._is_reading(idle_s, now_s) else []
        if keys and self._found:
            texts[job_key() if own.rank == 0 else node_key(own.host)], self._found = self._found, ""
        if self.store.exchange(texts, keys, _ANSWER_S):
            self._store_is_silent = False
        else:
            self._no_answer(status, idle_s, now_s)
        while self.store.answers:  # the last one may have arrived late
            self._digest(self.store.answers.popleft(), own, status._replace(idle_s=idle_s), now_s)

    def leave(self) -> None:
        """Write that no loader is iterated over any more: from now on we may be silent."""
        text = encode(to_json(make_record(self._us, next(_beats), None)))
        self.store.exchange({rank_key(self._us.rank): text}, [], _ANSWER_S)

    def _digest(self, answer: Answer, own: RankRecord, status: RankStatus, now_s: float) -> None:
        """Judge what was read, and log it."""
        self._read_s = now_s
        self._take_in(answer, now_s)
        self._seen[own.rank] = Seen(own, now_s)
        self._first = self._seen[0].record if 0 in self._seen else self._first
        verdicts = judge(self._seen, now_s)
        self._log(concerning(verdicts, status), status.idle_s, now_s)
        if answer.keys != self._others() and not self.reader.is_one_of_few:
            self._found = self._write_found(verdicts, now_s)

    def _is_reading(self, idle_s: float, now_s: float) -> bool:
        away = now_s - self._went_s > AWAY_GRACE_S  # it is our own process that was suspended
        self._went_s = now_s
        if idle_s >= WAITS_S:
            self._waited_s = now_s
        after_s = now_s - self._waited_s
        if after_s > (_OPEN_S if self._told.open else _LINGER_S):
            return False
        if away or now_s - max(self._read_s, self._began_s) > AWAY_GRACE_S:
            self._seen, self._began_s = {}, now_s
        if now_s - self._asked_s < READ_S - _SLACK_S:
            return False
        self._asked_s = now_s
        return True

    def _keys(self, now_s: float) -> list[str]:
        """Return what to read: all records, or what others have found in them."""
        silent_s = [now_s - max(self._heard.get(key, (0, -math.inf))[1], self._began_s) for key in self._others()]
        if reads_all(self.reader, *silent_s):
            return [rank_key(rank) for rank in range(self.reader.world_size) if rank != self.reader.rank]
        return self._others()

    def _others(self) -> list[str]:
        return [job_key(), node_key(self._us.host)]

    def _take_in(self, answer: Answer, now_s: float) -> None:
        if answer.keys != self._others():
            self._seen = take_in(self._seen, answer.values, range(self.reader.world_size), now_s)
            return
        for key in reversed(answer.keys):  # Order: the rank that reads for all comes last, and so takes precedence
            found = read_found(answer.values.get(key, b""), self.reader.world_size, now_s)
            if found is not None and found.beat != self._heard.get(key, (0, 0.0))[0]:
                self._heard[key] = (found.beat, now_s)
                self._seen = found.seen

    def _write_found(self, verdicts: list[RankVerdict], now_s: float) -> str:
        for rank in [*(verdict.record.rank for verdict in verdicts), *self._told.open]:
            self._reported_s[rank] = now_s
        self._reported_s = {rank: at_s for rank, at_s in self._reported_s.items() if now_s - at_s < _OPEN_S}
        return write_found(self._seen, list(self._reported_s), next(_beats), now_s)

    def _log(self, verdicts: list[RankVerdict], idle_s: float, now_s: float, store: str = "") -> None:
        records = {} if store else {rank: seen.record for rank, seen in self._seen.items()}
        for event in self._throttle.in_full(self._told.news(verdicts, records, now_s), now_s):
            about = event.verdict.record
            state = _process_state(about, self._us) if event.verdict.kind is RankProblem.SILENT else None
            world_size = self.reader.world_size
            text = say(event, rank=self._us.rank, world_size=world_size, idle_s=idle_s, state=state, store=store)
            logger.warning("%s", text)

    def _no_answer(self, status: RankStatus, idle_s: float, now_s: float) -> None:
        """Report a store that does not answer: the process that holds it is stopped, and nobody can be read."""
        silent_s = self.store.busy_s
        if silent_s < status.silent_s or idle_s < WAITS_S:
            return
        where = self.store.where
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" and self._us.rank != 0:
            self._log([RankVerdict(RankProblem.SILENT, self._first, silent_s)], idle_s, now_s, store=where)
        elif not self._store_is_silent:
            self._store_is_silent = True
            logger.warning("%s", say_store(where, silent_s, idle_s=idle_s))


def _this_process(rank: int) -> RankRecord:
    """Return a record that says which process we are, and nothing else."""
    pid = os.getpid()
    stat = stat_of(pid)
    started = 0 if stat is None else stat.start_ticks
    return RankRecord(rank=rank, host=socket.gethostname(), pid=pid, started=started, space=pid_namespace())


def _process_state(record: RankRecord, us: RankRecord) -> str | None:
    """Return the letter of a rank's process, ``gone`` if it has ended, or None if it cannot be seen from here."""
    if (record.host, record.space) != (us.host, us.space) or not (us.space and record.pid and record.started):
        return None
    stat = stat_of(record.pid)
    is_gone = stat is None or stat.start_ticks != record.started or stat.state in ("Z", "X")
    return "gone" if stat is None or is_gone else stat.state


# -- the thread ----------------------------------------------------------------------------------------------------


class ExchangeThread:
    """The thread of a process. It starts with the first loader and ends with the last, or with the process group."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._watched: dict[int, Watched] = {}
        self._told = Told()
        self._given_up: Callable[[], Any] = lambda: None
        """The store that has failed, or that cannot be used."""

    def watch(self, watched: Watched) -> None:
        """Add a loader, and start the thread if it does not run."""
        with self._lock:
            self._watched[id(watched)] = watched
            if self._stop.is_set() or (self._thread is not None and self._thread.is_alive()):
                return
            self._thread = threading.Thread(target=self._run, name="antifreeze-ranks", daemon=True)
            try:
                self._thread.start()
            except RuntimeError as error:  # the system has no thread left; training needs it more than we do
                logger.debug("antifreeze: ranks are not watched: %s", error)
                self._thread = None

    def stop(self) -> None:
        """End the thread for good, because the process ends."""
        self._stop.set()
        thread = self._thread
        if thread is not None:
            thread.join(_CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        try:
            while not self._is_over():
                self._serve()
        except Exception:  # border: this thread only logs; a failure in it must not be training's concern
            logger.exception("antifreeze: the thread that watches ranks has failed; training continues without it")
            with self._lock:
                self._thread = None

    def _serve(self) -> None:
        """Exchange records in one process group, while it exists and a loader is iterated over."""
        distributed = distributed_module()
        store = default_store(distributed)
        if store is None:
            return
        job_store = JobStore(store)
        del store  # its last owner closes the server, and that must not be us
        exchange = RankExchange(job_store, self._told, int(distributed.get_rank()), int(distributed.get_world_size()))
        beat_s = max(BEAT_S, exchange.reader.world_size / RANKS_PER_S)
        try:
            while job_store.is_of(self._usable_store()) and (statuses := self._statuses()):
                exchange.go(statuses, time.monotonic())
                if job_store.failed:
                    self._given_up = job_store.of
                self._stop.wait(beat_s)
            if job_store.is_of(default_store(distributed_module())) and not job_store.failed:
                exchange.leave()
        finally:
            job_store.close(_CLOSE_TIMEOUT_S / 2)

    def _usable_store(self) -> Any:
        store = None if self._stop.is_set() else default_store(distributed_module())
        return None if store is self._given_up() else store

    def _statuses(self) -> list[RankStatus]:
        found = []
        for key, watched in list(self._watched.items()):
            status = watched.status()
            if status is None:
                self._watched.pop(key, None)
            else:
                found.append(status)
        return found

    def _is_over(self) -> bool:
        """True if this thread ends: no loader, or no store to talk to. The next loader starts another thread."""
        with self._lock:
            needed = any(watched.is_open for watched in self._watched.values()) and self._usable_store() is not None
            if not needed:
                self._thread = None
            return not needed


_thread = ExchangeThread()


def _at_exit() -> None:
    # A daemon thread that returns from native code while the interpreter is finalized can crash the process.
    _thread.stop()


def _in_child() -> None:
    """Forget everything that belongs to the parent: its threads are not here, and their locks may be held."""
    global _thread
    _thread = ExchangeThread()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_in_child)
