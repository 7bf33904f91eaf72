"""``shared-*``: state that the trainer opens and workers must not share: files, connections, locks, threads, iterators.

A dataset is pickled or forked into its workers together with what ``__init__`` opened. What belongs to one process does
not survive that. One search finds all five kinds; each kind is a rule.
"""

from __future__ import annotations

import ast
import enum
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from antifreeze.doctor.check._loaders import DatasetClass
from antifreeze.doctor.check._rule import ScriptContext, Violation, Weight, rule
from antifreeze.doctor.check._script import (
    Function,
    Script,
    assigned,
    code_line,
    elements_of,
    in_scope,
    is_generator,
    self_attribute,
    self_name,
    targets_of,
    text,
)

_FILES = """
open io.open codecs.open gzip.open bz2.open lzma.open os.open h5py.File zipfile.ZipFile tarfile.open tarfile.TarFile
lmdb.open lmdb.Environment tables.open_file netCDF4.Dataset pandas.HDFStore cv2.VideoCapture decord.VideoReader av.open
imageio.get_reader rasterio.open openslide.OpenSlide openslide.open_slide shelve.open dbm.open soundfile.SoundFile
wave.open
"""
_CONNECTIONS = """
socket.socket socket.create_connection sqlite3.connect psycopg2.connect psycopg.connect pymysql.connect MySQLdb.connect
mysql.connector.connect duckdb.connect pyodbc.connect cx_Oracle.connect oracledb.connect clickhouse_driver.Client
sqlalchemy.create_engine redis.Redis redis.StrictRedis redis.from_url pymongo.MongoClient cassandra.cluster.Cluster
boto3.client boto3.resource boto3.Session boto3.session.Session requests.Session requests.session httpx.Client
urllib3.PoolManager http.client.HTTPConnection http.client.HTTPSConnection s3fs.S3FileSystem gcsfs.GCSFileSystem
google.cloud.storage.Client azure.storage.blob.BlobServiceClient minio.Minio elasticsearch.Elasticsearch
grpc.insecure_channel grpc.secure_channel ftplib.FTP paramiko.SSHClient
"""
_THREADS = """
threading.Thread concurrent.futures.ThreadPoolExecutor concurrent.futures.ProcessPoolExecutor
concurrent.futures.thread.ThreadPoolExecutor multiprocessing.pool.ThreadPool multiprocessing.Pool
multiprocessing.dummy.Pool torch.multiprocessing.Pool
"""
_LOCKS = {"Lock", "RLock", "Semaphore", "BoundedSemaphore", "Condition", "Event", "Barrier"}
_QUEUES = {"Queue", "SimpleQueue", "JoinableQueue"}
_MULTIPROCESSING = ("multiprocessing", "torch.multiprocessing")
_DERIVED = {"cursor", "begin", "makefile", "Bucket", "bucket", "get_bucket", "execution_options", "snapshot", "connect"}
_MODES = {"r", "rb", "rt", "w", "wb", "a", "ab", "r+", "rb+", "r+b"}
_LAZY_READ = ("h5py.", "netCDF4.", "tables.")
_LMDB = "LMDB forbids an environment that was opened before a fork."
_MAX_PARTS = 200


class HandleKind(enum.Enum):
    """What belongs to one process. The value is the code of the rule."""

    LOCK = "shared-lock"
    THREAD = "shared-thread"
    FILE = "shared-file"
    CONNECTION = "shared-connection"
    ITERATOR = "shared-iterator"


_MAKERS = (
    dict.fromkeys(_FILES.split(), HandleKind.FILE)
    | dict.fromkeys(_CONNECTIONS.split(), HandleKind.CONNECTION)
    | dict.fromkeys(_THREADS.split(), HandleKind.THREAD)
)
_KINDS_OF_GLOBALS = (HandleKind.FILE, HandleKind.CONNECTION, HandleKind.THREAD)


@dataclass(frozen=True, slots=True)
class OpenedHandle:
    """Something that belongs to one process."""

    kind: HandleKind
    made_by: str
    """The name of what creates it, for the message: ``h5py.File``."""
    node: ast.expr
    """Where it is created."""


def _check(kind: HandleKind, context: ScriptContext) -> Iterator[Violation]:
    for dataset in context.datasets:
        yield from _in_attributes(kind, context.script, dataset)
        yield from _in_globals(kind, context.script, dataset)


def _in_attributes(kind: HandleKind, script: Script, dataset: DatasetClass) -> Iterator[Violation]:
    """Find what is opened in ``__init__`` and used for each sample."""
    if dataset.loaders and all(x.workers == 0 and "num_workers" in x.arguments for x in dataset.loaders):
        return
    if dataset.loaders and all(x.is_ours for x in dataset.loaders) and kind in (HandleKind.LOCK, HandleKind.THREAD):
        return
    for name, (value, function) in dataset.initial_values().items():
        if not dataset.is_used_per_sample(name) or dataset.is_set_in_worker(name, script):
            continue
        handle = handle_of(value, script, function) or _own_generator(value, dataset)
        if handle is not None and handle.kind is kind:
            what = f"{self_name(function)}.{name}"
            yield Violation(handle.node, _problem(what, handle), _change(what, value, handle))


def _in_globals(kind: HandleKind, script: Script, dataset: DatasetClass) -> Iterator[Violation]:
    """Find files, connections and pools of the module that forked workers use."""
    if kind not in _KINDS_OF_GLOBALS or not any(loader.has_workers and loader.can_fork for loader in dataset.loaders):
        return
    used = {node.id for f in dataset.per_sample for node in ast.walk(f) if isinstance(node, ast.Name)}
    for node in in_scope(script.tree):
        for target, value in targets_of(node):
            if not isinstance(target, ast.Name) or target.id not in used:
                continue
            handle = handle_of(value, script, None)
            if handle is not None and handle.kind is kind:
                change = f"create {target.id} when a worker first needs it, not when the script starts"
                yield Violation(handle.node, _problem(target.id, handle), change)


def _own_generator(value: ast.expr, dataset: DatasetClass) -> OpenedHandle | None:
    """Return the handle of ``self.rows = self.read_rows()`` where that is a generator of the class."""
    method = dataset.methods.get(self_attribute(value.func)) if isinstance(value, ast.Call) else None
    if method is None or not any(isinstance(node, ast.Yield | ast.YieldFrom) for node in in_scope(method)):
        return None
    return OpenedHandle(HandleKind.ITERATOR, f"the generator {method.name}()", value)


def _problem(what: str, handle: OpenedHandle) -> str:
    created = f"{what} is created by {handle.made_by} in the trainer and used for every sample in the workers."
    return f"{created} {_LMDB}" if handle.made_by == "lmdb.open" else created


def _change(what: str, value: ast.expr, handle: OpenedHandle) -> str:
    if handle.kind is HandleKind.LOCK:
        return f"- {what} = {code_line(value)}\n- with {what}:\n(remove the lock)"
    opened = f"{handle.made_by}(...)" if handle.made_by.replace(".", "").isidentifier() else "..."
    return (
        f"- {what} = {code_line(value)}\n+ {what} = None\nand where a sample is made:\n"
        f"+ if {what} is None:  # once in each worker\n+     {what} = {opened}"
    )


def handle_of(value: ast.expr, script: Script, function: Function | None) -> OpenedHandle | None:
    """Return what a value holds on to, or None. Variables are followed inside the function."""
    todo, seen = [value], 0
    while todo and (seen := seen + 1) < _MAX_PARTS:
        node = todo.pop(0)
        if isinstance(node, ast.Call):
            if found := _made(node, script):
                return found
            # conn.cursor(), env.begin(): they hold on to what they come from
            if isinstance(node.func, ast.Attribute) and node.func.attr in _DERIVED:
                todo.append(node.func.value)
        elif isinstance(node, ast.GeneratorExp):
            return OpenedHandle(HandleKind.ITERATOR, "a generator expression", node)
        else:
            todo += _parts(node, script, function)
    return None


def _parts(node: ast.expr, script: Script, function: Function | None) -> list[ast.expr]:
    """Return what an expression is made of: elements of a container, outcomes of a choice, the value of a variable."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
        # file["images"] of HDF5 reads when it is indexed; file["images"][:] has been read
        lazy = isinstance(node.value, ast.Call) and script.name(node.value.func).startswith(_LAZY_READ)
        return [node.value] if lazy or isinstance(node.value, ast.Name) else []
    if function is not None and (isinstance(node, ast.Name) or self_attribute(node)):
        return assigned(node, function)
    return elements_of(node)


def _made(call: ast.Call, script: Script) -> OpenedHandle | None:
    """Return the handle that a call makes."""
    name = script.name(call.func)
    if name in _MAKERS and not (name == "open" and "open" in script.functions):
        return OpenedHandle(_MAKERS[name], name, call)
    module, _, last = name.rpartition(".")
    if module == "threading" and last in _LOCKS:
        return OpenedHandle(HandleKind.LOCK, name, call)
    if last in _LOCKS | _QUEUES and (module in _MULTIPROCESSING or _is_context(module, script)):
        return OpenedHandle(HandleKind.LOCK, f"multiprocessing.{last}", call)
    if isinstance(call.func, ast.Attribute):
        return _made_by_method(call, call.func, script)
    if is_generator(script.functions.get(name, call)):
        return OpenedHandle(HandleKind.ITERATOR, f"the generator {name}()", call)
    return None


def _made_by_method(call: ast.Call, function: ast.Attribute, script: Script) -> OpenedHandle | None:
    """Return the handle of ``get_context("spawn").Lock()`` or ``Path(name).open("rb")``."""
    owner = function.value
    maker = script.name(owner.func) if isinstance(owner, ast.Call) else ""
    if function.attr in _LOCKS | _QUEUES and maker.endswith(("get_context", ".Manager")):
        return OpenedHandle(HandleKind.LOCK, f"multiprocessing.{function.attr}", call)
    if function.attr == "open" and (maker.endswith("Path") or "path" in script.name(owner).lower()):
        mode = text(call.args[0], script) if call.args else "r"
        if mode in _MODES and not call.keywords:
            return OpenedHandle(HandleKind.FILE, "Path.open", call)
    return None


def _is_context(name: str, script: Script) -> bool:
    """True if a variable is a context or a manager of multiprocessing."""
    values = script.values.get(name, [])
    return any(
        isinstance(value, ast.Call) and script.name(value.func).endswith(("multiprocessing.get_context", ".Manager"))
        for value in values
    )


_EXPLAINED = {
    HandleKind.LOCK: (
        (
            "If its holder is killed, or a thread holds it during a fork, it is never released and all workers wait "
            "forever. Reading needs no lock: each worker is a process and opens its own files."
        ),
        "lock",
    ),
    HandleKind.THREAD: (
        "A fork does not copy threads: work submitted to it never runs, and the loader waits forever.",
        "fork",
    ),
    HandleKind.FILE: (
        "Forked workers share its position and read what another one asked for; other workers cannot be sent it.",
        "notpicklable",
    ),
    HandleKind.CONNECTION: (
        "Once connected, forked workers use the same connection and read each other's answers.",
        "notpicklable",
    ),
    HandleKind.ITERATOR: (
        "It cannot be pickled, and all forked workers start at the same position.",
        "notpicklable",
    ),
}
RULES = tuple(rule(kind.value, Weight.FREEZE, *why)(partial(_check, kind)) for kind, why in _EXPLAINED.items())
