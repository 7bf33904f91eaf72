"""``duplicates`` and ``same-random``: workers that have copies of a dataset do the same with them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from antifreeze.doctor.check._rule import ScriptContext, Violation, Weight, rule
from antifreeze.doctor.check._script import Script, calls_in, in_scope, self_attribute, self_name

_KNOWS_WORKERS = re.compile(r"worker|shard|rank|split_by|partition", re.IGNORECASE)
_READERS = "open range gzip.open tarfile.open csv.reader glob.glob os.listdir json.load h5py.File"
_READING_METHODS = {"open", "read_text", "read_bytes", "iter_batches"}
_CHANGE = """\
+ info = torch.utils.data.get_worker_info()
+ first, step = (info.id, info.num_workers) if info else (0, 1)
+ yield from itertools.islice(samples, first, None, step)"""
_GENERATORS = {"numpy.random.default_rng", "numpy.random.RandomState", "random.Random", "torch.Generator"}


@rule(
    "duplicates",
    Weight.FREEZE,
    "Every worker yields all samples, so each sample arrives once per worker.",
    section="duplicatedata",
)
def duplicates(context: ScriptContext) -> Iterator[Violation]:
    """Find iterable datasets that every worker would read completely."""
    for dataset in context.datasets:
        loaders = [loader for loader in dataset.loaders if loader.workers is not None and loader.workers > 1]
        start = dataset.methods.get("__iter__")
        if not dataset.is_iterable or not loaders or start is None:
            continue
        if any("worker_init_fn" in loader.arguments or loader.has_hidden_arguments for loader in loaders):
            continue
        names = {name for function in dataset.per_sample for name in _names(function)}
        # One that passes on what another object yields may be given a shard of it.
        calls = (call for function in dataset.per_sample for call in calls_in(in_scope(function)))
        if any(_KNOWS_WORKERS.search(name) for name in names) or not any(_reads(c, context.script) for c in calls):
            continue
        problem = f"__iter__ does not ask which of {loaders[0].workers} workers it runs in."
        yield Violation(start, problem, _CHANGE)


def _names(function: ast.AST) -> Iterator[str]:
    for node in ast.walk(function):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.arg):
            yield node.arg


def _reads(call: ast.Call, script: Script) -> bool:
    """True if a call reads files or counts."""
    name = script.name(call.func)
    if name in _READERS.split() or (isinstance(call.func, ast.Attribute) and call.func.attr in _READING_METHODS):
        return True
    return name.rpartition(".")[2].startswith("read_") and not self_attribute(call.func)


@rule("same-random", Weight.FREEZE, "Every worker draws the same numbers from a copy of it.")
def same_random(context: ScriptContext) -> Iterator[Violation]:
    """Find generators that are created in ``__init__`` and used for each sample.

    torch seeds ``random``, ``numpy.random`` (since 1.9) and itself differently in each worker, so these are fine.
    """
    script = context.script
    for dataset in context.datasets:
        nodes = (node for function in dataset.per_sample for node in ast.walk(function))
        asks_worker = any(script.name(node).endswith("get_worker_info") for node in nodes)
        if dataset.is_iterable or not dataset.can_be_in_workers or asks_worker:
            continue
        for name, (value, function) in dataset.initial_values().items():
            if not isinstance(value, ast.Call) or script.name(value.func) not in _GENERATORS:
                continue
            if dataset.is_used_per_sample(name) and not dataset.is_set_in_worker(name, script):
                what = f"{self_name(function)}.{name}"
                change = f"in __getitem__, instead of {what}:\n+ rng = np.random.default_rng((seed, index))"
                yield Violation(value, f"{what} is created in __init__.", change)
