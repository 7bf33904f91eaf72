"""A regular expression that backtracks for longer than anybody lives, holding the interpreter's lock."""

import re
import sys
import warnings
from pathlib import Path

from torch.utils.data import DataLoader, Dataset

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])
WORDS = re.compile(r"(\w+\s?)+$")


class Cleaned(Dataset):
    def __init__(self):
        self.texts = ["a short text"] * 50 + ["a" * 60 + "!"] + ["a short text"] * 1000

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        if index == 50:
            READY.touch()
        return int(bool(WORDS.match(self.texts[index])))


if __name__ == "__main__":
    for batch in DataLoader(Cleaned(), batch_size=4, num_workers=2):
        print(batch)
