"""A spawned worker waits for a queue whose producer, a thread of its own, has ended with an error."""

import queue
import sys
import threading
import warnings
from pathlib import Path

from torch.utils.data import DataLoader, IterableDataset

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])


class Produced(IterableDataset):
    def produce(self, into):
        for value in range(20):
            into.put(value)
        READY.touch()
        raise ValueError("the file ends here")

    def __iter__(self):
        values = queue.Queue()
        threading.Thread(target=self.produce, args=(values,), daemon=True).start()
        while True:
            yield values.get()


if __name__ == "__main__":
    for batch in DataLoader(Produced(), batch_size=4, num_workers=1, multiprocessing_context="spawn"):
        print(batch)
