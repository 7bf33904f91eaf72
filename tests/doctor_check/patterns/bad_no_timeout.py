"""Waits for somebody who may never answer."""

import io
import socket
import urllib.request
from urllib.request import urlopen

import requests
from PIL import Image
from torch.utils.data import Dataset


class Fetched(Dataset):
    def __init__(self, urls):
        self.urls = urls

    def __len__(self):
        return len(self.urls)

    def __getitem__(self, index):
        url = self.urls[index]
        if url.endswith(".jpg"):
            return Image.open(io.BytesIO(requests.get(url).content))  # finds: no-timeout
        if url.endswith(".png"):
            return Image.open(urlopen(url))  # finds: no-timeout
        if url.endswith(".bin"):
            path, _ = urllib.request.urlretrieve(url)  # finds: no-timeout
            return path
        return self.ask(url)

    def ask(self, url):
        peer = socket.create_connection((url, 80))  # finds: no-timeout
        return peer.recv(10)


class Posted(Dataset):
    def __init__(self):
        self.session = requests.Session()  # finds: shared-connection

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return self.session.post("http://server", data={"index": index}).json()  # finds: no-timeout
