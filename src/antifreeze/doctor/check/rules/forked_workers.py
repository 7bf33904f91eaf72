"""``forked-openmp``, ``cuda-in-worker``, ``tokenizers-parallelism``: what does not work in a fork of the trainer."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from antifreeze.doctor.check._rule import ScriptContext, Violation, Weight, rule
from antifreeze.doctor.check._script import Script, calls_in, keyword, number, text

_SWITCH = "TOKENIZERS_PARALLELISM"
_ON = ("true", "1", "on", "yes")


@rule(
    "forked-openmp",
    Weight.FREEZE,
    "torch uses one thread in forked workers, because OpenMP waits forever with more.",
    section="fork",
)
def forked_openmp(context: ScriptContext) -> Iterator[Violation]:
    """Find workers that raise torch's number of threads after the trainer's threads were lost in the fork."""
    script = context.script
    for loader in context.forking_loaders:
        functions = [f for dataset in context.datasets_of(loader) for f in dataset.per_sample]
        start = loader.arguments.get("worker_init_fn")
        if isinstance(start, ast.Name) and start.id in script.functions:
            functions.append(script.functions[start.id])
        for call in (c for function in functions for c in calls_in(ast.walk(function))):
            threads = next(iter(call.args), None)
            if script.name(call.func) == "torch.set_num_threads" and number(threads, script, context.facts) != 1:
                problem = "torch.set_num_threads is called in a forked worker."
                yield Violation(call, problem, f"- {ast.unparse(call)}")


@rule("cuda-in-worker", Weight.ERROR, "CUDA cannot be used in a forked worker once the trainer has used it.")
def cuda_in_worker(context: ScriptContext) -> Iterator[Violation]:
    """Find tensors that forked workers put on the GPU."""
    for loader in context.forking_loaders:
        for function in (f for dataset in context.datasets_of(loader) for f in dataset.per_sample):
            for call in calls_in(ast.walk(function)):
                if _uses_cuda(call, context.script):
                    change = "return CPU tensors, and in the training loop:\n+ batch = batch.to(device)"
                    yield Violation(call, "a forked worker uses CUDA.", change)


def _uses_cuda(call: ast.Call, script: Script) -> bool:
    """True for ``x.cuda()``, ``x.to("cuda")`` and ``f(device="cuda")``."""
    attribute = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    devices = [k.value for k in call.keywords if k.arg == "device"]
    is_named = any((text(given, script) or "").startswith("cuda") for given in (*call.args, *devices))
    return attribute == "cuda" or (is_named and (attribute == "to" or bool(devices)))


@rule(
    "tokenizers-parallelism",
    Weight.FREEZE,
    "A tokenizer that was used in the trainer then waits forever in a forked worker.",
    section="fork",
)
def tokenizers_parallelism(context: ScriptContext) -> Iterator[Violation]:
    """Find the switch in the script or in the environment."""
    script = context.script
    modules = {name.partition(".")[0] for name in script.imports.values()}
    if not modules & {"tokenizers", "transformers"}:
        return
    here = [node for node in ast.walk(script.tree) if _is_switched_on(node, script)]
    in_environment = context.facts.environment.get(_SWITCH, "").lower() in _ON
    for loader in context.forking_loaders:
        if here or in_environment:
            change = f"export {_SWITCH}=false"
            yield Violation(here[0] if here else loader.call, f"{_SWITCH} is on.", change)


def _is_switched_on(node: ast.AST, script: Script) -> bool:
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
    on = [key for key, value in pairs if (text(value, script) or "").lower() in _ON]
    return any(text(key, script) == _SWITCH for key in on)
