"""The documentation is true: its code runs, its links lead somewhere, and its error messages are those of the source.

All ``python`` blocks of a page run in order, in one namespace, in a folder with a small dataset at ``data/train``. A
block is left out only by a comment in the line above it: ``<!-- not run: reason -->``.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import antifreeze as af
from antifreeze import core
from antifreeze.datasets import _read_spec, _reading
from antifreeze.diagnosis import Cause, _policy
from antifreeze.doctor.check import MACHINE_RULES, SCRIPT_RULES
from antifreeze.pool import _pool, _prefetch, _task_table, _worker_watch

HOUSE = Path(__file__).parent.parent
PAGES = sorted(
    [HOUSE / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "CODE_OF_CONDUCT.md")]
    + list((HOUSE / "docs").rglob("*.md"))
)
# Its blocks are arguments rather than scripts; an import above each would be noise.
PRELUDES = {"docs/columns.md": "from antifreeze import StreamingDataLoader, StreamingDataset"}
TROUBLESHOOTING = HOUSE / "docs/troubleshooting.md"
WORKERS = HOUSE / "docs/workers.md"

_BLOCK = re.compile(r"^(?P<above>[^\n]*)\n```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
_NOT_RUN = re.compile(r"<!-- not run: \S.* -->")
_LINK = re.compile(r"!?\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_HEADING = re.compile(r"^#+ (?P<text>.*)$", re.MULTILINE)
_ENTRY = re.compile(r"^::: (?P<name>\S+)$", re.MULTILINE)
_EXAMPLE = re.compile(r"^ +```python\n(.*?)^ +```$", re.MULTILINE | re.DOTALL)
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_KEY = re.compile(r"^\| `(?P<key>[^`]+)` \|", re.MULTILINE)


def name_of(page: Path) -> str:
    return page.relative_to(HOUSE).as_posix()


def code_of(page: Path) -> str:
    """Return the blocks of a page as one script in which line numbers are those of the page."""
    text = page.read_text()
    lines = [""] * (text.count("\n") + 1)
    for block in _BLOCK.finditer("\n" + text):
        if _NOT_RUN.fullmatch(block["above"].strip()):
            continue
        first = text.count("\n", 0, block.start("code") - 1)
        for offset, line in enumerate(block["code"].splitlines()):
            lines[first + offset] = line
    return "\n".join(lines)


def make_dataset(folder: Path) -> None:
    """Write what the pages read: fixed and ragged lists, numbers, texts, and a null now and then."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    rows = 600
    for i in range(3):
        table = pa.table(
            {
                "ids": list(rng.integers(0, 1000, size=(rows, 16), dtype=np.int32)),
                "labels": rng.integers(0, 2, size=rows),
                "score": rng.random(rows, dtype=np.float32),
                "tokens": [rng.integers(0, 50, size=1 + j % 5, dtype=np.int32) for j in range(rows)],
                "title": [f"title {j}" for j in range(rows)],
            }
        )
        pq.write_table(table, folder / f"part-{i}.parquet", row_group_size=200)


@pytest.mark.parametrize("page", [page for page in PAGES if code_of(page).strip()], ids=name_of)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    """A reader at 3 a.m. copies the block. In a process of its own, so that a page cannot lean on another."""
    make_dataset(tmp_path / "data/train")
    script = tmp_path / "page.py"
    script.write_text(PRELUDES.get(name_of(page), "") + code_of(page))
    command = [sys.executable, "-W", "error", script.name]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)

    assert done.returncode == 0, f"{name_of(page)} (line numbers are those of the page)\n{done.stderr}"


NUMBERS = {
    r"window of about (\d+) MB": _reading.WINDOW_NBYTES >> 20,
    r"below about (\d+) MB": _reading.WINDOW_NBYTES * 8 >> 20,
    r"[Pp]ieces of about (\d+) MB": _read_spec.PIECE_NBYTES >> 20,
    r"up to (\d+) \*?streams": _reading._STREAMS,
    r"\((\d+)\s+s?\s?by default\)": int(_reading.STALL_LIMIT_S),
    r"has waited for (\d+) s": int(_policy.WARN_S),
    r"as many as it makes in about (\d+) ms": int(1000 * _prefetch._GROUP_S),
    r"at most (\d+), and no more than": _prefetch._MAX_QUOTA,
    r"and no more than (\d+) MB": _prefetch._GROUP_NBYTES >> 20,
    r"or more than (\d+) \(three for each worker": _worker_watch._MAX_LOSSES_WITHOUT_PROGRESS,
    r"losses in an epoch\*\* \(default (\d+)\)": inspect.signature(af.StreamingDataLoader)
    .parameters["max_restarts"]
    .default,
    r"After (\d+) seconds it is replaced": int(_policy.STOPPED_S),
}
"""Phrases that the pages use for what the source may change."""


@pytest.mark.parametrize(("phrase", "number"), NUMBERS.items(), ids=NUMBERS)
def test_a_number_is_that_of_the_source(phrase: str, number: int) -> None:
    """Whoever tunes a constant finds here which sentences speak of it."""
    said = [(name_of(page), int(found[1])) for page in PAGES for found in re.finditer(phrase, page.read_text())]

    assert said
    assert [place for place in said if place[1] != number] == []


def test_numbers_that_the_pages_have_in_words() -> None:
    """An eighth of the memory; two workers for a sample, four for a batch; three deaths at the start; one second."""
    found = (
        _reading.SHARE,
        _task_table.SAMPLE_LOSSES,
        _task_table.TASK_LOSSES,
        _pool._MAX_EARLY_EXITS,
        _pool.GRACE_S,
    )

    assert found == (8, 2, 4, 3, 1.0)


def test_the_limits_of_workers_are_those_of_the_policy() -> None:
    """The table that people look at before they set ``stall_limit``."""
    policy, most = _policy, int(_policy.ATTEMPT_FACTOR**_policy.MAX_ATTEMPTS)
    of = "times the slowest sample so far"
    attempts = f"times {policy.ATTEMPT_FACTOR:g}, up to {most}"
    rows = [
        f"| is stopped | {policy.STOPPED_S:g} s | L |",
        f"| does not move, fewer than {policy.ENOUGH_SAMPLES} samples seen | {policy.FIRST_S:g} s | L |",
        f"| does not move, {policy.ENOUGH_SAMPLES} samples seen | {policy.LATER_S:g} s | L |",
        f"| uses CPU or moves bytes | {policy.MOVING_FACTOR} times that | L |",
        f"| and, unless stopped, never before | {policy.SLOWEST_FACTOR} {of} | {policy.USER_SLOWEST_FACTOR} {of} |",
        f"| for each worker that its batch has cost | {attempts} | {attempts} |",
    ]
    lines = WORKERS.read_text().splitlines()

    assert [row for row in rows if row not in lines] == []


def anchors_of(page: Path) -> set[str]:
    """Return what a link can point to in a page, by the rules of the place where it will be read."""
    text = _FENCE.sub("", page.read_text())
    anchors = {
        re.sub(r"[^\w\- ]", "", head["text"].lower()).strip().replace(" ", "-") for head in _HEADING.finditer(text)
    }
    return anchors | {entry["name"] for entry in _ENTRY.finditer(text)}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    """A dead link is found here and not by the reader. Links to the web are not followed."""
    dead = []
    for link in _LINK.finditer(_FENCE.sub("", page.read_text())):
        target, _, anchor = link["target"].partition("#")
        if "://" in target:
            continue
        place = (page.parent / target).resolve() if target else page
        if not place.exists() or (anchor and anchor not in anchors_of(place)):
            dead.append(link["target"])

    assert dead == []


def templates_of(tree: ast.AST) -> Iterator[str]:
    """Yield the texts of a module, docstrings left out, with a null character where a value is put in."""
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else "\0" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.value


def pattern_of(key: str) -> re.Pattern[str]:
    """Return what finds a key of the page in the source: the fixed parts, in order, with anything between them."""
    return re.compile(".*".join(re.escape(part.strip()) for part in key.split("…") if part.strip()), re.DOTALL)


def test_every_message_of_the_page_is_one_of_the_source() -> None:
    """Someone who searches for the text that they see must find it, also after it was reworded."""
    modules = (HOUSE / "src").rglob("*.py")
    templates = [text for module in modules for text in templates_of(ast.parse(module.read_text()))]
    templates += [rule.code for rules in (SCRIPT_RULES, MACHINE_RULES) for rule in rules]
    keys = [match["key"] for match in _KEY.finditer(TROUBLESHOOTING.read_text())]
    unknown = [key for key in keys if not any(pattern_of(key).search(text) for text in templates)]

    assert len(keys) > 50
    assert unknown == []


def test_every_public_name_is_in_the_reference() -> None:
    """With its own entry; the version is one line of the first page."""
    pages = [page.read_text() for page in (HOUSE / "docs/reference").glob("*.md")]
    entries = {entry["name"] for text in pages for entry in _ENTRY.finditer(text)}

    assert {f"antifreeze.{name}" for name in af.__all__} - entries == {"antifreeze.__version__"}


def doc_parameters(text: str) -> set[str]:
    """Return the names under ``Args:``."""
    section = re.search(r"^Args:\n(.*?)(?=^\S|\Z)", inspect.cleandoc(text), re.MULTILINE | re.DOTALL)
    return set(re.findall(r"^    \*{0,2}(\w+)(?: \([^)]*\))?:", section[1], re.MULTILINE)) if section else set()


ERRORS = sorted(
    name for name in af.__all__ if isinstance(kind := getattr(af, name), type) and issubclass(kind, Exception)
)
CALLED = [name for name in af.__all__ if callable(getattr(af, name)) and name not in (*ERRORS, "Diagnosis", "Report")]


@pytest.mark.parametrize("name", sorted({*CALLED} - {"ParquetLoader"}))
def test_every_argument_of_a_public_name_is_documented(name: str) -> None:
    """Each by its own name: a reader looks for the word that they typed."""
    function = getattr(af, name)

    assert doc_parameters(function.__doc__) == set(inspect.signature(function).parameters)


@pytest.mark.parametrize("name", [*ERRORS, "Diagnosis", "ParquetLoader", "Report"])
def test_every_field_of_a_public_class_is_documented(name: str) -> None:
    """With a docstring below it, which the reference shows."""
    trees = [
        ast.parse(path.read_text()) for path in (HOUSE / "src").rglob("*.py") if f"class {name}" in path.read_text()
    ]
    (body,) = [n.body for tree in trees for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name]
    pairs = itertools.pairwise(body)
    bare = [ast.unparse(node.target) for node, below in pairs if is_field(node) and not is_text(below)]

    assert bare == []
    assert not is_field(body[-1])


def is_field(node: ast.stmt) -> TypeGuard[ast.AnnAssign]:
    return isinstance(node, ast.AnnAssign)


def is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def examples_of(name: str) -> list[str]:
    """Return the code blocks in the docstrings of a public name and of its methods."""
    found = getattr(af, name)
    texts = [found.__doc__] + [member.__doc__ for member in vars(found).values() if hasattr(member, "__doc__")]
    cleaned = [inspect.cleandoc(text) for text in texts if isinstance(text, str)]
    return [textwrap.dedent(code) for text in cleaned for code in _EXAMPLE.findall(text)]


def test_examples_of_the_reference_run(tmp_path: Path) -> None:
    """In the folder that the pages have, each in a namespace of its own. What users call has an example."""
    examples = {name: examples_of(name) for name in af.__all__ if name != "__version__"}
    assert [name for name in CALLED if not examples[name]] == ["ParquetLoader"]
    make_dataset(tmp_path / "data/train")
    lines = []
    for number, code in enumerate(itertools.chain.from_iterable(examples.values())):
        (tmp_path / f"example_{number}.py").write_text(code)
        lines.append(f"runpy.run_path('example_{number}.py')")
    command = [sys.executable, "-W", "error", "-c", "\n".join(["import runpy", *lines])]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)

    assert len(lines) > 10
    assert done.returncode == 0, done.stderr


def test_every_error_has_a_section() -> None:
    """An error without a section leaves its reader alone."""
    names = {name for name in core.__all__ if isinstance(getattr(core, name), type)}
    errors = {name for name in names if issubclass(getattr(core, name), core.AntifreezeError)}

    assert {f"### `{name}`" for name in errors} <= set(TROUBLESHOOTING.read_text().splitlines())


@pytest.mark.parametrize("cause", Cause, ids=lambda cause: cause.value)
def test_every_cause_has_a_section(cause: Cause) -> None:
    """It is found by its name, which reports have, and by the words that messages have."""
    sections = re.split(r"^##+ ", TROUBLESHOOTING.read_text(), flags=re.MULTILINE)
    (section,) = [section for section in sections if section.startswith(f"`{cause.value}`\n")]
    words = [word for word in re.findall(r"`([^`]+)`", section) if cause.title.startswith(word)]

    assert words
