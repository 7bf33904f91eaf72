"""Other libraries with threads that a fork loses: DuckDB, Faiss, XGBoost, LightGBM, JAX, TensorFlow, DataFusion, Numba."""

import duckdb
import faiss
import jax.numpy as jnp
import lightgbm
import numba
import numpy as np
import tensorflow as tf
import xgboost as xgb
from datafusion import SessionContext
from deltalake import DeltaTable
from sklearn.ensemble import HistGradientBoostingRegressor
from torch.utils.data import DataLoader, Dataset, IterableDataset


class Sized(Dataset):
    def __len__(self):
        return 8


class Duck(Sized):
    def __getitem__(self, i):
        return duckdb.sql(f"select * from 'a.parquet' where x = {i}").fetchone()


class Near(Sized):
    def __init__(self, vectors):
        self.vectors = vectors
        self.index = faiss.IndexFlatL2(vectors.shape[1])
        self.index.add(vectors)

    def __getitem__(self, i):
        return self.index.search(self.vectors[i : i + 1], 5)[1]


class Boosted(Sized):
    def __init__(self, booster, features):
        self.booster, self.features = booster, features

    def __getitem__(self, i):
        return self.booster.predict(self.features[i])


class Arrays(Sized):
    def __getitem__(self, i):
        return np.asarray(jnp.ones(3) * i)


class Records(IterableDataset):
    def __init__(self, paths):
        self.records = tf.data.TFRecordDataset(paths).map(len)

    def __iter__(self):
        for record in self.records:
            yield record.numpy()


class Images(Sized):
    def __getitem__(self, i):
        return tf.io.decode_jpeg(tf.io.read_file(f"{i}.jpg")).numpy()


class Queries(Sized):
    def __init__(self):
        self.context = SessionContext()

    def __getitem__(self, i):
        return self.context.sql(f"select {i}").collect()


class Delta(Sized):
    def __init__(self, path):
        self.table = DeltaTable(path)

    def __getitem__(self, i):
        return self.table.to_pyarrow_table().slice(i, 1)


@numba.njit(parallel=True)
def total(values):
    return values.sum()


class Parallel(Sized):
    def __getitem__(self, i):
        return total(np.ones(i))


def main():
    features = np.ones((100, 4), "float32")
    duckdb.execute("create table t as select 1 as x")
    booster = xgb.train({}, xgb.DMatrix(features))
    light = lightgbm.LGBMRegressor().fit(features, features[:, 0])
    trees = HistGradientBoostingRegressor()
    trees.fit(features, features[:, 0])
    queries = Queries()
    queries.context.sql("select 1").collect()
    print(jnp.ones(3).sum(), tf.reduce_sum(features), total(features))

    yield DataLoader(Duck(), 4, num_workers=2)  # finds: forked-library
    yield DataLoader(Near(features), 4, num_workers=2)  # finds: forked-library
    yield DataLoader(Boosted(booster, features), 4, num_workers=2)  # finds: forked-library
    yield DataLoader(Arrays(), 4, num_workers=2)  # finds: forked-library
    yield DataLoader(Records(["a"]), 4, num_workers=1)  # finds: forked-library
    yield DataLoader(Images(), 4, num_workers=2)  # finds: forked-library
    yield DataLoader(queries, 4, num_workers=2)  # finds: forked-library
    yield DataLoader(Delta("table"), 4, num_workers=2)  # finds: forked-library
    yield DataLoader(Parallel(), 4, num_workers=2)  # finds: forked-library


class Light(Sized):
    def __init__(self, model):
        self.model = model

    def __getitem__(self, i):
        return self.model.predict(np.ones((1, 4)))


def more():
    light = lightgbm.LGBMRegressor().fit(np.ones((9, 4)), np.ones(9))
    for _ in DataLoader(Light(light), 4, num_workers=2):  # finds: forked-library
        pass
