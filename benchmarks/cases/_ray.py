"""Ray Data on one machine of two cores."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import ray
from ray.data.collate_fn import ArrowBatchCollateFn

from cases._decode import Batch, arrays, tensors

SHUFFLE_BUFFER = 10_000


class ToTensors(ArrowBatchCollateFn):
    """Arrow to tensors without a copy. Tried: Ray's default collate, which raises TypeError on strings."""

    def __call__(self, batch: pa.Table) -> Batch:
        return tensors(arrays(batch.combine_chunks().to_batches()[0]))


def make(data_dir: Path, batch_size: int, shuffle: bool) -> Iterable[Batch]:
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    dataset = ray.data.read_parquet(str(data_dir), shuffle="files" if shuffle else None)
    return dataset.iter_torch_batches(
        batch_size=batch_size,
        collate_fn=ToTensors(),
        prefetch_batches=4,
        local_shuffle_buffer_size=SHUFFLE_BUFFER if shuffle else None,
        local_shuffle_seed=0 if shuffle else None,
    )
