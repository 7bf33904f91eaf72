"""Functions that a script or a test has replaced are replaced in workers: what a fork delivers is what is delivered."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HELPERS = """
import json
from json import loads

def from_a_module(value, **options):
    return f"module {value}"

def before(value):
    return loads(value)

class Named:
    def name(self):
        return "own"

def greet():
    return "own"
"""

HEAD = """
import functools, glob, json, math, sys
from unittest import mock
import numpy as np
import torch
import antifreeze
import helpers, imaging


class Patched(torch.utils.data.Dataset):
    def __init__(self, sample):
        self.sample = sample

    def __len__(self):
        return 2

    def __getitem__(self, i):
        return repr(self.sample(i))


def both(sample, **options):
    dataset = Patched(sample)
    loaders = torch.utils.data.DataLoader, antifreeze.DataLoader
    theirs, ours = ([row for batch in kind(dataset, num_workers=1, **options) for row in batch] for kind in loaders)
    print(theirs == ours, ours[0])
    return ours
"""

PATCHES = {
    "a function": "json.dumps = lambda value: f'mine {value}'\nboth(lambda i: json.dumps(i))",
    "a function that calls the original": """
old = json.dumps
json.dumps = lambda value, **options: 'mine ' + old([value], **options)
both(lambda i: json.dumps(i))
""",
    "a function that has taken the name": """
def logged(function):
    @functools.wraps(function)
    def wrapper(*arguments, **options):
        return "logged", function(*arguments, **options)
    return wrapper

json.dumps = logged(json.dumps)
math.sqrt = logged(math.sqrt)
both(lambda i: [json.dumps(i), math.sqrt(i)])
""",
    "numpy.load, as people do": """
np.save("a.npy", np.array([{"a": 1}], dtype=object))
old = np.load
np.load = lambda *arguments, **options: old(*arguments, allow_pickle=True, **options)
both(lambda i: np.load("a.npy"))
""",
    "with other defaults": """
np.save("a.npy", np.array([{"a": 1}], dtype=object))
np.load = functools.partial(np.load, allow_pickle=True)
both(lambda i: np.load("a.npy"))
""",
    "a function of a C module": """
old = math.floor
math.floor = lambda x: old(x) + 100
both(lambda i: math.floor(i + 0.5))
""",
    "a builtin": "import builtins\nold = bin\nbuiltins.bin = lambda x: 'mine ' + old(x)\nboth(lambda i: bin(i))",
    "of a module of the user": "json.dumps = helpers.from_a_module\nboth(lambda i: json.dumps(i))",
    "of another library": "json.dumps = imaging.dumps\nboth(lambda i: json.dumps(i))",
    "a method": """
old = torch.Tensor.tolist
torch.Tensor.tolist = lambda self: ["mine", old(self)]
torch.Tensor.double_it = lambda self: self * 2
both(lambda i: torch.tensor([i]).double_it().tolist())
""",
    "static and class methods and properties": """
imaging.Image.static = staticmethod(lambda: "mine")
imaging.Image.of_class = classmethod(lambda cls: cls.__name__)
imaging.Image.size = property(lambda self: 7)
both(lambda i: [imaging.Image.static(), imaging.Image.of_class(), imaging.Image().size])
""",
    "a class": """
class Mine(imaging.Image):
    def show(self):
        return "mine, then " + super().show()

imaging.Image = Mine
both(lambda i: imaging.opened().show())
""",
    "in a library that another one calls": "imaging.inner.read = lambda: 'mine'\nboth(lambda i: imaging.read_all())",
    "a name that a module had taken before": """
json.loads = lambda value: "mine"
both(lambda i: [helpers.before("1"), json.loads("1")])
""",
    "a module of the user": """
helpers.greet = lambda: "mine"
helpers.Named.name = lambda self: "mine"
both(lambda i: [helpers.greet(), helpers.Named().name()])
""",
    "by a mock": """
with mock.patch("json.dumps", return_value="mocked"), mock.patch.object(imaging.Image, "show", lambda self: "shown"):
    both(lambda i: [json.dumps(i), imaging.Image().show()])
print(json.dumps(1))
""",
    "by a mock with a function": """
with mock.patch.object(helpers, "greet", side_effect=lambda: "from the side"):
    both(lambda i: helpers.greet())
""",
    "by a local function": """
def main():
    calls = {"factor": 3}
    def fake(value):
        return calls["factor"] * value
    glob.escape = fake
    both(lambda i: glob.escape(i + 1))
main()
""",
    "a cached function": """
glob.escape = functools.lru_cache(lambda value: value + 5)
both(lambda i: glob.escape(i))
""",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    library = tmp_path / "site-packages" / "imaging"
    library.mkdir(parents=True)
    (library / "__init__.py").write_text(
        "from imaging import inner\n"
        "def dumps(value):\n    return f'imaging {value}'\n"
        "def read_all():\n    return inner.read()\n"
        "def opened():\n    return Image()\n"
        "class Image:\n    def show(self):\n        return 'original'\n"
    )
    (library / "inner.py").write_text("def read():\n    return 'original'\n")
    (tmp_path / "helpers.py").write_text(HELPERS)
    return tmp_path


def run(folder: Path, code: str) -> tuple[str, str]:
    """Run a script; what it prints, and what it warns of."""
    (folder / "train.py").write_text(f"import sys; sys.path.append({str(folder / 'site-packages')!r})\n" + code)
    done = subprocess.run(
        [sys.executable, "train.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        env={**os.environ, "PYTHONPATH": ""},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.mark.parametrize("what", PATCHES)
def test_what_is_replaced_in_the_trainer_is_replaced_in_workers(folder: Path, what: str) -> None:
    """Torch's loader, which forks, is what is compared with."""
    printed, warned = run(folder, HEAD + PATCHES[what])

    assert printed.startswith("True "), printed
    assert warned == ""


NOT_SENT = {
    "what cannot be pickled": ("made = (i for i in [])\njson.dumps = lambda value: next(made)", "json.dumps"),
    "what is large": ("table = list(range(10**6))\njson.dumps = lambda value: table[value]", "json.dumps"),
    "what workers need": ("import time\ntime.sleep = lambda seconds: None", "time.sleep"),
}


@pytest.mark.parametrize("what", NOT_SENT)
def test_what_cannot_be_sent_is_named_once_and_breaks_nothing(folder: Path, what: str) -> None:
    patch, name = NOT_SENT[what]
    loop = "for _ in range(2):\n    print([int(i) for i in antifreeze.DataLoader(range(3), num_workers=2)])\n"
    printed, warned = run(folder, f"{HEAD}\n{patch}\n{loop}")

    assert printed == "[0, 1, 2]\n" * 2
    (line,) = warned.splitlines()
    assert line.startswith(f"antifreeze: {name} was replaced in this process, but workers use the original: ")


def test_modules_that_a_worker_does_not_need_are_not_imported_for_what_was_replaced_in_them(folder: Path) -> None:
    code = """
imaging.opened = lambda: imaging
sys.excepthook = lambda *_: None

class Plain:
    def __len__(self):
        return 2

    def __getitem__(self, i):
        import sys
        return "imaging" in sys.modules

print([bool(i) for i in antifreeze.DataLoader(Plain(), num_workers=1)])
"""
    assert run(folder, HEAD + code) == ("[False, False]\n", "")


def test_what_is_replaced_between_epochs_is_replaced_in_the_next_one(folder: Path) -> None:
    """Workers of all epochs are forks of the same process."""
    code = """
loader = antifreeze.DataLoader(Patched(lambda i: json.dumps(i)), num_workers=1)
old = json.dumps
for replacement in (old, lambda i: "first", old, lambda i: "second " + old(i), lambda i: "third", old):
    json.dumps = replacement
    print(*(row for batch in loader for row in batch))
"""
    printed, warned = run(folder, HEAD + code)

    assert printed.splitlines() == [
        "'0' '1'",
        "'first' 'first'",
        "'0' '1'",
        "'second 0' 'second 1'",
        "'third' 'third'",
        "'0' '1'",
    ]
    assert warned == ""
