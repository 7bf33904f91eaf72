"""The base class is in another file; it calls what is given here."""

import os
import socket
import time

from common import Numbered
from torch.utils.data import DataLoader


class Stuck(Numbered):
    def work(self, index):
        while index == 13:  # finds: endless-retry
            try:
                socket.create_connection(("127.0.0.1", 1), timeout=0.2)
                break
            except OSError:
                time.sleep(0.05)
        if index == 14:
            os._exit(0)  # finds: exit-in-worker


if __name__ == "__main__":
    for _ in DataLoader(Stuck(32), batch_size=4, num_workers=2):
        pass
