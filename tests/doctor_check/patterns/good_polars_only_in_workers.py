"""The trainer runs nothing of Polars before the last worker has started."""

import polars as pl
from torch.utils.data import DataLoader, Dataset


class Parts(Dataset):
    def __init__(self, paths):
        self.paths = paths
        self.query = pl.scan_parquet(paths).filter(pl.col("x") > 0)
        self.small = pl.DataFrame({"x": [1, 2], "y": [3, 4]})

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        frame = pl.read_parquet(self.paths[index])
        return frame.join(self.small, on="x").height, self.query.collect().height


def main():
    loader = DataLoader(Parts(["a", "b"]), batch_size=8, num_workers=2)
    results = []
    for _ in range(3):
        for batch in loader:
            results.append(batch)
    pl.DataFrame({"result": results}).write_parquet("results.parquet")


if __name__ == "__main__":
    main()
