"""No workers: the trainer itself reads a socket without a timeout."""

import socket
import sys
import warnings
from pathlib import Path

from torch.utils.data import DataLoader, Dataset

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])


class Served(Dataset):
    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.connection = socket.create_connection(self.listener.getsockname())

    def __len__(self):
        return 1000

    def __getitem__(self, index):
        READY.touch()
        return len(self.connection.recv(10))


if __name__ == "__main__":
    for batch in DataLoader(Served(), batch_size=4):
        print(batch)
