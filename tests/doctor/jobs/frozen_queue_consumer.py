"""A decoder thread serves a queue, in the trainer only: workers ask and nobody answers."""

import queue
import sys
import threading
import warnings
from pathlib import Path

from torch.utils.data import DataLoader, Dataset

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])


class Decoded(Dataset):
    def __init__(self):
        self.questions, self.answers = queue.Queue(), queue.Queue()
        threading.Thread(target=self.serve, daemon=True, name="decoder").start()

    def serve(self):
        while True:
            self.answers.put(self.questions.get() + 1)

    def __len__(self):
        return 10**4

    def __getitem__(self, index):
        self.questions.put(index)
        READY.touch()
        return self.answers.get()


if __name__ == "__main__":
    dataset = Decoded()
    print(dataset[0])
    READY.unlink()
    for batch in DataLoader(dataset, batch_size=16, num_workers=2):
        print(batch.sum())
