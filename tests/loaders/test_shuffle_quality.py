"""How far rows travel and how mixed batches are, on data sorted by label, against no shuffle and a full permutation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from antifreeze import StreamingDataLoader, StreamingDataset

LABELS = 20
ROWS = 40_000
BATCH = 64
ROW_NBYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """What an order is worth. For a full permutation of many rows, travel is 1/3 and the correlations are 0."""

    travel: float
    """Mean distance between where a row stood and where it came, as a share of the dataset."""
    labels: float
    """Mean number of different labels in a batch."""
    worst: int
    """Different labels in the poorest full batch."""
    correlation: float
    """Between where rows stood and where they came."""
    neighbours: float
    """Share of rows that still stand right behind the row that stood before them."""


def quality(order: np.ndarray[Any, Any]) -> Quality:
    labels = order * LABELS // len(order)
    batches = labels[: len(order) // BATCH * BATCH].reshape(-1, BATCH)
    counts = [len(set(batch.tolist())) for batch in batches]
    places = np.arange(len(order))
    return Quality(
        travel=float(np.abs(order - places).mean() / len(order)),
        labels=float(np.mean(counts)),
        worst=min(counts),
        correlation=float(np.corrcoef(order, places)[0, 1]),
        neighbours=float((np.diff(order) == 1).mean()),
    )


FULL = quality(np.random.default_rng(0).permutation(ROWS))


def sorted_data(folder: Path, files: int, groups: int) -> Path:
    """Write rows sorted by label; ``n`` is where a row stands."""
    n = np.arange(ROWS)
    for file, rows in enumerate(np.split(n, files)):
        table = pa.table({"n": rows, "label": rows * LABELS // ROWS})
        pq.write_table(table, folder / f"{file}.parquet", row_group_size=ROWS // files // groups)
    return folder


def order_of(folder: Path, epoch: int = 0, shuffle: bool = True, **options: Any) -> np.ndarray[Any, Any]:
    dataset = StreamingDataset(folder, format="numpy")
    loader = StreamingDataLoader(dataset, batch_size=BATCH, shuffle=shuffle, num_workers=1, **options)
    loader.set_epoch(epoch)
    batches = list(loader)
    order = np.concatenate([batch["n"] for batch in batches])
    assert np.array_equal(np.concatenate([batch["label"] for batch in batches]), order * LABELS // ROWS)
    assert np.array_equal(np.sort(order), np.arange(ROWS))
    return order


@pytest.fixture(scope="module")
def forty_groups(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight files of five row groups."""
    return sorted_data(tmp_path_factory.mktemp("forty"), files=8, groups=5)


@pytest.fixture(scope="module")
def one_group(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One file of one row group."""
    return sorted_data(tmp_path_factory.mktemp("one"), files=1, groups=1)


def window_of(monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    """Let the window hold this share of the dataset, as its 64 MB do of a large one."""
    monkeypatch.setattr("antifreeze.datasets._reading.WINDOW_NBYTES", int(ROWS * ROW_NBYTES * share))


def test_the_yardstick_is_right(forty_groups: Path) -> None:
    """What is compared with: no shuffle moves nothing and mixes nothing, a permutation does both."""
    unshuffled = quality(order_of(forty_groups, shuffle=False))

    assert unshuffled.travel == 0
    assert unshuffled.labels < 1.1
    assert unshuffled.correlation == pytest.approx(1)
    assert FULL.travel == pytest.approx(1 / 3, rel=0.02)
    assert FULL.labels == pytest.approx(LABELS * (1 - (1 - 1 / LABELS) ** BATCH), rel=0.02)


@pytest.mark.parametrize("source", ["forty_groups", "one_group"])
def test_data_that_fits_the_window_is_shuffled_in_full(source: str, request: pytest.FixtureRequest) -> None:
    """With the sizes that are shipped, 64 MB of rows are one window: as good as a permutation, whatever the files."""
    found = quality(order_of(request.getfixturevalue(source)))

    assert found.travel >= 0.97 * FULL.travel, (found, FULL)
    assert found.labels >= 0.98 * FULL.labels, (found, FULL)
    assert found.worst >= FULL.worst - 3, (found, FULL)
    assert abs(found.correlation) < 0.03, (found, FULL)
    assert found.neighbours < 0.001, (found, FULL)


def test_data_of_ten_windows_is_mixed_well_though_it_is_sorted(
    forty_groups: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dataset ten times the window, in 40 row groups, of which 16 are open at a time.

    16 of 40 groups hold 12.9 of the 20 labels on average, two thirds of what batches of a full permutation have.
    """
    window_of(monkeypatch, 0.1)

    found = [quality(order_of(forty_groups, epoch)) for epoch in range(4)]

    travel, labels = np.mean([q.travel for q in found]), np.mean([q.labels for q in found])
    assert travel >= 0.8 * FULL.travel, (travel / FULL.travel, found, FULL)
    assert labels >= 0.6 * FULL.labels, (labels / FULL.labels, found, FULL)
    assert min(q.worst for q in found) >= 5, (found, FULL)
    assert max(q.neighbours for q in found) < 0.01, (found, FULL)


def test_one_row_group_of_ten_windows_is_shuffled_within_windows(
    one_group: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The honest limit: a row group can only be read from its front, so rows do not travel beyond their window."""
    window_of(monkeypatch, 0.1)

    found = quality(order_of(one_group))

    assert 0.02 < found.travel < 0.05, (found, FULL)
    assert found.labels >= 1.9, (found, FULL)
    assert found.neighbours < 0.001, (found, FULL)


@pytest.mark.parametrize("share", [1.0, 0.1])
def test_two_epochs_have_nothing_in_common(forty_groups: Path, monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    """Where a row came in one epoch says nothing of where it comes in the next, nor in another seed's."""
    window_of(monkeypatch, share)
    # Fragments move as wholes, so 40 of them, not 40,000 rows, are what chance is among: a single pair may correlate.
    bound = 0.03 if share == 1.0 else 0.25
    places = [np.argsort(order_of(forty_groups, epoch)) for epoch in range(4)]
    places.append(np.argsort(order_of(forty_groups, 0, seed=1)))

    table = np.corrcoef(places) - np.eye(len(places))

    assert np.abs(table).mean() < bound, table.round(3).tolist()


@pytest.mark.parametrize("limit", ["8MB", "64MB", "256MB"])
def test_a_memory_limit_costs_no_mixing_that_it_does_not_have_to(forty_groups: Path, limit: str) -> None:
    """All 640 kB of this dataset fit every one of these limits."""
    found = quality(order_of(forty_groups, memory_limit=limit))

    assert found.labels >= 0.8 * FULL.labels, (found.labels / FULL.labels, found, FULL)
    assert found.travel >= 0.8 * FULL.travel, (found.travel / FULL.travel, found, FULL)


def test_the_end_of_an_epoch_is_as_mixed_as_its_beginning(forty_groups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shuffle buffer runs dry at the end; streams that last until the end do not."""
    window_of(monkeypatch, 0.1)
    orders = [order_of(forty_groups, epoch) for epoch in range(6)]

    first, last = (
        float(np.mean([quality_of_part(order[part]) for order in orders]))
        for part in (slice(0, ROWS // 10), slice(-(ROWS // 10), None))
    )

    assert last >= 0.8 * first, (first, last)
    assert first >= 0.8 * last, (first, last)


def quality_of_part(order: np.ndarray[Any, Any]) -> float:
    """Return the mean number of labels in the batches of a part of an epoch."""
    labels = (order * LABELS // ROWS)[: len(order) // BATCH * BATCH].reshape(-1, BATCH)
    return float(np.mean([len(set(batch.tolist())) for batch in labels]))
