"""Rules about libraries and settings that do not survive a fork."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from antifreeze.doctor.check._datasets import DatasetClass
from antifreeze.doctor.check._division import Division
from antifreeze.doctor.check._facts import Facts
from antifreeze.doctor.check._finding import CheckFinding, Code
from antifreeze.doctor.check._loaders import Loader
from antifreeze.doctor.check._script import Function, Script, calls_in, keyword
from antifreeze.doctor.check._values import number, text

SPAWN = '+ DataLoader(..., multiprocessing_context="spawn")\nor, never forked: from antifreeze import DataLoader'


def libraries_after_fork(script: Script, loader: Loader, code: Division) -> Iterator[CheckFinding]:
    """Find libraries that are used in the trainer and in forked workers: their threads exist only in the trainer."""
    if not (loader.has_workers and loader.forks):
        return
    in_workers = {use.library for use in code.in_workers_of(loader)}
    if _reads_by_polars(script, loader):
        in_workers.add("Polars")
    in_trainer = [use for use in code.in_trainer(loader) if use.library in in_workers]
    for use in sorted(in_trainer, key=lambda use: use.node.lineno)[:1]:
        reason = (
            f"{use.library} is used in the trainer (line {use.node.lineno}), so its threads run there. These workers "
            f"are forked copies without the threads: the first call of {use.library} that needs them hangs or fails."
        )
        yield script.finding(Code.FORKED_LIBRARY, loader.call, reason, SPAWN)


def _reads_by_polars(script: Script, loader: Loader) -> bool:
    """Whether it is a loader of litData over Parquet, which decodes by Polars in its workers."""
    ours = script.name(loader.call.func).startswith("litdata.")
    return ours and any(script.name(c.func).endswith(".ParquetLoader") for c in calls_in(ast.walk(script.tree)))


def threads_after_fork(script: Script, loader: Loader, datasets: list[DatasetClass]) -> Iterator[CheckFinding]:
    """Find workers that give torch more than one thread again, after the trainer's were lost by the fork."""
    if not (loader.has_workers and loader.forks):
        return
    functions: list[Function] = [f for d in datasets if loader in d.loaders for f in d.per_sample]
    start = loader.arguments.get("worker_init_fn")
    if isinstance(start, ast.Name) and start.id in script.functions:
        functions.append(script.functions[start.id])
    for call in (c for function in functions for c in calls_in(ast.walk(function))):
        if (
            script.name(call.func) == "torch.set_num_threads"
            and number(next(iter(call.args), None), script, Facts()) != 1
        ):
            reason = "torch runs with one thread in forked workers, because OpenMP waits for ever with more of them."
            yield script.finding(Code.FORKED_OPENMP, call, reason, f"- {ast.unparse(call)}")


def cuda_in_workers(script: Script, loader: Loader, datasets: list[DatasetClass]) -> Iterator[CheckFinding]:
    """Find tensors that forked workers put on the GPU."""
    if not (loader.has_workers and loader.forks):
        return
    for function in (f for d in datasets if loader in d.loaders for f in d.per_sample):
        for call in calls_in(ast.walk(function)):
            attribute = call.func.attr if isinstance(call.func, ast.Attribute) else ""
            arguments = [*call.args, *(k.value for k in call.keywords if k.arg == "device")]
            named = any((text(a, script) or "").startswith("cuda") for a in arguments)
            if (
                attribute == "cuda"
                or (attribute == "to" and named)
                or (named and any(k.arg == "device" for k in call.keywords))
            ):
                reason = "CUDA cannot be used in a forked worker once the trainer has used it."
                change = "return CPU tensors, and in the training loop:\n+ batch = batch.to(device)"
                yield script.finding(Code.CUDA_IN_WORKER, call, reason, change)


def tokenizers(script: Script, loader: Loader, facts: Facts) -> Iterator[CheckFinding]:
    """Find the switch that takes away the tokenizers' own guard against forks."""
    modules = {name.partition(".")[0] for name in script.imports.values()}
    if not (loader.has_workers and loader.forks) or not modules & {"tokenizers", "transformers"}:
        return
    here = [node for node in ast.walk(script.tree) if _sets_parallelism(node, script)]
    from_outside = facts.environment.get("TOKENIZERS_PARALLELISM", "").lower() in ("true", "1", "on", "yes")
    if not here and not from_outside:
        return
    reason = (
        "TOKENIZERS_PARALLELISM is on. It switches off the tokenizers' guard, and a tokenizer that has been used in "
        "the trainer then waits for ever in a forked worker."
    )
    yield script.finding(
        Code.TOKENIZERS, here[0] if here else loader.call, reason, "export TOKENIZERS_PARALLELISM=false"
    )


def _sets_parallelism(node: ast.AST, script: Script) -> bool:
    """True for ``os.environ[...] = "true"``, ``setdefault``, ``update`` and ``putenv`` of the switch."""
    pairs: list[tuple[ast.expr | None, ast.expr | None]] = []
    if isinstance(node, ast.Assign):
        subscripts = [target for target in node.targets if isinstance(target, ast.Subscript)]
        pairs = [(s.slice, node.value) for s in subscripts if script.name(s.value) == "os.environ"]
    elif isinstance(node, ast.Call) and script.name(node.func) in ("os.environ.setdefault", "os.putenv"):
        pairs = [(keyword(node, "key", 0), keyword(node, "value", 1))]
    elif isinstance(node, ast.Call) and script.name(node.func) == "os.environ.update":
        dicts = [argument for argument in node.args if isinstance(argument, ast.Dict)]
        pairs = [pair for given in dicts for pair in zip(given.keys, given.values, strict=True)]
        pairs += [(ast.Constant(k.arg), k.value) for k in node.keywords]
    on = [key for key, value in pairs if (text(value, script) or "").lower() in ("true", "1", "on", "yes")]
    return any(text(key, script) == "TOKENIZERS_PARALLELISM" for key in on)


def sigchld(script: Script, loaders: list[Loader]) -> Iterator[CheckFinding]:
    """Find a script that does not want to know of its children's end: then no loader can notice a lost worker."""
    if not any(loader.has_workers and not loader.ours for loader in loaders):
        return
    for call in calls_in(ast.walk(script.tree)):
        names = [script.name(argument) for argument in call.args]
        if script.name(call.func) == "signal.signal" and names == ["signal.SIGCHLD", "signal.SIG_IGN"]:
            reason = (
                "with SIGCHLD ignored nobody learns that a worker was killed, and the loader waits for it for ever."
            )
            yield script.finding(Code.SIGCHLD, call, reason, f"- {ast.unparse(call)}")
