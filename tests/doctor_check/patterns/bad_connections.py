"""Connections that workers would share."""

import socket
import sqlite3

import boto3
import psycopg2
import requests
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __init__(self, path):
        self.connection = sqlite3.connect(path)  # finds: shared-connection
        self.length = self.connection.execute("select count(*) from rows").fetchone()[0]

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.connection.execute("select value from rows where id = ?", (index,)).fetchone()[0]


class ByCursor(Dataset):
    def __init__(self, dsn):
        connection = psycopg2.connect(dsn)  # finds: shared-connection
        self.cursor = connection.cursor()

    def __len__(self):
        return 10

    def __getitem__(self, index):
        self.cursor.execute("select value from rows where id = %s", (index,))
        return self.cursor.fetchone()


class Objects(Dataset):
    def __init__(self, bucket, keys):
        self.s3 = boto3.client("s3")  # finds: shared-connection
        self.bucket, self.keys = bucket, keys

    def __len__(self):
        return len(self.keys)

    def __getitem__(self, index):
        return self.s3.get_object(Bucket=self.bucket, Key=self.keys[index])["Body"].read()


class Pages(Dataset):
    def __init__(self, urls):
        self.urls = urls
        self.session = requests.Session()  # finds: shared-connection

    def __len__(self):
        return len(self.urls)

    def __getitem__(self, index):
        return self.session.get(self.urls[index], timeout=10).content


class Asked(Dataset):
    def __init__(self, address):
        self.peer = socket.create_connection(address, timeout=5)  # finds: shared-connection

    def __len__(self):
        return 10

    def __getitem__(self, index):
        self.peer.sendall(index.to_bytes(8, "big"))
        return self.peer.recv(8)


loader = DataLoader(Rows("rows.db"), batch_size=8, num_workers=2)
