"""Batches by a sampler, workers by a setting."""

import argparse
import os

from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler


class Numbers(Dataset):
    def __len__(self):
        return 5_000_000

    def __getitem__(self, index):
        return index


def main(args):
    dataset = Numbers()
    sampler = BatchSampler(RandomSampler(dataset), 64, drop_last=True)
    for _ in DataLoader(dataset, batch_sampler=sampler, num_workers=args.workers):
        pass
    for _ in DataLoader(dataset, args.batch, num_workers=min(os.cpu_count() or 1, 8)):
        pass


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=64)
    main(parser.parse_args())
