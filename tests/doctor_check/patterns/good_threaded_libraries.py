"""Libraries whose threads survive a fork, or that only one side uses."""

import cv2
import duckdb
import faiss
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pyarrow.compute as pc
import pyarrow.parquet as pq
import tensorflow as tf
import xgboost as xgb
from torch.utils.data import DataLoader, Dataset


class Arrow(Dataset):
    def __init__(self, path):
        self.table = pq.read_table(path)

    def __len__(self):
        return self.table.num_rows

    def __getitem__(self, i):
        return pc.sum(self.table["x"]).as_py(), self.table.filter(pc.field("x") == i).to_pylist()


class Images(Dataset):
    def __init__(self, paths):
        self.paths = paths
        self.first = cv2.resize(cv2.imread(paths[0]), (64, 64))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        return cv2.resize(cv2.imread(self.paths[i]), (64, 64))


class Frames(Dataset):
    def __init__(self, path):
        self.frame = pd.read_parquet(path)

    def __len__(self):
        return len(self.frame)

    def __getitem__(self, i):
        return self.frame.query("x > 0").iloc[i], self.frame.filter(["x"]).sort_values("x")


class Own(Dataset):
    """A connection of its own in each worker; the trainer has used only the common one."""

    def __init__(self):
        self.connection = None

    def __len__(self):
        return duckdb.sql("select count(*) from 'a.parquet'").fetchone()[0]

    def __getitem__(self, i):
        if self.connection is None:
            self.connection = duckdb.connect()
        return self.connection.execute("select 1").fetchone()


class Examples(Dataset):
    """Messages of TensorFlow are plain data."""

    def __len__(self):
        return 8

    def __getitem__(self, i):
        with tf.io.gfile.GFile("a", "rb") as file:
            return tf.train.Example.FromString(file.read())


class Numbers(Dataset):
    def __init__(self):
        self.neighbours = faiss.read_index("a.faiss").search(np.ones((4, 4)), 5)[1]
        self.scores = xgb.Booster(model_file="a.json").predict(xgb.DMatrix(np.ones((4, 4))))

    def __len__(self):
        return 4

    def __getitem__(self, i):
        return self.neighbours[i], self.scores[i]


def to_numpy(batch):
    return jax.tree.map(np.asarray, batch)


def train(step):
    tf.random.normal((2, 2))
    for loader in (
        DataLoader(Arrow("a.parquet"), 8, num_workers=2),
        DataLoader(Images(["a.jpg"]), 8, num_workers=2),
        DataLoader(Frames("a.parquet"), 8, num_workers=2),
        DataLoader(Own(), 8, num_workers=2),
        DataLoader(Examples(), 8, num_workers=2),
        DataLoader(Numbers(), 8, num_workers=2, collate_fn=to_numpy),
    ):
        for batch in loader:
            jax.jit(step)(jnp.asarray(batch))
