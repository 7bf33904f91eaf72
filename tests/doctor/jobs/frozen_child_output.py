"""A worker waits for a program whose output it does not read: the program waits for the worker."""

import subprocess
import sys
import warnings
from pathlib import Path

from torch.utils.data import DataLoader, Dataset

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])
PROGRAM = "import sys; sys.stdout.write('frame ' * 100_000)"


class Frames(Dataset):
    def __len__(self):
        return 50

    def __getitem__(self, index):
        decoder = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE)
        READY.touch()
        decoder.wait()
        return len(decoder.stdout.read())


if __name__ == "__main__":
    for batch in DataLoader(Frames(), batch_size=2, num_workers=2):
        print(batch)
