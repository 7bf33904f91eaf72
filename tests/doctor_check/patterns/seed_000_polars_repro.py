"""Polars runs in the trainer, then litData's Parquet loader decodes by Polars in forked workers."""

import multiprocessing
import sys
from pathlib import Path

FOLDER = Path("numbers")


def main() -> None:
    how = sys.argv[1] if len(sys.argv) > 1 else "fork"

    import litdata
    import numpy as np
    import polars as pl
    import pyarrow as pa
    import pyarrow.parquet as pq
    from litdata.streaming.item_loader import ParquetLoader

    random = np.random.default_rng(1)
    for i in range(4):
        ids = random.integers(0, 1000, size=(500, 16)).tolist()
        pq.write_table(pa.table({"ids": ids, "name": [f"row {j}" for j in range(500)]}), FOLDER / f"{i}.parquet")
    litdata.index_parquet_dataset(str(FOLDER))

    pl.scan_parquet(FOLDER / "0.parquet").collect()

    dataset = litdata.StreamingDataset(str(FOLDER), item_loader=ParquetLoader(low_memory=False))
    options: dict = {"batch_size": 8, "num_workers": 4}
    if how != "fork":
        options["multiprocessing_context"] = multiprocessing.get_context(how)
    loader = litdata.StreamingDataLoader(dataset, **options)  # finds: forked-library
    for step, _ in enumerate(loader):
        print(step)


if __name__ == "__main__":
    main()
