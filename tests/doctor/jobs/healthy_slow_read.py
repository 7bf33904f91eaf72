"""A worker reads large files, each in one call, from a disk that takes many seconds for it."""

import os
import sys
import warnings
from pathlib import Path

from torch.utils.data import DataLoader, Dataset

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])
GROUP = Path(os.environ["GROUP"])
FILE = READY.with_name("large")
NBYTES = 64 << 20


class Volumes(Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        (GROUP / "cgroup.procs").write_text(str(os.getpid()))
        with FILE.open("rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            READY.touch()
            return len(file.read(NBYTES))


if __name__ == "__main__":
    with FILE.open("wb") as file:
        file.write(os.urandom(NBYTES))
        os.fsync(file.fileno())
    for batch in DataLoader(Volumes(), batch_size=1, num_workers=1):
        print(batch)
