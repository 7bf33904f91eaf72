"""Decoder threads: what they count as not delivered, and how far ahead of workers they decode."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from antifreeze import StreamingDataLoader, StreamingDataset
from antifreeze.datasets import ReadOptions, _reading
from antifreeze.decode import Arrays
from antifreeze.loaders._stream_run import _epoch_at

PATIENCE_S = 60.0
NUM_ROWS, GROUP_ROWS, WINDOW_ROWS = 6000, 300, 1000


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Twenty row groups of 300 rows of 1 kB of bytes that follow from their numbers; a window of a thousand rows."""
    numbers = np.arange(NUM_ROWS)
    values = [int(n).to_bytes(4, "little") * 256 for n in numbers]
    pq.write_table(pa.table({"n": numbers, "value": values}), tmp_path / "a.parquet", row_group_size=GROUP_ROWS)
    monkeypatch.setattr(_reading, "WINDOW_NBYTES", WINDOW_ROWS * 1040)
    return tmp_path


def started(path: Path, **options: Any) -> Any:
    """Start reading a shuffled epoch, with two windows in work at most."""
    loader = StreamingDataLoader(StreamingDataset(path, format="numpy"), batch_size=50, shuffle=True)
    epoch = _epoch_at(loader, loader._run.begin(loader), has_tracks=False)
    return epoch.blocks(ReadOptions(threads=2, ahead=2, memory_limit=1 << 30, **options))


def until(condition: Any) -> None:
    """Wait until something is so."""
    stop_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < stop_s, "it did not come about"
        time.sleep(0.001)


def num_started(blocks: Any, round_: int) -> int:
    """Return how many tasks of a round were started and have ended."""
    epoch = blocks._epoch
    with epoch.lock:
        count, total = epoch.started.get(round_, (0, 0))
        return count if epoch.left.get(round_, total) == total - count else -1


def test_rows_that_wait_for_workers_count_until_they_are_released(images: Path) -> None:
    """Those that nobody holds count as delivered when the next block is taken, as ever."""
    blocks = started(images)
    epoch = blocks._epoch
    first = next(blocks)
    releases = [blocks.hold(50) for _ in range(4)]

    second = next(blocks)
    until(lambda: epoch.next_round == 3 and num_started(blocks, 2) == epoch.started[2][1])
    ready = second.nbytes + epoch.blocks[2][0].nbytes
    assert first.num_rows > 200
    assert epoch.nbytes == pytest.approx(ready + first.nbytes * 200 // first.num_rows, abs=first.num_rows)
    for release in releases:
        release()
    assert epoch.nbytes == pytest.approx(ready, abs=first.num_rows)
    blocks.close()


def test_a_limit_holds_back_the_next_round_while_rows_wait(images: Path) -> None:
    """And what waits for workers never holds back the round that they will ask for: that would be a freeze."""
    blocks = started(images)
    epoch = blocks._epoch
    epoch.limits = replace(epoch.limits, nbytes=epoch.round_nbytes(0) * 5 // 2)
    releases = [blocks.hold(next(blocks).num_rows)]
    until(lambda: num_started(blocks, 1) > 0)

    releases.append(blocks.hold(next(blocks).num_rows))
    assert epoch.next_round == 2  # it would be the third
    assert next(blocks).num_rows  # it is the front round now, and is begun whatever waits
    assert epoch.next_round == 3
    for release in releases:
        release()
    until(lambda: epoch.next_round == 4)
    blocks.close()


def test_rows_beyond_the_limit_are_decoded_only_if_nothing_else_can_be_delivered(images: Path) -> None:
    """While workers have rows, there is something to wait for: what they make of them."""
    blocks = started(images)
    epoch = blocks._epoch
    first = next(blocks)
    release = blocks.hold(2 * first.num_rows)

    assert epoch.nbytes >= 2 * first.nbytes - 2 * first.num_rows  # rows of an earlier block count as well
    assert not epoch.flight.starving
    release()
    assert epoch.flight.starving
    blocks.close()


def test_no_more_is_decoded_than_workers_can_use(images: Path) -> None:
    """A quarter of the next round at first, and more as rows of this one are given out; all of it in good time."""
    blocks = started(images, is_paced=True)
    first = next(blocks)
    total = blocks._epoch.started[1][1]

    until(lambda: num_started(blocks, 1) == total // 4)
    blocks.hold(first.num_rows // 4)
    until(lambda: num_started(blocks, 1) >= total // 2)
    assert num_started(blocks, 1) < total
    blocks.hold(first.num_rows // 2)
    until(lambda: num_started(blocks, 1) == total)
    blocks.close()


def test_objects_are_let_go_of_row_by_row() -> None:
    """A window of images is freed as it is used."""
    texts = np.array([b"a" * 10, b"b" * 20, b"c" * 30], object)
    block = Arrays({"text": texts, "n": np.arange(3)}, 3)

    part, start, stop = block.detach(0, 2)

    assert (start, stop) == (0, 2)
    assert part.columns["text"].tolist() == [b"a" * 10, b"b" * 20]
    assert part.columns["n"].tolist() == [0, 1]
    assert texts.tolist() == [None, None, b"c" * 30]
    assert block.detach(2, 3)[0].columns["text"].tolist() == [b"c" * 30]
