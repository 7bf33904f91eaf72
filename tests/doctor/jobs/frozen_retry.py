"""A service is down, and the client tries again for ever."""

import socket
import sys
import time
import warnings
from pathlib import Path

from torch.utils.data import DataLoader, Dataset

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])


def connect(port):
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=5)
        except OSError:
            READY.touch()
            time.sleep(0.1)


class Queried(Dataset):
    def __init__(self, port):
        self.port = port

    def __len__(self):
        return 100

    def __getitem__(self, index):
        with connect(self.port) as connection:
            return len(connection.recv(10))


if __name__ == "__main__":
    with socket.socket() as bound:  # a port that is taken, with nobody listening
        bound.bind(("127.0.0.1", 0))
        for batch in DataLoader(Queried(bound.getsockname()[1]), batch_size=4, num_workers=2):
            print(batch)
