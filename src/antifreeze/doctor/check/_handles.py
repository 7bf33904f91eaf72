"""What must not be carried from one process to another, and how it is made: files, connections, locks, threads."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from antifreeze.doctor.check._finding import Code
from antifreeze.doctor.check._names import self_attribute, targets_of
from antifreeze.doctor.check._script import Function, Script, is_generator
from antifreeze.doctor.check._values import text

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
_BETWEEN = ("multiprocessing", "torch.multiprocessing")
_TABLE = (
    dict.fromkeys(_FILES.split(), Code.SHARED_FILE)
    | dict.fromkeys(_CONNECTIONS.split(), Code.SHARED_CONNECTION)
    | dict.fromkeys(_THREADS.split(), Code.SHARED_THREAD)
)
_DERIVED = {"cursor", "begin", "makefile", "Bucket", "bucket", "get_bucket", "execution_options", "snapshot", "connect"}
_MODES = {"r", "rb", "rt", "w", "wb", "a", "ab", "r+", "rb+", "r+b"}
_LAZY_READ = ("h5py.", "netCDF4.", "tables.")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedHandle:
    """Something that belongs to one process."""

    code: Code
    made_by: str
    """The name of what makes it, for the message: ``h5py.File``."""
    node: ast.expr
    """Where it is made."""

    @property
    def between_processes(self) -> bool:
        """Whether it is a lock or queue that is meant to be shared."""
        return self.code is Code.SHARED_LOCK and not self.made_by.startswith("threading.")


def handle_of(value: ast.expr, script: Script, function: Function | None) -> OpenedHandle | None:
    """Return what a value holds on to, or None. Variables are followed inside the function."""
    todo, seen = [value], 0
    while todo and (seen := seen + 1) < 200:
        node = todo.pop(0)
        if isinstance(node, ast.Call):
            if found := _made(node, script):
                return found
            # conn.cursor(), env.begin(): they hold on to what they come from
            if isinstance(node.func, ast.Attribute) and node.func.attr in _DERIVED:
                todo.append(node.func.value)
        elif isinstance(node, ast.GeneratorExp):
            return OpenedHandle(code=Code.SHARED_ITERATOR, made_by="a generator expression", node=node)
        else:
            todo += _inside(node, script, function)
    return None


def _inside(node: ast.expr, script: Script, function: Function | None) -> list[ast.expr]:
    """Return the parts of an expression that it is made of, as containers and choices are."""
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return node.elts
    if isinstance(node, ast.Dict):
        return node.values
    if isinstance(node, ast.ListComp | ast.SetComp):
        return [node.elt]
    if isinstance(node, ast.DictComp):
        return [node.value]
    if isinstance(node, ast.IfExp):
        return [node.body, node.orelse]
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
        # file["images"] of HDF5 reads when it is indexed; file["images"][:] has been read
        lazy = isinstance(node.value, ast.Call) and script.name(node.value.func).startswith(_LAZY_READ)
        return [node.value] if lazy or isinstance(node.value, ast.Name) else []
    if function is not None and (isinstance(node, ast.Name) or self_attribute(node)):
        return assigned(node, function)
    return []


def assigned(node: ast.expr, function: Function) -> list[ast.expr]:
    """Return the last value before it that a function gives to a variable or an attribute."""
    wanted, values = ast.dump(_load(node)), []
    for statement in ast.walk(function):
        for target, value in targets_of(statement):
            if value.lineno < node.lineno and ast.dump(_load(target)) == wanted:
                values.append(value)
    return sorted(values, key=lambda v: v.lineno)[-1:]


def _load(node: ast.expr) -> ast.expr:
    """Return a name or attribute as if it was read, so that a target can be compared with a use."""
    if isinstance(node, ast.Name):
        return ast.Name(node.id, ast.Load())
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return ast.Attribute(ast.Name(node.value.id, ast.Load()), node.attr, ast.Load())
    return ast.Constant(None)


def _made(call: ast.Call, script: Script) -> OpenedHandle | None:
    """Return the handle that a call makes."""
    name = script.name(call.func)
    if name in _TABLE and not (name == "open" and "open" in script.functions):
        return OpenedHandle(code=_TABLE[name], made_by=name, node=call)
    module, _, last = name.rpartition(".")
    if module == "threading" and last in _LOCKS:
        return OpenedHandle(code=Code.SHARED_LOCK, made_by=name, node=call)
    if last in _LOCKS | _QUEUES and (module in _BETWEEN or _is_context(module, script)):
        return OpenedHandle(code=Code.SHARED_LOCK, made_by=f"multiprocessing.{last}", node=call)
    if isinstance(call.func, ast.Attribute):
        return _made_by_method(call, call.func, script)
    if is_generator(script.functions.get(name, call)):
        return OpenedHandle(code=Code.SHARED_ITERATOR, made_by=f"the generator {name}()", node=call)
    return None


def _made_by_method(call: ast.Call, function: ast.Attribute, script: Script) -> OpenedHandle | None:
    """Return the handle of ``get_context("spawn").Lock()`` or ``Path(name).open("rb")``."""
    owner = function.value
    maker = script.name(owner.func) if isinstance(owner, ast.Call) else ""
    if function.attr in _LOCKS | _QUEUES and maker.endswith(("get_context", ".Manager")):
        return OpenedHandle(code=Code.SHARED_LOCK, made_by=f"multiprocessing.{function.attr}", node=call)
    if function.attr == "open" and (maker.endswith("Path") or "path" in script.name(owner).lower()):
        mode = text(call.args[0], script) if call.args else "r"
        if mode in _MODES and not call.keywords:
            return OpenedHandle(code=Code.SHARED_FILE, made_by="Path.open", node=call)
    return None


def _is_context(name: str, script: Script) -> bool:
    """Whether a variable is a context or a manager of multiprocessing."""
    values = script.values.get(name, [])
    return any(
        isinstance(value, ast.Call) and script.name(value.func).endswith(("multiprocessing.get_context", ".Manager"))
        for value in values
    )
