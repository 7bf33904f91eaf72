"""A download of a few bytes a second: slow, and alive."""

import socket
import sys
import threading
import time
import warnings
from pathlib import Path

from torch.utils.data import DataLoader, Dataset

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])


def drip(connection):
    with connection:
        for _ in range(8):
            connection.sendall(b"data")
            time.sleep(1)


def serve(listener):
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=drip, args=(connection,), daemon=True).start()


class Downloaded(Dataset):
    def __init__(self, address):
        self.address = address

    def __len__(self):
        return 10**4

    def __getitem__(self, index):
        with socket.create_connection(self.address, timeout=60) as connection, connection.makefile("rb") as file:
            READY.touch()
            return len(file.read())


if __name__ == "__main__":
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=serve, args=(listener,), daemon=True).start()
    for step, batch in enumerate(DataLoader(Downloaded(listener.getsockname()), num_workers=2)):
        print(step, batch, flush=True)
