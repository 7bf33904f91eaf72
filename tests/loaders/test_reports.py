"""What ``report()`` of a streaming loader says about where the time went."""

from __future__ import annotations

import io
import pickle
from typing import Any

import pytest

import antifreeze as af
from conftest import Data


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("transform", [None, dict])
def test_the_report_tells_what_decoding_took(shared_data: Data, num_workers: int, transform: Any) -> None:
    """While the epoch lasts, and afterwards; in the order in which a batch comes through the stages."""
    dataset = af.StreamingDataset(shared_data.path, format="numpy", transform=transform)
    loader = af.StreamingDataLoader(dataset, batch_size=16, num_workers=num_workers)
    batches = iter(loader)
    numbers = Data.check(next(batches))
    during = loader.report(io.StringIO())
    pickle.loads(pickle.dumps(loader))  # noqa: S301  what is counted at the moment belongs to this process
    numbers += [n for batch in batches for n in Data.check(batch)]
    after = loader.report(io.StringIO())

    assert numbers == list(range(shared_data.num_rows))
    assert during.stage_s["decode"] > 0
    assert after.stage_s["decode"] >= during.stage_s["decode"]
    assert "decode" in str(after)
    stages = ("start", "read", "decode", "transform", "collate", "send")
    assert list(after.stage_s) == [stage for stage in stages if stage in after.stage_s]
    assert ("transform" in after.stage_s) is (transform is not None)


def test_the_slowest_row_is_named_by_its_file(shared_data: Data) -> None:
    """Its place in a batch says nothing to anybody."""
    dataset = af.StreamingDataset(shared_data.path, format="numpy", transform=dict)
    loader = af.StreamingDataLoader(dataset, batch_size=4, num_workers=1)
    for _ in loader:
        pass
    slowest = loader.report(io.StringIO()).slowest_sample

    assert slowest is not None
    assert ".parquet" in slowest[0]


@pytest.mark.parametrize("columns", ["numpy", "torch"])
def test_workers_of_a_streaming_loader_share_what_they_load(shared_data: Data, columns: str) -> None:
    """Importing antifreeze must open and start nothing, or each worker would import and load for itself."""
    dataset = af.StreamingDataset(shared_data.path, format=columns, transform=dict)
    loader = af.StreamingDataLoader(dataset, batch_size=16, num_workers=2)
    for _ in loader:
        pass

    assert loader.report(io.StringIO()).per_worker_load == ""
