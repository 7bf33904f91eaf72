"""The cure of the same: workers that are not forked."""

import multiprocessing as mp

from litdata import StreamingDataLoader, StreamingDataset

dataset = StreamingDataset("numbers")
loader = StreamingDataLoader(
    dataset,
    batch_size=8,
    num_workers=4,
    multiprocessing_context=mp.get_context("spawn"),
)
