"""Tries again until a moment, or a number of times."""

import socket
import time

from torch.utils.data import Dataset


class Patient(Dataset):
    def __init__(self, address):
        self.address = address

    def __len__(self):
        return 10

    def __getitem__(self, index):
        end = time.monotonic() + 60
        while time.monotonic() < end:
            try:
                return self.ask(index)
            except OSError:
                time.sleep(1)
        left = 3
        while left:
            try:
                return self.ask(index)
            except OSError:
                left -= 1
        raise TimeoutError(f"sample {index}")

    def ask(self, index):
        with socket.create_connection(self.address, timeout=5) as connection:
            connection.sendall(index.to_bytes(8, "big"))
            return int.from_bytes(connection.recv(8), "big")
