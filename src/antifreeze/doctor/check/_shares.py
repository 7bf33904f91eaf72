"""The rule about iterable datasets: who does not ask which worker it is, reads everything in each of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from antifreeze.doctor.check._datasets import DatasetClass
from antifreeze.doctor.check._finding import CheckFinding, Code
from antifreeze.doctor.check._names import self_attribute
from antifreeze.doctor.check._script import Script, calls_in, in_scope

_KNOWS_WORKERS = re.compile(r"worker|shard|rank|split_by|partition", re.IGNORECASE)
_READS = {
    "open",
    "range",
    "gzip.open",
    "tarfile.open",
    "csv.reader",
    "glob.glob",
    "os.listdir",
    "json.load",
    "h5py.File",
}
_OPENS = {"open", "read_text", "read_bytes", "iter_batches"}


def duplicates(script: Script, dataset: DatasetClass) -> Iterator[CheckFinding]:
    """Find iterable datasets that two workers would read twice."""
    loaders = [loader for loader in dataset.loaders if loader.workers is not None and loader.workers > 1]
    start = dataset.methods.get("__iter__")
    if not dataset.iterable or not loaders or start is None:
        return
    if any("worker_init_fn" in loader.arguments or loader.open for loader in loaders):
        return
    names = {name for function in dataset.per_sample for name in _names(function)}
    if any(_KNOWS_WORKERS.search(name) for name in names) or not _reads_itself(script, dataset):
        return
    reason = (
        f"__iter__ does not ask which worker it runs in, so each of the {loaders[0].workers} workers gives all "
        f"samples: each arrives {loaders[0].workers} times."
    )
    change = (
        "+ info = torch.utils.data.get_worker_info()\n"
        "+ first, step = (info.id, info.num_workers) if info else (0, 1)\n"
        "+ yield from itertools.islice(samples, first, None, step)"
    )
    yield script.finding(Code.DUPLICATES, start, reason, change)


def _names(function: ast.AST) -> Iterator[str]:
    for node in ast.walk(function):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.arg):
            yield node.arg


def _reads_itself(script: Script, dataset: DatasetClass) -> bool:
    """Whether it reads files or counts. One that passes on what another object gives may be given a share of it."""
    for function in dataset.per_sample:
        if any(script.name(call.func) in _READS or _is_reader(call, script) for call in calls_in(in_scope(function))):
            return True
    return False


def _is_reader(call: ast.Call, script: Script) -> bool:
    if isinstance(call.func, ast.Attribute) and call.func.attr in _OPENS:
        return True
    return script.name(call.func).rpartition(".")[2].startswith("read_") and not self_attribute(call.func)
