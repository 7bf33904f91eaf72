"""A download stops in the middle: the headers promise more bytes than ever come."""

import http.client
import socket
import sys
import threading
import warnings
from pathlib import Path

from torch.utils.data import DataLoader, Dataset

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])
KEPT = []


def serve(listener):
    while True:
        connection, _ = listener.accept()
        connection.recv(10_000)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 5000)
        KEPT.append(connection)


class Shards(Dataset):
    def __init__(self, port):
        self.port = port

    def __len__(self):
        return 50

    def __getitem__(self, index):
        connection = http.client.HTTPConnection("localhost", self.port)
        connection.request("GET", f"/shard-{index}.bin")
        answer = connection.getresponse()
        READY.touch()
        return len(answer.read())


if __name__ == "__main__":
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=serve, args=(listener,), daemon=True).start()
    shards = Shards(listener.getsockname()[1])
    for batch in DataLoader(shards, num_workers=2, multiprocessing_context="spawn"):
        print(batch)
