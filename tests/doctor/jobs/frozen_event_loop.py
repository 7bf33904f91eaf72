"""An asynchronous client with its loop in a thread of the trainer, as fsspec has it."""

import asyncio
import sys
import threading
import warnings
from pathlib import Path

from torch.utils.data import DataLoader, Dataset

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])


class Client:
    def __init__(self):
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    async def _fetch(self, key):
        await asyncio.sleep(0.001)
        return key * 2

    def fetch(self, key):
        return asyncio.run_coroutine_threadsafe(self._fetch(key), self.loop).result()


class Remote(Dataset):
    def __init__(self):
        self.client = Client()
        self.size = self.client.fetch(500)

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        READY.touch()
        return self.client.fetch(index)


if __name__ == "__main__":
    for batch in DataLoader(Remote(), batch_size=4, num_workers=2):
        print(batch)
