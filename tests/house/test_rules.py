"""The rules of the house, as tests."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import antifreeze

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src/antifreeze").rglob("*.py"))
MODULE_LINES = 500
FUNCTION_LINES = 40
BLOCKING = {"get", "join", "wait", "acquire", "result", "recv"}


def names(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", SOURCES, ids=names)
def test_a_module_fits_in_one_sitting(path: Path) -> None:
    """Most modules have 100 to 400 lines; one that grows past this limit holds two ideas."""
    assert len(path.read_text().splitlines()) <= MODULE_LINES


@pytest.mark.parametrize("path", SOURCES, ids=names)
def test_a_module_says_its_idea_in_its_first_line(path: Path) -> None:
    """One sentence, so that a reader knows whether to go on."""
    docstring = ast.get_docstring(ast.parse(path.read_text()))

    assert docstring
    assert docstring.splitlines()[0].endswith((".", ":"))


def body_lines(function: ast.FunctionDef) -> int:
    """Return the lines of a function without its signature and docstring."""
    body = function.body[1:] if ast.get_docstring(function) and len(function.body) > 1 else function.body
    return (function.end_lineno or 0) - body[0].lineno + 1


@pytest.mark.parametrize("path", SOURCES, ids=names)
def test_a_function_fits_on_a_screen(path: Path) -> None:
    """What does not fit on a screen is not understood at a glance."""
    tree = ast.parse(path.read_text())
    long = {f.name: body_lines(f) for f in ast.walk(tree) if isinstance(f, ast.FunctionDef)}

    assert {name: lines for name, lines in long.items() if lines > FUNCTION_LINES} == {}


def waits_for_ever(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in BLOCKING:
            yield from [f"line {node.lineno}: .{node.func.attr}()"] * (not node.args and not node.keywords)


@pytest.mark.parametrize("path", SOURCES, ids=names)
def test_every_wait_has_a_deadline(path: Path) -> None:
    """A call that can block takes a limit; a lock held by ``with`` guards a few statements and never a wait."""
    assert list(waits_for_ever(ast.parse(path.read_text()))) == []


def test_the_rule_about_waits_can_fail() -> None:
    """A check that cannot fail checks nothing."""
    assert list(waits_for_ever(ast.parse("thread.join()"))) == ["line 1: .join()"]


PUBLIC = """
AntifreezeError CombinedStreamingDataset ConfigError CorruptFile DataError DataLoader Diagnosis DuplicateData InputError
ManifestError NotPicklable NotRepeatable NullValue ParallelStreamingDataset ParquetLoader RaggedColumn Report
SchemaMismatch SourceChanged SourceNotFound Stalled StateMismatch StreamingDataLoader StreamingDataset TooLarge
UnknownColumn UnreadableFile UserCodeError WorkerDied __version__ batched diagnose index_parquet_dataset subsample
train_test_split
"""


def test_the_public_names_are_these() -> None:
    """A name that appears or vanishes is a decision, not an accident."""
    assert sorted(antifreeze.__all__) == PUBLIC.split()
    assert all(getattr(antifreeze, name) is not None for name in antifreeze.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    """Lazy imports must not turn a typing error into something else."""
    with pytest.raises(AttributeError, match="no attribute 'StreamingDatset'"):
        _ = antifreeze.StreamingDatset


def test_importing_antifreeze_imports_no_library() -> None:
    """``import antifreeze`` must cost nothing: workers and command lines pay for it each time."""
    code = "import sys, antifreeze; print([m for m in ('torch', 'pyarrow', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.strip() == "[]"


def test_reading_without_torch_imports_no_torch(tmp_path: Path) -> None:
    """Who asks for NumPy does not pay for torch."""
    code = (
        "import sys, pyarrow as pa, pyarrow.parquet as pq, antifreeze as af\n"
        f"pq.write_table(pa.table({{'x': [1, 2, 3]}}), {str(tmp_path / 'a.parquet')!r})\n"
        f"ds = af.StreamingDataset({str(tmp_path)!r}, format='numpy')\n"
        "rows = sum(len(b['x']) for b in af.StreamingDataLoader(ds, batch_size=2, num_workers=1))\n"
        "print(rows, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.split() == ["3", "False"]


BETWEEN_PROCESSES = {"ipc/_codec.py", "ipc/_channel.py", "worker/_task_context.py"}
BETWEEN_PROCESSES |= {"worker/_iterable.py", "payload/_replacements.py", "pool/_failures.py"}


def test_reading_data_never_runs_code_from_it() -> None:
    """No eval, no shell anywhere; unpickling only of what our own processes send each other over a private socket."""
    banned = ("pickle.load", "Unpickler", "eval(", "exec(", "shell=True", "os.system", "allow_pickle=True")
    allowed = {(f"src/antifreeze/{module}", "pickle.load") for module in BETWEEN_PROCESSES}
    allowed |= {(f"src/antifreeze/{name}.py", "Unpickler") for name in ("payload/_settings", "payload/_payload")}
    found = {(names(p), word) for p in SOURCES for word in banned if word in p.read_text()}

    assert found == allowed


def test_what_reads_data_knows_nothing_of_pickles() -> None:
    """Data is read by storage, formats, decoders and datasets."""
    readers = [p for p in SOURCES if p.parent.name in ("storage", "formats", "plan", "decode", "datasets")]

    assert [names(p) for p in readers if "import pickle" in p.read_text()] == []
