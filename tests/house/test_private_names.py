"""A class does not reach into another's private attributes: ``x._name`` is for the class that has it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "antifreeze"
NAMED_TUPLES = {"_replace", "_asdict", "_field_defaults", "_fields"}
"""Public, with an underscore so that they are not taken for fields."""
ALLOWED = {
    "_exit": "of os: ends a forked process without running what belongs to its parent",
    "_current_frames": "of sys: the stacks of all threads",
    "_xoptions": "of sys",
    "_value_": "of enum: the value of a member, in its constructor",
    "_lru_cache_wrapper": "of functools: the type of a cached function",
    "_get_default_store": "of torch.distributed: the store of the job",
    "_new_shared": "of torch: storage in memory that is shared already",
    "_worker_info": "of torch: what get_worker_info() returns",
    "_is_accelerate_prepared": "of Accelerate: marks a loader that it has prepared",
    "_config": "of multiprocessing: the process that a worker is",
    "_name": "of multiprocessing and ctypes",
    "_parent_process": "of multiprocessing",
    "_ParentProcess": "of multiprocessing",
    "_extra_reducers": "of multiprocessing: reducers that users have registered",
    "_resource_tracker": "of multiprocessing",
    "_fd": "of multiprocessing: the pipe of its resource tracker",
    "_lock": "of threading: the lock of a condition",
    "_max_workers": "of concurrent.futures, as are the next three: how a thread pool was made",
    "_thread_name_prefix": "",
    "_initializer": "",
    "_initargs": "",
    "_FuncPtr": "of ctypes: the type of a library's functions",
    "_flags_": "of ctypes",
    "_Database": "of lmdb: the type of a database handle",
    "_id": "of h5py: the handle of an object",
    "_all": "of SharedList, in a function that becomes its method",
}


def _private_uses(tree: ast.AST, own: frozenset[str] = frozenset()) -> Iterator[tuple[int, str]]:
    """Yield private attributes of something that is neither self, nor in a class that has an attribute of the name."""
    for node in ast.iter_child_nodes(tree):
        inner = own | _own_names(node) if isinstance(node, ast.ClassDef) else own
        if isinstance(node, ast.Attribute) and _is_private(node.attr) and node.attr not in own and not _is_self(node):
            yield node.lineno, ast.unparse(node)
        yield from _private_uses(node, inner)


def _own_names(kind: ast.ClassDef) -> set[str]:
    of_self = {n.attr for n in ast.walk(kind) if isinstance(n, ast.Attribute) and _is_self(n)}
    return of_self | {n.name for n in ast.walk(kind) if isinstance(n, ast.FunctionDef)}


def _is_self(node: ast.Attribute) -> bool:
    value = node.value
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
        return value.func.id == "super"
    return isinstance(value, ast.Name) and value.id in ("self", "cls")


def _is_private(name: str) -> bool:
    is_dunder = name.startswith("__") and name.endswith("__")
    return name.startswith("_") and not is_dunder and name not in NAMED_TUPLES and name not in ALLOWED


def test_no_class_reaches_into_another() -> None:
    """Each of these would tie two classes together where no reader of either can see it."""
    found = [
        f"{path.relative_to(SOURCE)}:{line}: {use}"
        for path in sorted(SOURCE.rglob("*.py"))
        for line, use in _private_uses(ast.parse(path.read_text()))
    ]
    assert not found, "make the name public, or move the code into the class:\n" + "\n".join(found)


def test_the_rule_can_fail() -> None:
    """It sees an attribute of another object, and lets a class look into another instance of its own."""
    wrong = "class A:\n    def use(self, other):\n        return other._secret\n"
    right = "class A:\n    def __eq__(self, other):\n        return self._secret == other._secret\n"
    assert [use for _, use in _private_uses(ast.parse(wrong))] == ["other._secret"]
    assert list(_private_uses(ast.parse(right))) == []
