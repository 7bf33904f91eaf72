"""What ranks tell each other: little, no secrets, and nothing that comes back is trusted."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antifreeze.core import Location
from antifreeze.core._text import is_clean
from antifreeze.diagnosis import _policy
from antifreeze.distributed import RankStatus, Trouble
from antifreeze.distributed._record import (
    MAX_NBYTES,
    WARN_S,
    RankRecord,
    decode,
    encode,
    from_json,
    make_record,
    to_json,
)

numbers = st.integers(0, 10**9)
seconds = st.floats(0, 1e6).map(lambda s: round(s, 2))
texts = st.text(max_size=2000)
places = st.builds(Location, texts, texts, texts, seconds, texts)
standings = st.builds(
    RankStatus,
    epoch=numbers,
    step=numbers,
    waited_s=seconds,
    idle_s=seconds,
    warn_s=seconds,
    silent_s=seconds,
    place=places,
    trouble=st.none() | st.builds(Trouble, st.integers(1, 10**9), places, texts, texts, st.booleans()),
)
who = RankRecord(rank=3, host="node-7", pid=77, started=5, space=4026531836)


@given(standing=st.none() | standings, beat=numbers)
def test_what_is_written_can_be_read(standing: RankStatus | None, beat: int) -> None:
    """Whatever the names of samples are, and however long; numbers arrive as they were."""
    record = make_record(who, beat, standing)
    raw = encode(to_json(record)).encode()
    read = from_json(decode(raw), 3)

    assert len(raw) <= MAX_NBYTES
    assert read is not None
    texts = {name for name, default in RankRecord._field_defaults.items() if isinstance(default, str)}
    differ = {name for name in RankRecord._fields if getattr(read, name) != getattr(record, name)}
    assert differ <= texts - {"host"}
    assert read.active == (standing is not None)


@given(standing=standings)
def test_texts_are_fit_to_be_logged(standing: RankStatus) -> None:
    """A line break would forge a line of the log, and an escape sequence would speak to the terminal."""
    read = from_json(decode(encode(to_json(make_record(who, 1, standing))).encode()), 3)

    assert read is not None
    assert all(is_clean(getattr(read, name)) for name in ("worker", "stage", "what", "line", "cause", "title"))


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("https://h/a.parquet?X-Amz-Signature=canary&b=1, row 3", "https://h/a.parquet row 3"),
        ("sample 'https://h/?token=canary' of Set", "sample 'https://h/' of Set"),
        ("s3://key:canary@bucket/part-3.parquet", "s3://bucket/part-3.parquet"),
        ("data/part-3.parquet, row group 2, row 17", "data/part-3.parquet, row group 2, row 17"),
    ],
)
def test_addresses_lose_what_can_be_a_secret(said: str, shown: str) -> None:
    """Whoever reaches the store's port can read it."""
    standing = RankStatus(0, 0, 1.0, 1.0, Location("worker 1", "fetch", said))

    assert to_json(make_record(who, 1, standing))["what"] == shown


def test_nothing_of_the_environment_goes_in() -> None:
    """A record holds what is named in it, and no more."""
    process, time = "rank host pid started space beat", "active epoch step waited_s still_s warn_s silent_s"
    place, trouble = "worker stage what line", "number over cause title"

    assert sorted(RankRecord._fields) == sorted(f"{process} {time} {place} {trouble}".split())


json_values: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
fields = st.sampled_from(RankRecord._fields)


@given(values=json_values | st.dictionaries(fields, json_values, max_size=12), rank=st.integers(0, 3))
def test_a_stranger_can_write_what_it_likes(values: Any, rank: int) -> None:
    """The store has no lock: what is not a record is left out, and what is not of its kind too."""
    read = from_json(decode(json.dumps(values).encode()), rank)

    if read is not None:
        assert read.rank == rank
        for name, default in RankRecord._field_defaults.items():
            kinds = (int, float) if type(default) is float else (type(default),)
            assert type(getattr(read, name)) in kinds


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff\xfe", b"[" * 3000, b"1" * (MAX_NBYTES + 1), b'{"rank": 1}', b"NaN"])
def test_what_is_no_record_of_this_rank_is_none(raw: bytes) -> None:
    """Nothing, half of it, no text at all, depth, length, another rank's."""
    assert from_json(decode(raw), 0) is None


def test_the_others_hear_of_a_wait_when_its_own_rank_does() -> None:
    """One number in two layers that must not import each other."""
    assert WARN_S == _policy.WARN_S
