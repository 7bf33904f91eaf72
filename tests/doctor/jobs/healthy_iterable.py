"""A stream that both workers share out between them, with a timeout on the loader."""

import itertools
import sys
import time
import warnings
from pathlib import Path

from torch.utils.data import DataLoader, IterableDataset, get_worker_info

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])


class Stream(IterableDataset):
    def __iter__(self):
        me = get_worker_info()
        for line in itertools.count(me.id, me.num_workers):
            time.sleep(0.02)
            yield line


if __name__ == "__main__":
    for step, batch in enumerate(DataLoader(Stream(), batch_size=8, num_workers=2, timeout=30)):
        print(step, batch, flush=True)
        if step == 4:
            READY.touch()
