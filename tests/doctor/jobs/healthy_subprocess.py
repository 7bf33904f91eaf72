"""Every sample is made by a program that computes for three seconds."""

import subprocess
import sys
import warnings
from pathlib import Path

from torch.utils.data import DataLoader, Dataset

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])
PROGRAM = """
import time
end = time.monotonic() + 3
while time.monotonic() < end:
    sorted(range(10**5))
print(len("a decoded frame"))
"""


class Decoded(Dataset):
    def __len__(self):
        return 10**4

    def __getitem__(self, index):
        READY.touch()
        done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
        return int(done.stdout)


if __name__ == "__main__":
    for step, batch in enumerate(DataLoader(Decoded(), num_workers=2)):
        print(step, batch, flush=True)
