"""Who reads what the ranks say, and what is made of it. Pure.

In a job of up to ``EVERYBODY`` ranks, each that waits reads the records of all. In a larger one, rank 0 reads for all,
and writes those records that matter to one key, which the others read. If nothing new comes from there, because rank 0
is the one that stands still, the first rank of each machine reads for its machine; if nothing comes from that one
either, a rank reads for itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from antifreeze.distributed._rank_judge import Seen
from antifreeze.distributed._record import MOST_NUMBER, decode, encode, from_json, to_json
from antifreeze.distributed._store import MOST_READ_NBYTES, rank_key

EVERYBODY = 64
"""In a job of so many ranks each reads for itself."""
AWAY_S = 1.5
"""Who has not looked for so long knows nothing of what happened in between."""
JOB_FRESH_S, NODE_FRESH_S = 2.0, 4.0
_MOST_FOUND = 16
_MOST_FOUND_NBYTES = MOST_READ_NBYTES


class StoreReader(NamedTuple):
    """Which rank of how many, and which of its machine if that is known."""

    rank: int
    world_size: int
    local_rank: int | None

    @property
    def is_one_of_few(self) -> bool:
        """Whether everybody reads for itself."""
        return self.world_size <= EVERYBODY


def reads_all(reader: StoreReader, job_silent_s: float, node_silent_s: float) -> bool:
    """Tell whether a rank must read the records itself. The times say how long it has heard nothing new from others."""
    if reader.is_one_of_few or reader.rank == 0:
        return True
    if job_silent_s < JOB_FRESH_S:
        return False
    return reader.local_rank in (0, None) or node_silent_s >= NODE_FRESH_S


def take_in(seen: Mapping[int, Seen], raw: Mapping[str, bytes], ranks: range, now_s: float) -> dict[int, Seen]:
    """Return what is known of the ranks after their records were read."""
    after = {}
    for rank in ranks:
        record = from_json(decode(raw.get(rank_key(rank), b"")), rank)
        if record is None:
            continue
        before = seen.get(rank)
        same = before is not None and (before.record.pid, before.record.beat) == (record.pid, record.beat)
        after[rank] = before if before is not None and same else Seen(record, now_s)
    return after


def write_found(seen: Mapping[int, Seen], ranks: list[int], beat: int, now_s: float) -> str:
    """Return the records that matter, for those who do not read all of them."""
    found = [[round(now_s - seen[rank].since_s, 2), to_json(seen[rank].record)] for rank in ranks if rank in seen]
    return encode({"beat": beat, "found": found[:_MOST_FOUND]})


class Found(NamedTuple):
    """What somebody has read for others."""

    beat: int
    seen: dict[int, Seen]


def read_found(raw: bytes, world_size: int, now_s: float) -> Found | None:
    """Return what somebody has read for us, if it is well formed."""
    value = decode(raw, _MOST_FOUND_NBYTES)
    if not isinstance(value, dict) or type(value.get("beat")) is not int or not isinstance(value.get("found"), list):
        return None
    pairs = [_pair(entry) for entry in value["found"][:_MOST_FOUND]]
    seen = {}
    for silent_s, values in (pair for pair in pairs if pair is not None):
        rank = values.get("rank")
        record = from_json(values, rank) if type(rank) is int and 0 <= rank < world_size else None
        if record is not None:
            seen[record.rank] = Seen(record, now_s - silent_s)
    return Found(value["beat"], seen)


def _pair(entry: Any) -> tuple[float, dict[str, Any]] | None:
    if not isinstance(entry, list) or len(entry) != 2 or not isinstance(entry[1], dict):
        return None
    silent_s = entry[0]
    good = type(silent_s) in (int, float) and 0 <= silent_s < MOST_NUMBER
    return (float(silent_s), entry[1]) if good else None
