"""A worker starts a program whose input is a named pipe: the new process waits for a writer before it begins."""

import os
import sys
import warnings
from pathlib import Path

from torch.utils.data import DataLoader, Dataset

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])
PIPE = READY.with_name("frames")


class Decoded(Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        if index == 30:
            READY.touch()
            opened = (os.POSIX_SPAWN_OPEN, 0, str(PIPE), os.O_RDONLY, 0)
            os.waitpid(os.posix_spawn("/bin/cat", ["cat"], {}, file_actions=[opened]), 0)
        return index


if __name__ == "__main__":
    os.mkfifo(PIPE)
    for batch in DataLoader(Decoded(), batch_size=4, num_workers=2):
        print(batch)
