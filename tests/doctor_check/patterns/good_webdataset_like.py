"""Shards of tar files; each worker takes its own."""

import glob
import io
import itertools
import random
import tarfile

from PIL import Image
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Shards(IterableDataset):
    def __init__(self, pattern, seed=0):
        self.urls = sorted(glob.glob(pattern))
        self.rng = random.Random(seed)

    def __iter__(self):
        urls = self.urls[:]
        self.rng.shuffle(urls)
        info = get_worker_info()
        if info is not None:
            urls = itertools.islice(urls, info.id, None, info.num_workers)
        for url in urls:
            with tarfile.open(url, "r|*") as tar:
                for member in tar:
                    try:
                        yield Image.open(io.BytesIO(tar.extractfile(member).read()))
                    except OSError:
                        continue


loader = DataLoader(Shards("train-*.tar"), batch_size=32, num_workers=4)
