"""A sample asks a server that takes the question and never answers."""

import socket
import sys
import threading
import warnings
from pathlib import Path

from torch.utils.data import DataLoader, Dataset

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])


def serve(listener):
    kept = []
    while True:
        kept.append(listener.accept())


class Served(Dataset):
    def __init__(self, address):
        self.address = address

    def __len__(self):
        return 1000

    def __getitem__(self, index):
        with socket.create_connection(self.address) as connection:
            connection.sendall(b"GET %d\n" % index)
            READY.touch()
            return int(connection.recv(100))


if __name__ == "__main__":
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=serve, args=(listener,), daemon=True).start()
    for batch in DataLoader(Served(listener.getsockname()), batch_size=4, num_workers=2):
        print(batch)
