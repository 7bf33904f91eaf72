"""``python-list``: a large list of Python objects. Reading one writes its reference count, and so copies its page."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from antifreeze.doctor.check._facts import Facts
from antifreeze.doctor.check._loaders import DatasetClass
from antifreeze.doctor.check._rule import ScriptContext, Violation, Weight, rule
from antifreeze.doctor.check._script import Function, Script, assigned, calls_in, keyword, number, self_name, text

_MANY_RECORDS = 100_000
"""Records that are reported when there are workers."""
_MANY_OBJECTS = 1_000_000
"""Objects of any kind that are reported with and without workers."""
_JSON = ("json.loads", "orjson.loads", "ujson.loads")
_CHANGE = """\
- {what} = [...]
+ {what} = np.array([...])  # numbers
+ {what} = pa.array([...])  # texts and records; all workers share it"""


@rule(
    "python-list",
    Weight.WASTE,
    "It takes several times the memory of an array. Reading an object changes its reference count, so "
    "forked workers copy the list page by page; other workers get a whole copy each.",
    section="memory-grows",
)
def python_list(context: ScriptContext) -> Iterator[Violation]:
    """Find lists of records, and of very many numbers or texts. Lists of paths are left alone: few are large."""
    script = context.script
    held = ((dataset, name, *found) for dataset in context.datasets for name, found in dataset.initial_values().items())
    for dataset, name, value, function in held:
        for made, element, source in _growths(name, value, function, script):
            count = _count(source, script, dataset, context.facts)
            if not dataset.is_used_per_sample(name) or not _is_large(element, source, count, script, function):
                continue
            if dataset.can_be_in_workers or (count or 0) >= _MANY_OBJECTS:
                what = f"{self_name(function)}.{name}"
                many = f"{count:,} Python objects" if count else "a Python object for each record"
                yield Violation(made, f"{what} is a list with {many}.", _CHANGE.format(what=what))
                break


def _growths(
    name: str, value: ast.expr, function: Function, script: Script
) -> Iterator[tuple[ast.AST, ast.expr, ast.expr]]:
    """Yield how a list is filled: the node, the element, and what is iterated over."""
    if isinstance(value, ast.Call) and script.name(value.func) == "list" and len(value.args) == 1:
        inner = value.args[0]
        if isinstance(inner, ast.GeneratorExp):
            yield value, inner.elt, inner.generators[0].iter
        else:
            yield value, ast.Name("item", ast.Load()), inner
    elif isinstance(value, ast.ListComp):
        yield value, value.elt, value.generators[0].iter
    elif _is_records(value, script):
        yield value, ast.Dict([], []), ast.Call(ast.Name("open", ast.Load()), [], [])
    names = {f"{self_name(function)}.{name}"} | ({value.id} if isinstance(value, ast.Name) else set())
    for loop in (node for node in ast.walk(function) if isinstance(node, ast.For)):
        for call in calls_in(ast.walk(loop)):
            appends = isinstance(call.func, ast.Attribute) and call.func.attr == "append" and len(call.args) == 1
            if appends and ast.unparse(call.func).removesuffix(".append") in names:
                yield call, call.args[0], loop.iter


def _is_records(value: ast.expr, script: Script) -> bool:
    """True for ``frame.to_dict("records")``."""
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute) or value.func.attr != "to_dict":
        return False
    return text(keyword(value, "orient", 0), script) == "records"


def _count(source: ast.expr, script: Script, dataset: DatasetClass, facts: Facts) -> int | None:
    """Return how many elements there will be, if the script says so."""
    if not (isinstance(source, ast.Call) and script.name(source.func) == "range" and source.args):
        return None
    stop = source.args[1] if len(source.args) > 1 else source.args[0]
    known = number(stop, script, facts)
    if known is not None or not isinstance(stop, ast.Name) or "__init__" not in dataset.methods:
        return known
    names = [argument.arg for argument in dataset.methods["__init__"].args.args[1:]]
    if stop.id not in names:
        return None
    made = [c for c in calls_in(ast.walk(script.tree)) if script.name(c.func) == dataset.node.name]
    counts = [number(keyword(call, stop.id, names.index(stop.id)), script, facts) for call in made]
    return max((count for count in counts if count is not None), default=None)


def _is_large(element: ast.expr, source: ast.expr, count: int | None, script: Script, function: Function) -> bool:
    """True for records of a source that is usually long, and for very many of anything."""
    if isinstance(element, ast.Name):
        element = next(iter(assigned(element, function)), element) if hasattr(element, "lineno") else element
    is_json = isinstance(element, ast.Call) and script.name(element.func) in _JSON
    is_record = isinstance(element, ast.Dict)
    if count is not None:
        return count >= _MANY_OBJECTS or (count >= _MANY_RECORDS and (is_record or isinstance(element, ast.JoinedStr)))
    if isinstance(source, ast.Call) and script.name(source.func) == "range":
        # Often it is the length of something small; only records are reported.
        lengths = (a for a in source.args if isinstance(a, ast.Call) and ast.unparse(a.func) == "len")
        return is_record and not any(lengths)
    rows = isinstance(source, ast.Call) and script.name(source.func) == "csv.DictReader"
    return is_json or rows or (is_record and _reads_lines(source, script, function))


def _reads_lines(source: ast.expr, script: Script, function: Function) -> bool:
    """True if it iterates over the lines of a file."""
    if isinstance(source, ast.Call) and script.name(source.func) in ("enumerate", "tqdm.tqdm", "tqdm.auto.tqdm"):
        source = source.args[0] if source.args else source
    if isinstance(source, ast.Call):
        return script.name(source.func) in ("open", "csv.reader", "gzip.open")
    opened = [item for node in ast.walk(function) if isinstance(node, ast.With) for item in node.items]
    names = {
        item.optional_vars.id
        for item in opened
        if isinstance(item.optional_vars, ast.Name) and isinstance(item.context_expr, ast.Call)
        if script.name(item.context_expr.func) in ("open", "gzip.open")
    }
    return isinstance(source, ast.Name) and source.id in names
