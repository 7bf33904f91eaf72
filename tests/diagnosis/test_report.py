"""A report is short, plain, and says which setting to change, with the number that leads to it."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antifreeze.core._text import is_clean
from antifreeze.diagnosis import Cause, Report, Restart, Skip, advice


def report_of(**facts: Any) -> Report:
    """Return a run of 100 s with two workers on four cores that waits for data half of the time."""
    usual = {
        "epochs": 1,
        "delivered_batches": 1000,
        "delivered_samples": 32_000,
        "wall_s": 100.0,
        "waiting_s": 50.0,
        "training_s": 50.0,
        "stage_s": {"start": 1.0, "fetch": 150.0, "collate": 30.0, "send": 10.0},
        "num_workers": 2,
        "cores": 4,
        "batch_size": 32,
    }
    return Report(**{**usual, **facts})


def restart_of(cause: Cause, **facts: Any) -> Restart:
    usual = {"worker": 1, "pid": 4711, "sample": "77", "after_s": 12.0, "evidence": ("process state S",)}
    return Restart(cause=cause.value, **{**usual, **facts})


IDLE = {"waiting_s": 1.0, "training_s": 99.0}
ADVICE: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("workers below cores", {}, ("raise num_workers from 2 to 4: ", "50% of the time", "190 ms", "50 ms")),
    ("one more is enough", {"stage_s": {"fetch": 120.0}, "training_s": 45.0}, ("from 2 to 3: ",)),
    ("all cores in use", {"num_workers": 4}, ("4 workers on 4 cores", "79%", "fetch", "dataset[i]")),
    ("another stage", {"num_workers": 4, "stage_s": {"decode": 3.0, "read": 9.0}}, ("75%", "reading files")),
    ("a stage without a name", {"num_workers": 4, "stage_s": {"brew": 9.0}}, ("100%", "brew")),
    ("inline", {"num_workers": 0, "stage_s": {"fetch": 50.0}}, ("set num_workers=1", "50%", "4 cores")),
    ("inline, much to do", {"num_workers": 0, "stage_s": {"fetch": 90.0}, "training_s": 9.0}, ("num_workers=4",)),
    ("batches of one", {"batch_size": 1, "stage_s": {"fetch": 0.5}}, ("raise batch_size", "0.50 ms", "50%")),
    ("slow to start", {"stage_s": {"start": 90.0, "fetch": 9.0}}, ("persistent_workers=True", "91%")),
    ("one sample", {"stage_s": {"fetch": 20.0}, "slowest_sample": ("x7", 19.0)}, ("prefetch_factor", "x7", "19.0 s")),
    ("not the limit", IDLE, ("not what limits you", "99%")),
    ("too many workers", {**IDLE, "num_workers": 4, "stage_s": {"fetch": 50.0}}, ("num_workers=1 would do",)),
    ("memory", {**IDLE, "worker_memory": (5 * 10**9, 10**9)}, ("not what limits you",)),
    ("out of memory", {"restarts": (restart_of(Cause.OUT_OF_MEMORY),) * 3}, ("from 2 to 1: 3 of them",)),
    ("out of memory alone", {"num_workers": 1, "restarts": (restart_of(Cause.LEAK),)}, ("lower batch_size", "1 time")),
]


@pytest.mark.parametrize(("facts", "words"), [row[1:] for row in ADVICE], ids=[row[0] for row in ADVICE])
def test_the_first_advice_is_what_helps_most(facts: dict[str, Any], words: tuple[str, ...]) -> None:
    """In plain words, with the number that leads to it."""
    first = advice(report_of(**facts))[0]

    assert all(word in first for word in words), first


def test_large_workers_are_worth_a_word() -> None:
    """Second to what costs time."""
    second = advice(report_of(**IDLE, worker_memory=(5 * 10**9, 10**9)))[1]

    assert "the workers hold 6.0 GB, the largest of them 5.0 GB" in second


@pytest.mark.parametrize(
    "facts",
    [
        {"delivered_batches": 4},
        {"wall_s": 0.9},
        {"wall_s": 0.0},
        {"waiting_s": 5.0, "training_s": 95.0},
    ],
)
def test_there_is_no_advice_without_a_reason(facts: dict[str, Any]) -> None:
    """Too little was seen, or waiting is neither much nor nothing."""
    assert advice(report_of(**facts)) == ()


def test_the_text_says_what_happened() -> None:
    """All sections, in the order in which they are asked for."""
    text = str(
        report_of(
            skipped=(Skip(sample="13", reason="ValueError: bad\n  image \x1b[31m", epoch=0, step=4),),
            num_skipped=8,
            restarts=(restart_of(Cause.NETWORK),),
            worker_memory=(310_000_000, 305_000_000),
            slowest_sample=("sample 77", 3.25),
            batch_nbytes=2_100_000,
            slow=("worker 1 takes three times as long as the others",),
        )
    )

    assert text.splitlines()[:10] == [
        "antifreeze: 1 epoch, 1,000 batches, 32,000 samples in 100.0 s (10.0 batches/s)",
        "  time       training loop 50.0 s (50%), waiting for data 50.0 s (50%)",
        "  workers    2 on 4 cores: start 1.0 s (1%), fetch 150.0 s (79%), collate 30.0 s (16%), send 10.0 s",
        "               (5%)",
        "  memory     310.0 MB, 305.0 MB",
        "  batch      2.1 MB on average, batch_size=32",
        "  slowest    sample 77: 3.25 s",
        "  skipped    8 samples",
        "             13 (epoch 0, step 4): ValueError: bad image \\x1b[31m",
        "             and 7 more",
    ]
    assert "worker 1 (pid 4711): network, at 77, 12.0 s into the epoch\n             process state S" in text
    assert "  slow       worker 1 takes three times" in text
    assert "  advice     raise num_workers from 2 to 4" in text


def test_an_empty_report_is_a_report() -> None:
    """It can be asked for before the first batch."""
    assert str(Report()).splitlines()[0] == "antifreeze: 0 epochs, 0 batches, 0 samples in 0.0 s"


def test_a_notebook_does_not_show_it_twice() -> None:
    """What was printed is not written once more below it, field by field."""
    assert repr(Report(delivered_batches=2000, epochs=3)) == "<Report: 2,000 batches in 3 epochs; print(it) shows all>"


def test_a_report_travels() -> None:
    """It can be kept beside a checkpoint."""
    report = report_of(restarts=(restart_of(Cause.LOCK),))

    assert pickle.loads(pickle.dumps(report)) == report  # noqa: S301  we wrote it


texts = st.text(max_size=300)
seconds = st.floats(0, 1e7)


@given(
    report=st.builds(
        Report,
        epochs=st.integers(0, 10),
        delivered_batches=st.integers(0, 10**9),
        delivered_samples=st.integers(0, 10**12),
        skipped=st.lists(
            st.builds(Skip, sample=texts, reason=texts, epoch=st.just(0), step=st.just(0)), max_size=7
        ).map(tuple),
        num_skipped=st.integers(0, 10**9),
        restarts=st.lists(
            st.builds(
                Restart,
                worker=st.integers(0, 99),
                pid=st.integers(1, 99),
                cause=st.sampled_from([cause.value for cause in Cause]),
                sample=texts,
                after_s=seconds,
                evidence=st.lists(texts, max_size=3).map(tuple),
            ),
            max_size=7,
        ).map(tuple),
        wall_s=seconds,
        waiting_s=seconds,
        training_s=seconds,
        stage_s=st.dictionaries(st.sampled_from(["start", "read", "fetch", "send", "else"]), seconds),
        num_workers=st.integers(0, 64),
        cores=st.integers(1, 64),
        batch_size=st.none() | st.integers(1, 9),
        worker_memory=st.lists(st.integers(0, 10**12), max_size=9).map(tuple),
        slowest_sample=st.none() | st.tuples(texts, seconds),
        batch_nbytes=st.integers(0, 10**10),
        slow=st.lists(texts, max_size=7).map(tuple),
    )
)
def test_whatever_happened_the_text_fits_and_the_advice_is_short(report: Report) -> None:
    """At most 100 columns, at most two pieces of advice, and nothing that steers a terminal."""
    assert len(advice(report)) <= 2
    lines = str(report).split("\n")
    assert all(len(line) <= 100 and is_clean(line) for line in lines)
