"""Libraries whose threads do not survive a fork, and which of their calls need these threads.

The lists come from trials: the library was used in a process, and the call was made in a fork of it. Listed is what
then hung or ended the process, with Polars 2.1, DuckDB 2.0, Faiss 1.15, XGBoost 3.2, LightGBM, scikit-learn 1.9, JAX,
DataFusion 55, delta-rs 1.6 and Numba 0.68. TensorFlow was not tried: its entry follows common reports. Lance warns
of forks itself. pyarrow, pandas, OpenCV, NumPy, CatBoost and ONNX Runtime passed the same trials, and are left out on
purpose.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryKind:
    """How values of one type use threads."""

    library: str
    """Its name, for people. Uses of the same library belong together."""
    runs: re.Pattern[str]
    """The methods that need threads."""
    becomes: Mapping[str, str] = field(default_factory=dict)
    """Methods and attributes whose result is of another kind; of none, if that is empty."""
    returns: str = ""
    """The kind that all other methods return."""
    runs_by_iteration: bool = False
    """True if iterating over it needs threads."""


def _words(names: str) -> re.Pattern[str]:
    return re.compile(rf"(?:{'|'.join(names.split())})\Z")


def _each(names: str, kind: str = "") -> dict[str, str]:
    return dict.fromkeys(names.split(), kind)


def _all_but(names: str) -> re.Pattern[str]:
    return re.compile(rf"(?!(?:{'|'.join(names.split())})\Z)")


_CONTAINER = "get items values keys pop popitem append extend insert setdefault update clear"
"""Methods of lists and dicts, which are taken for what they hold."""
_OUT_OF_FRAME = _each(
    "to_numpy to_torch to_jax to_arrow to_pandas to_dicts to_list rows row item len columns height width shape schema "
    "dtypes iter_rows is_empty estimated_size n_chunks equals write_csv write_parquet write_ipc write_json write_ndjson"
)
_COLUMNS = _each("get_column to_series", "polars column")

KINDS: dict[str, LibraryKind] = {
    "polars frame": LibraryKind(
        library="Polars",
        runs=_all_but(
            f"{_CONTAINER} row rows item slice head tail limit get_column get_columns to_series to_dicts to_dict "
            "to_list iter_rows iter_slices iter_columns vstack hstack clone is_empty rename lazy equals null_count "
            "n_chunks estimated_size to_struct with_row_index get_column_index"
        ),
        becomes=_OUT_OF_FRAME | _COLUMNS | {"lazy": "polars query", "to_dict": "polars column"},
        returns="polars frame",
    ),
    "polars query": LibraryKind(
        library="Polars",
        runs=re.compile(r"(collect|collect_async|collect_batches|fetch|profile|describe|sink_\w+)\Z"),
        becomes=_each("collect fetch describe", "polars frame") | _OUT_OF_FRAME,
        returns="polars query",
    ),
    "polars column": LibraryKind(
        library="Polars",
        runs=_words(
            "sort arg_sort sample is_in quantile median rank top_k bottom_k unique n_unique mode diff fill_null "
            "search_sorted to_dummies"
        ),
        becomes=_OUT_OF_FRAME | {"to_frame": "polars frame"},
        returns="polars column",
    ),
    "faiss": LibraryKind(
        library="Faiss", runs=_words("search add train range_search assign add_with_ids search_and_reconstruct")
    ),
    "xgboost": LibraryKind(
        library="XGBoost", runs=_words("fit predict predict_proba inplace_predict update eval apply"), returns="xgboost"
    ),
    "lightgbm": LibraryKind(
        library="LightGBM", runs=_words("fit predict predict_proba update eval refit"), returns="lightgbm"
    ),
    "sklearn": LibraryKind(library="scikit-learn", runs=_words("fit predict predict_proba score"), returns="sklearn"),
    "tensorflow": LibraryKind(
        library="TensorFlow",
        runs=_all_but(f"{_CONTAINER} numpy get_shape as_list"),
        becomes=_each("numpy shape dtype as_list get_shape"),
        returns="tensorflow",
        runs_by_iteration=True,
    ),
    "lance": LibraryKind(library="Lance", runs=_all_but(f"{_CONTAINER} schema uri version"), runs_by_iteration=True),
    "deltalake": LibraryKind(library="delta-rs", runs=_all_but(f"{_CONTAINER} version")),
    "datafusion": LibraryKind(
        library="DataFusion",
        runs=_all_but(f"{_CONTAINER} schema"),
        becomes=_each("collect to_pandas to_arrow_table to_pylist to_pydict to_polars count schema"),
        returns="datafusion",
        runs_by_iteration=True,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Functions:
    """Some functions and classes of a library."""

    names: re.Pattern[str]
    """Their full names."""
    library: str
    runs: bool
    """True if a call needs threads."""
    kind: str = ""
    """The kind of what it returns."""


def _functions(names: str, library: str, kind: str = "", *, runs: bool = True) -> Functions:
    return Functions(names=re.compile(rf"(?:{names})\Z"), library=library, runs=runs, kind=kind)


_FUNCTIONS = (
    _functions(r"polars\.read_\w+_(schema|metadata)", "Polars", runs=False),
    _functions(r"polars\.(read_\w+|concat|from_arrow|select|collect_all|align_frames)", "Polars", "polars frame"),
    _functions(r"polars\.(DataFrame|from_\w+|(data)?frame\.DataFrame)", "Polars", "polars frame", runs=False),
    _functions(r"polars\.(LazyFrame|scan_\w+|lazyframe\.LazyFrame)", "Polars", "polars query", runs=False),
    _functions(r"polars\.(Series|series\.Series)", "Polars", "polars column", runs=False),
    _functions(r"polars\.(thread_pool_size|threadpool_size)", "Polars"),
    # Connections of one's own are the rule about connections; these share one in each process.
    _functions(
        r"duckdb\.(sql|query|execute|executemany|query_df|arrow|df|table|view|values|read_\w+|from_\w+|table_function|fetch\w+)",
        "DuckDB",
    ),
    _functions(r"faiss\.(Index\w+|index_factory|read_index|clone_index)", "Faiss", "faiss", runs=False),
    _functions(r"faiss\.(knn|normalize_L2)", "Faiss"),
    _functions(r"xgboost\.(train|cv|DMatrix|QuantileDMatrix)", "XGBoost", "xgboost"),
    _functions(r"xgboost\.(Booster|XGB\w+)", "XGBoost", "xgboost", runs=False),
    _functions(r"lightgbm\.(train|cv)", "LightGBM", "lightgbm"),
    _functions(r"lightgbm\.(Booster|LGBM\w+|Dataset)", "LightGBM", "lightgbm", runs=False),
    _functions(r"sklearn\.ensemble\.HistGradientBoosting\w+", "scikit-learn", "sklearn", runs=False),
    _functions(r"jax\.(numpy|random|lax|nn|image|scipy)\.[\w.]+", "JAX"),
    _functions(r"jax\.(device_put|devices|jit|grad|value_and_grad|vmap|pmap)", "JAX"),
    _functions(
        r"tensorflow\.((config|train|compat|io\.gfile|dtypes|logging|autograph|debugging)\.[\w.]+"
        r"|function|Module|TensorSpec|TensorShape|py_function|device|GradientTape)",
        "TensorFlow",
        runs=False,
    ),
    _functions(r"tensorflow\.[\w.]+|tensorflow_datasets\.load", "TensorFlow", "tensorflow"),
    _functions(r"lance\.(dataset|write_dataset)", "Lance", "lance"),
    _functions(r"deltalake\.(DeltaTable|write_deltalake)", "delta-rs", "deltalake"),
    _functions(r"datafusion\.SessionContext", "DataFusion", "datafusion", runs=False),
)
NUMBA = "Numba"


def function_named(name: str) -> Functions | None:
    """Return what is known of a function by its full name."""
    return next((functions for functions in _FUNCTIONS if functions.names.match(name)), None)
