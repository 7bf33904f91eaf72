"""What a rank tells the others: where its loader stands, in a few hundred bytes of JSON.

The job's store has no lock on its door: whoever reaches the port can read and write it. So nothing secret goes in
(no environment, no arguments, no query strings of addresses), and nothing that comes out is believed to be well formed.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from antifreeze.core import one_line

WARN_S = 10.0
"""How long a rank waits for a batch before the others hear why, if its user has set no limit."""
SILENT_S = 30.0
"""How long nothing may be heard of a rank before the others say so, if its user has set no limit."""
MOST_NBYTES = 4000
"""A record is no longer than this; what is longer was not written by us."""
_LENGTHS = {"what": 240, "line": 160, "title": 120}
_LENGTH = 60
_QUERY = re.compile(r"\?[^\s'\"]*")
_USER = re.compile(r"(?<=://)[^\s/'\"]*@")
_SUSPICIOUS = re.compile(r"[^\w ,./()'-]|[\w./-]{24}|(?i:token|key|passw|secret|auth|pwd)|\W-")
MOST_NUMBER = 1 << 62


class Location(NamedTuple):
    """What a loader waits for, in words."""

    worker: str = ""
    """Who: ``worker 1 (pid 99)``, ``decoder thread 0``."""
    stage: str = ""
    what: str = ""
    """The file, the row, the sample."""
    still_s: float = 0.0
    """For how long it has not moved."""
    line: str = ""
    """The line of Python that it stands on, if that is known."""


class Trouble(NamedTuple):
    """A stall that the rank has noticed itself, and found the cause of."""

    number: int
    """Counts up in each process, from 1."""
    place: Location
    cause: str
    title: str
    over: bool = False
    """Whether a batch has been delivered since."""


class RankStatus(NamedTuple):
    """Where one loader stands. Times are in seconds before now."""

    epoch: int
    step: int
    """How many batches of this epoch were delivered."""
    waited_s: float
    """For how long ``next`` has been waiting; 0 if it is not."""
    idle_s: float
    """How long ago the last batch was delivered, or the epoch began."""
    place: Location = Location()
    trouble: Trouble | None = None
    warn_s: float = WARN_S
    """How long it may wait before others hear of it."""
    silent_s: float = SILENT_S
    """How long nothing may be heard of its process."""


class RankRecord(NamedTuple):
    """What stands in the store for one rank. A tuple: one rank of a thousand makes two thousand of them each second."""

    rank: int
    host: str = ""
    pid: int = 0
    born: int = 0
    """When the process was started, by its machine's clock: tells it from a later one with the same number."""
    space: int = 0
    """The namespace that its process number belongs to: containers have their own."""
    beat: int = 0
    """Counts up with every record, so that one that does not run can be told by those who watch it."""
    active: bool = False
    """Whether a loader is being iterated over. One that is not may be silent."""
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


def make_record(who: RankRecord, beat: int, standing: RankStatus | None) -> RankRecord:
    """Return a rank's record. ``who`` says which process it is of; None: no loader is iterated over."""
    if standing is None:
        return who._replace(beat=beat)
    trouble = standing.trouble
    place = trouble.place if trouble is not None else standing.place if standing.waited_s >= _WAITS_S else Location()
    return who._replace(
        beat=beat,
        active=True,
        epoch=standing.epoch,
        step=standing.step,
        waited_s=round(standing.waited_s, 2),
        still_s=round(place.still_s, 2),
        warn_s=standing.warn_s,
        silent_s=standing.silent_s,
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
    """Return what is written; what goes without saying is left out."""
    said = {"rank": record.rank} | {n: v for n, d in _DEFAULTS.items() if (v := getattr(record, n)) != d}
    return {name: _text(name, value) if isinstance(value, str) else value for name, value in said.items()}


def from_json(values: object, rank: int) -> RankRecord | None:
    """Return what was read, if it can be a record of that rank. Nothing is taken over that has another form."""
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
        elif kind in (int, float) and type(default) in (kind, float) and 0 <= value < MOST_NUMBER:
            fields[name] = value  # NaN is not less than anything
    return RankRecord(rank=rank, **fields)


def encode(value: object) -> str:
    """Return JSON for the store."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def decode(raw: bytes, most: int = MOST_NBYTES) -> Any:
    """Return what JSON from the store says; None if it is no JSON, or too long for ours."""
    if len(raw) > most:
        return None
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return None


def _text(name: str, text: str) -> str:
    """Return a text as it may be shown: on one line, not long, without what can be a secret."""
    most = _LENGTHS.get(name, _LENGTH)
    # One rank of a thousand reads two thousand records each second: most texts are words and short names.
    if len(text) <= most and not _SUSPICIOUS.search(text):
        return text
    text = one_line(_USER.sub("", _QUERY.sub("", text[: 10 * most])), 10 * most)
    return text if len(text) <= most else f"{text[: most // 2 - 2]}...{text[1 - most // 2 :]}"
