"""What a rank does a few times a second: say where it stands and, while it waits, read where the others stand."""

from __future__ import annotations

import itertools
import math
import os
from collections import deque
from collections.abc import Mapping, Sequence

from antifreeze.core import get_logger
from antifreeze.distributed._courier import Courier
from antifreeze.distributed._log_throttle import LogThrottle
from antifreeze.distributed._rank_discovery import local_rank
from antifreeze.distributed._rank_judge import RankProblem, RankVerdict, Seen, Told, concerning, judge
from antifreeze.distributed._rank_messages import say, say_store
from antifreeze.distributed._record import RankRecord, RankStatus, encode, make_record, to_json
from antifreeze.distributed._store import JobStore, job_key, node_key, rank_key
from antifreeze.distributed._store_reader import AWAY_S, StoreReader, read_found, reads_all, take_in, write_found
from antifreeze.distributed._this_process import state_of, this_process

logger = get_logger()

Answer = dict[str, bytes]

WAITS_S = 0.75
"""Who has taken no batch for so long begins to read."""
READ_S = 0.5
"""How often it does."""
_LINGER_S, _OPEN_S = 2.0, 10.0  # who goes on reads on, to hear what it has waited for, and that it is over
_ANSWER_S = 0.2
_SLACK_S = 0.05
_beats = itertools.count(1)


class Round:
    """One rank's part. Used by one thread."""

    def __init__(self, courier: Courier, told: Told, rank: int, world_size: int) -> None:
        self.reader = StoreReader(rank, world_size, local_rank())
        self._courier, self._told, self._speech = courier, told, LogThrottle()
        self._us = this_process(rank)
        self._seen: dict[int, Seen] = {}
        self._answers: deque[tuple[list[str], Answer]] = deque()
        """What was read, with the keys that were asked for. The courier adds, we take."""
        self._waited_s = self._asked_s = self._read_s = self._went_s = -math.inf
        self._began_s = 0.0
        """When this time of reading began."""
        self._heard: dict[str, tuple[int, float]] = {}
        """What came last from those who read for others, and when."""
        self._spoken_of: dict[int, float] = {}
        self._found = ""
        """What we have found in the records, for those who do not read them."""
        self._first = RankRecord(rank=0, host=courier.store.where.rpartition(":")[0])
        """What was last heard of rank 0, which holds the store unless somebody else was told to."""
        self._store_is_silent = False

    def go(self, standings: Sequence[RankStatus], now_s: float) -> None:
        """Say where the loaders stand; read, judge and speak if they wait."""
        if rest := self._speech.rest(now_s):
            logger.warning("%s", rest)
        idle_s = min(standing.idle_s for standing in standings)
        standing = max(standings, key=lambda standing: (standing.waited_s, -standing.idle_s))
        own = make_record(self._us, next(_beats), standing)
        texts = {rank_key(own.rank): encode(to_json(own))}
        keys = self._keys(now_s) if self._is_reading(idle_s, now_s) else []
        if keys and self._found:
            texts[self._found_key()], self._found = self._found, ""
        if self._courier.send(lambda store: self._exchange(store, texts, keys), _ANSWER_S):
            self._store_is_silent = False
        else:
            self._no_answer(standing, idle_s, now_s)
        while self._answers:  # the last one may have come late
            self._digest(*self._answers.popleft(), own, standing._replace(idle_s=idle_s), now_s)

    def _digest(self, keys: list[str], answer: Answer, own: RankRecord, standing: RankStatus, now_s: float) -> None:
        """Judge and speak of what was read."""
        self._read_s = now_s
        self._take_in(answer, keys, now_s)
        self._seen[own.rank] = Seen(own, now_s)
        self._first = self._seen[0].record if 0 in self._seen else self._first
        verdicts = judge(self._seen, now_s)
        self._speak(concerning(verdicts, standing), standing.idle_s, now_s)
        if keys != self._others() and not self.reader.is_one_of_few:
            self._found = self._write_found(verdicts, now_s)

    def _exchange(self, store: JobStore, texts: Mapping[str, str], keys: list[str]) -> None:
        """Write and read. Runs in the courier's thread."""
        for key, text in texts.items():
            store.put(key, text)
        if keys:
            self._answers.append((keys, store.fetch(keys)))

    def leave(self) -> None:
        """Say that no loader is iterated over any more: from now on we may be silent."""
        text = encode(to_json(make_record(self._us, next(_beats), None)))
        self._courier.send(lambda store: store.put(rank_key(self._us.rank), text), _ANSWER_S)

    # -- reading ---------------------------------------------------------------------------------------------------

    def _is_reading(self, idle_s: float, now_s: float) -> bool:
        away = now_s - self._went_s > AWAY_S  # it is us who stood still
        self._went_s = now_s
        if idle_s >= WAITS_S:
            self._waited_s = now_s
        after_s = now_s - self._waited_s
        if after_s > (_OPEN_S if self._told.open else _LINGER_S):
            return False
        if away or now_s - max(self._read_s, self._began_s) > AWAY_S:
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

    def _found_key(self) -> str:
        return job_key() if self.reader.rank == 0 else node_key(self._us.host)

    def _take_in(self, answer: Answer, keys: list[str], now_s: float) -> None:
        if keys != self._others():
            self._seen = take_in(self._seen, answer, range(self.reader.world_size), now_s)
            return
        for key in reversed(keys):  # the one who reads for all is asked last, and so goes before
            found = read_found(answer.get(key, b""), self.reader.world_size, now_s)
            if found is not None and found.beat != self._heard.get(key, (0, 0.0))[0]:
                self._heard[key] = (found.beat, now_s)
                self._seen = found.seen

    # -- speaking --------------------------------------------------------------------------------------------------

    def _speak(self, verdicts: list[RankVerdict], idle_s: float, now_s: float, store: str = "") -> None:
        records: Mapping[int, RankRecord] = {rank: seen.record for rank, seen in self._seen.items()}
        for news in self._speech.in_full(self._told.news(verdicts, {} if store else records, now_s), now_s):
            about = news.verdict.record
            state = state_of(about, self._us) if news.verdict.kind is RankProblem.SILENT else None
            world_size = self.reader.world_size
            text = say(news, rank=self._us.rank, world_size=world_size, idle_s=idle_s, state=state, store=store)
            logger.warning("%s", text)

    def _write_found(self, verdicts: list[RankVerdict], now_s: float) -> str:
        for rank in [*(verdict.record.rank for verdict in verdicts), *self._told.open]:
            self._spoken_of[rank] = now_s
        self._spoken_of = {rank: at_s for rank, at_s in self._spoken_of.items() if now_s - at_s < _OPEN_S}
        return write_found(self._seen, list(self._spoken_of), next(_beats), now_s)

    def _no_answer(self, standing: RankStatus, idle_s: float, now_s: float) -> None:
        """Speak of a store that does not answer: who holds it has stopped, and with it all that others say."""
        silent_s = self._courier.busy_s
        if silent_s < standing.silent_s or idle_s < WAITS_S:
            return
        where = self._courier.store.where
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" and self._us.rank != 0:
            self._speak([RankVerdict(RankProblem.SILENT, self._first, silent_s)], idle_s, now_s, store=where)
        elif not self._store_is_silent:
            self._store_is_silent = True
            logger.warning("%s", say_store(where, silent_s, idle_s=idle_s))
