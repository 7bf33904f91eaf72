"""A sample is fetched over HTTP without a timeout; the server, another process, takes connections and sleeps."""

import subprocess
import sys
import urllib.request
import warnings
from pathlib import Path

from torch.utils.data import DataLoader, IterableDataset

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])
SERVER = """
import socket, time
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
time.sleep(10**6)
"""


class Pages(IterableDataset):
    def __init__(self, url):
        self.url = url

    def __iter__(self):
        for page in range(100):
            READY.touch()
            with urllib.request.urlopen(f"{self.url}/{page}") as answer:
                yield len(answer.read())


if __name__ == "__main__":
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    port = int(server.stdout.readline())
    for batch in DataLoader(Pages(f"http://127.0.0.1:{port}"), batch_size=4, num_workers=2):
        print(batch)
