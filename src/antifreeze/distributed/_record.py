"""What ranks write into the job's store, and how it is read back: a few hundred bytes of JSON for each rank. Pure.

The store has no access control: anybody who reaches the port can read and write it. So nothing secret is written (no
environment, no arguments, no query strings of addresses), and nothing that is read is trusted to be well formed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from antifreeze.core import Location, one_line
from antifreeze.distributed._store import MAX_READ_NBYTES, rank_key

WARN_S = 10.0
"""How long a rank waits for a batch before it tells the others why, if its user has set no limit."""
SILENT_S = 30.0
"""How long a rank may send no record before the others report it, if its user has set no limit."""
MAX_NBYTES = 4000
"""A record is no longer than this; a longer one was not written by us."""
_MAX_FOUND = 16
_LENGTHS = {"what": 240, "line": 160, "title": 120}
_LENGTH = 60
_QUERY = re.compile(r"\?[^\s'\"]*")
_USER = re.compile(r"(?<=://)[^\s/'\"]*@")
_SUSPICIOUS = re.compile(r"[^\w ,./()'-]|[\w./-]{24}|(?i:token|key|passw|secret|auth|pwd)|\W-")
MAX_NUMBER = 1 << 62


class Trouble(NamedTuple):
    """A stall that the rank has noticed itself, with its cause."""

    number: int
    """Counts up in each process, from 1."""
    place: Location
    cause: str
    title: str
    over: bool = False
    """Whether a batch has been delivered since."""


class RankStatus(NamedTuple):
    """The progress of one loader. Times are in seconds before now."""

    epoch: int
    step: int
    """Number of batches of this epoch that were delivered."""
    waited_s: float
    """For how long ``next`` has been waiting; 0 if it is not."""
    idle_s: float
    """How long ago the last batch was delivered, or the epoch began."""
    place: Location = Location()
    trouble: Trouble | None = None
    warn_s: float = WARN_S
    """How long it may wait before others report it."""
    silent_s: float = SILENT_S
    """How long its process may send no record."""


class RankRecord(NamedTuple):
    """What the store holds for one rank. A tuple: in a job of a thousand ranks, one decodes two thousand a second."""

    rank: int
    host: str = ""
    pid: int = 0
    started: int = 0
    """When the process was started, by its machine's clock: tells it from a later one with the same pid."""
    space: int = 0
    """The namespace of its pid: containers have their own."""
    beat: int = 0
    """Counts up with every record: a counter that does not move shows a process that does not run."""
    active: bool = False
    """Whether a loader is being iterated over. A rank without one may be silent."""
    epoch: int = 0
    step: int = 0
    waited_s: float = 0.0
    still_s: float = 0.0
    warn_s: float = WARN_S
    silent_s: float = SILENT_S
    worker: str = ""
    stage: str = ""
    what: str = ""
    line: str = ""
    number: int = 0
    """Of the trouble; 0 if there is none."""
    over: bool = False
    cause: str = ""
    title: str = ""


_DEFAULTS: dict[str, Any] = RankRecord._field_defaults
_WAITS_S = 0.5


def make_record(who: RankRecord, beat: int, status: RankStatus | None) -> RankRecord:
    """Return the record of the process ``who``. Status None: no loader is iterated over."""
    if status is None:
        return who._replace(beat=beat)
    trouble = status.trouble
    place = Location()
    if trouble is not None:
        place = trouble.place
    elif status.waited_s >= _WAITS_S:
        place = status.place
    return who._replace(
        beat=beat,
        active=True,
        epoch=status.epoch,
        step=status.step,
        waited_s=round(status.waited_s, 2),
        still_s=round(place.still_s, 2),
        warn_s=status.warn_s,
        silent_s=status.silent_s,
        worker=place.worker,
        stage=place.stage,
        what=place.what,
        line=place.line,
        number=0 if trouble is None else trouble.number,
        over=trouble is not None and trouble.over,
        cause="" if trouble is None else trouble.cause,
        title="" if trouble is None else trouble.title,
    )


def to_json(record: RankRecord) -> dict[str, Any]:
    """Return what is written; fields with their default are left out."""
    said = {"rank": record.rank} | {n: v for n, d in _DEFAULTS.items() if (v := getattr(record, n)) != d}
    return {name: _text(name, value) if isinstance(value, str) else value for name, value in said.items()}


def from_json(values: object, rank: int) -> RankRecord | None:
    """Return what was read, if it can be a record of that rank, without fields of another type or range."""
    if not isinstance(values, dict) or type(values.get("rank")) is not int or values["rank"] != rank:
        return None
    fields: dict[str, Any] = {}
    for name, value in values.items():
        default = _DEFAULTS.get(name)
        kind = type(value)
        if kind is str and type(default) is str:
            fields[name] = _text(name, value)
        elif kind is bool and type(default) is bool:
            fields[name] = value
        elif kind in (int, float) and type(default) in (kind, float) and 0 <= value < MAX_NUMBER:
            fields[name] = value  # NaN is not less than anything
    return RankRecord(rank=rank, **fields)


def encode(value: object) -> str:
    """Return JSON for the store."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def decode(raw: bytes, most: int = MAX_NBYTES) -> Any:
    """Return the value of JSON from the store; None if it is no JSON, or too long to be ours."""
    if len(raw) > most:
        return None
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return None


def _text(name: str, text: str) -> str:
    """Return a text that is fit to be shown: on one line, short, without anything that can be a secret."""
    most = _LENGTHS.get(name, _LENGTH)
    # In a job of a thousand ranks, one reads two thousand records each second: most texts are words and short names.
    if len(text) <= most and not _SUSPICIOUS.search(text):
        return text
    text = one_line(_USER.sub("", _QUERY.sub("", text[: 10 * most])), 10 * most)
    return text if len(text) <= most else f"{text[: most // 2 - 2]}...{text[1 - most // 2 :]}"


# -- records of many ranks -----------------------------------------------------------------------------------------


class Seen(NamedTuple):
    """A rank's last record, and since when it has been the last one, by our clock."""

    record: RankRecord
    since_s: float


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


class Found(NamedTuple):
    """What one rank has read for others."""

    beat: int
    seen: dict[int, Seen]


def write_found(seen: Mapping[int, Seen], ranks: list[int], beat: int, now_s: float) -> str:
    """Return the records that matter, for ranks that do not read all of them."""
    found = [[round(now_s - seen[rank].since_s, 2), to_json(seen[rank].record)] for rank in ranks if rank in seen]
    return encode({"beat": beat, "found": found[:_MAX_FOUND]})


def read_found(raw: bytes, world_size: int, now_s: float) -> Found | None:
    """Return what another rank has read for us, if it is well formed."""
    value = decode(raw, MAX_READ_NBYTES)
    if not isinstance(value, dict) or type(value.get("beat")) is not int or not isinstance(value.get("found"), list):
        return None
    pairs = [_pair(entry) for entry in value["found"][:_MAX_FOUND]]
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
    good = type(silent_s) in (int, float) and 0 <= silent_s < MAX_NUMBER
    return (float(silent_s), entry[1]) if good else None
