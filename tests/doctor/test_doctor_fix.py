"""What to change: every diff applies to the file, and leaves Python in which the change is made."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from doctor_made import GETS_DATA, at, loads, process, watched, worker

from antifreeze.diagnosis import Cause, Finding
from antifreeze.doctor.job import Confidence, Diagnosis, Suspect, Verdict
from antifreeze.doctor.job._fix import Fix, fixes_of, read_source

GIT = shutil.which("git") or "git"
Named = Callable[[Cause, str | bytes, int], tuple[Fix, ...]]


@pytest.fixture
def fixes(tmp_path: Path) -> Named:
    """What is offered for a cause, when a worker stands at a line of this file."""

    def of(cause: Cause, text: str | bytes, line: int = 1) -> tuple[Fix, ...]:
        path = tmp_path / "train.py"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        frame = at("train.py", "__getitem__", line)
        job = process(100, (*GETS_DATA[:-2], at(str(path), "main")))
        seen = watched(job, worker(loads(frame)))
        suspect = Suspect(
            pid=101,
            name="worker 0",
            finding=Finding(cause=cause, evidence_lines=()),
            confidence=Confidence.LIKELY,
            frames=(frame,),
            folder=str(tmp_path),
        )
        for snapshot in seen.snapshots:
            for one in snapshot.processes:
                object.__setattr__(one, "folder", str(tmp_path))
        return fixes_of(Diagnosis(verdict=Verdict.STUCK, summary="", suspects=(suspect,)), seen)

    return of


def applied(fix: Fix, folder: Path) -> bytes:
    """Apply a diff as a person does, where the job runs, and return the file. It must be Python."""
    before = (folder / "train.py").read_bytes()
    command = [GIT, "apply", "-p0", "--whitespace=nowarn", "-"]
    alone = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)}
    subprocess.run(command, input=fix.diff.encode(), cwd=folder, env=alone, check=True, timeout=60)
    after = (folder / "train.py").read_bytes()
    assert after != before
    ast.parse(after)
    return after


def loaders(text: bytes) -> list[ast.Call]:
    """Return the calls of something that is called a loader."""
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    return [call for call in calls if ast.unparse(call.func).endswith(("DataLoader", "Loader"))]


def has(call: ast.Call, name: str) -> bool:
    """Whether a call has an argument."""
    return any(keyword.arg == name for keyword in call.keywords)


FROM = "from torch.utils.data import DataLoader, Dataset\n"
FORMS = {
    "plain": FROM + "for b in DataLoader(ds, num_workers=2):\n    pass\n",
    "renamed": "from torch.utils.data import DataLoader as Loader\nx = Loader(ds, num_workers=n)\n",
    "module": "import torch.utils.data as data\nx = data.DataLoader(ds, num_workers=2)\n",
    "from package": "from torch.utils import data\nx = data.DataLoader(ds, num_workers=2)\n",
    "full name": "import torch\nx = torch.utils.data.DataLoader(ds, num_workers=2)\n",
    "future": "from __future__ import annotations\nimport torch\nx = torch.utils.data.DataLoader(ds, num_workers=2)\n",
    "docstring and future": '"""Doc."""\nfrom __future__ import annotations\n\nimport torch\n\n'
    "x = torch.utils.data.DataLoader(ds, num_workers=2)\n",
    "many lines": FROM + "x = DataLoader(\n    ds,\n    num_workers=2,\n    batch_size=4\n)\n",
    "trailing comma": FROM + "x = DataLoader(\n    ds,\n    num_workers=2,\n)\n",
    "comment": FROM + "x = DataLoader(\n    ds,\n    num_workers=2,  # (two)\n)\n",
    "comma on the line": FROM + "x = DataLoader(ds, num_workers=2, )\n",
    "brackets": FROM + "x = DataLoader(ds, num_workers=(2))\n",
    "brackets and a comma": FROM + "x = DataLoader(ds, num_workers=(n + (2)),)\n",
    "a call as argument": FROM + "x = list(DataLoader(make(), num_workers=count()))\n",
    "two on a line": FROM + "x = DataLoader(a, num_workers=1), DataLoader(b, num_workers=2)\n",
    "one in another": FROM + "x = DataLoader(wrap(DataLoader(b, num_workers=2)), num_workers=2)\n",
    "by place": FROM + "x = DataLoader(ds, 4, True, None, None, 2)\n",
    "not only ASCII": FROM + "größe = 'äöü€😀'; x = DataLoader(größe, num_workers=2); y = 'ü'\n",
    "CRLF": (FROM + "x = DataLoader(ds,\n    num_workers=2)\ny = 1\n").replace("\n", "\r\n"),
    "CRLF and a module": "import torch\nx = torch.utils.data.DataLoader(ds, num_workers=2)\n".replace("\n", "\r\n"),
    "no end of line": FROM + "x = DataLoader(ds, num_workers=2)",
    "tabs": FROM + "def f():\n\tif 1:\n\t\treturn DataLoader(ds,\tnum_workers=2)\n",
    "form feed": FROM + "a = 1\n\x0c\nb = '\x1c \u2028'\nx = DataLoader(ds, num_workers=2)\n",
    "import in brackets": "from torch.utils.data import (\n    DataLoader,\n    Dataset,\n)\n"
    "x = DataLoader(ds, num_workers=2)\n",
    "import with a comment": FROM[:-1] + "  # noqa\nx = DataLoader(ds, num_workers=2)\n",
    "method": FROM + "class M:\n    def train_dataloader(self):\n        return DataLoader(self.ds, num_workers=4)\n",
}


@pytest.mark.parametrize("form", FORMS)
def test_a_loader_that_does_not_fork(form: str, fixes: Named, tmp_path: Path) -> None:
    """Every loader of the file has the argument then."""
    first = fixes(Cause.FORK, FORMS[form], 1)[0]
    after = applied(first, tmp_path)

    assert loaders(after)
    assert all(has(call, "multiprocessing_context") for call in loaders(after))
    assert (b"\r\n" in after) == form.startswith("CRLF")
    assert after.count(b"\r\n") in (0, after.count(b"\n"))


@pytest.mark.parametrize("form", FORMS)
def test_our_loader_in_its_place(form: str, fixes: Named, tmp_path: Path) -> None:
    """The import is changed, or the name where it is called."""
    last = fixes(Cause.FORK, FORMS[form], 1)[-1]
    after = applied(last, tmp_path)

    assert "antifreeze.DataLoader prevents this" in last.words
    names = {ast.unparse(call.func) for call in loaders(after)}
    taken = b"from antifreeze import DataLoader" in after
    assert taken or names == {"antifreeze.DataLoader"}
    assert taken or b"import antifreeze" in after
    assert (b"Dataset" in after) == ("Dataset" in FORMS[form].replace("DataLoader", ""))
    assert after.count(b"\r\n") in (0, after.count(b"\n"))


@pytest.mark.parametrize(
    "line",
    [
        'DataLoader(ds, num_workers=2, multiprocessing_context="spawn")',
        "DataLoader(ds, **options)",
        "DataLoader(ds, num_workers=2, **options)",
        "DataLoader(ds)",
        "DataLoader(ds, num_workers=0)",
        "DataLoader()",
        "antifreeze.DataLoader(ds, num_workers=2)",
        "print(ds)",
    ],
)
def test_a_loader_that_needs_no_argument_gets_none(line: str, fixes: Named) -> None:
    """It has one, or may have, or torch would refuse it: there are no workers to start."""
    found = fixes(Cause.FORK, f"{FROM}import antifreeze\nx = {line}\n", 1)

    assert not any("multiprocessing_context" in fix.diff for fix in found)


MAIN = 'if __name__ == "__main__":\n'


@pytest.mark.parametrize(
    "text",
    [
        MAIN + "    trainer.fit(model)\n",
        MAIN + "\n    # Trains.\n    trainer.fit(\n        model,\n    )\n",
        MAIN + "\t@wrapped\n\tdef main():\n\t\tpass\n\n\tmain()\n",
        "import x\n\nif '__main__' == __name__:\n  x.train()",
        (MAIN + "    trainer.fit(model)\n").replace("\n", "\r\n"),
    ],
)
def test_a_loader_that_a_library_makes(text: str, fixes: Named, tmp_path: Path) -> None:
    """All processes are started in another way, before any is."""
    (only,) = fixes(Cause.FORK, text, 1)
    after = applied(only, tmp_path)
    guard = ast.parse(after).body[-1]

    assert isinstance(guard, ast.If)
    assert [ast.unparse(line) for line in guard.body[:2]] == [
        "import multiprocessing",
        "multiprocessing.set_start_method('forkserver')",
    ]
    assert len(guard.body) == len(getattr(ast.parse(text).body[-1], "body", [])) + 2
    assert after.count(b"\r\n") in (0, after.count(b"\n"))


@pytest.mark.parametrize(
    "text",
    [
        "trainer.fit(model)\n",
        MAIN[:-1] + " trainer.fit(model)\n",
        "import torch\n" + MAIN + "    torch.multiprocessing.set_start_method('spawn')\n    fit()\n",
        FROM + MAIN + "    fit(DataLoader(ds, num_workers=2, multiprocessing_context='fork'))\n",
    ],
)
def test_where_the_start_method_stays(text: str, fixes: Named) -> None:
    """No guard, or no line of its own in it, or it is set, or the loaders are here."""
    assert not any("set_start_method" in fix.diff for fix in fixes(Cause.FORK, text, 1))


def test_only_loaders_with_workers_are_changed(fixes: Named, tmp_path: Path) -> None:
    """The one for validation has none."""
    text = FROM + "a = DataLoader(x, num_workers=2)\nb = DataLoader(y)\n"
    after = applied(fixes(Cause.FORK, text, 1)[0], tmp_path)

    assert [has(call, "multiprocessing_context") for call in loaders(after)] == [True, False]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("import urllib.request\n\ndef f(i):\n    return urllib.request.urlopen(url(i)).read()\n", 4),
        ("from urllib.request import urlopen\n\ndef f(i):\n    return urlopen(\n        url(i),\n    ).read()\n", 5),
        ("import requests as r\n\ndef f(i):\n    return r.get(url(i), stream=(True)).content\n", 4),
        ("import httpx\nx = httpx.get()\n", 2),
        ("import httpx\nx = httpx.get (\n)\n", 2),
        ("import requests\nx = [requests.get(u) for u in urls]", 2),
    ],
)
def test_a_call_that_waits_gets_a_limit(text: str, line: int, fixes: Named, tmp_path: Path) -> None:
    """Where it stands."""
    first = fixes(Cause.NETWORK, text, line)[0]
    after = applied(first, tmp_path)

    assert first.words.startswith("Add a timeout to the call")
    assert after.count(b"timeout=30") == 1


@pytest.mark.parametrize("name", ["run", "check_output", "check_call", "call"])
def test_a_program_that_is_waited_for_gets_a_limit(name: str, fixes: Named, tmp_path: Path) -> None:
    """A longer one."""
    text = f"import subprocess\nsubprocess.{name}(['ffmpeg', 'x'])\n"

    assert b"timeout=60)" in applied(fixes(Cause.CHILD, text, 2)[0], tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "import boto3\n\ns3 = boto3.client('s3')\nx = s3.get()\n",
        "import socket\nx = socket.socket()\nx.recv(1)\n",
        '"""Doc."""\nfrom __future__ import annotations\nimport x\n\nx.y()\n',
        "import x\r\nx.y()\r\n",
        "x = y()\n",
    ],
)
def test_sockets_that_somebody_else_makes_get_a_limit(text: str, fixes: Named, tmp_path: Path) -> None:
    """Before they are made, for all of them."""
    after = applied(fixes(Cause.NETWORK, text, 1)[0], tmp_path)

    assert b"socket.setdefaulttimeout(30)" in after
    assert after.count(b"import socket") == 1
    assert after.count(b"\r\n") in (0, after.count(b"\n"))


def test_a_call_that_has_a_limit_needs_none(fixes: Named) -> None:
    """The peer is slow, or the limit is long."""
    found = fixes(Cause.NETWORK, "import requests\nx = requests.get(u, timeout=900)\n", 2)

    assert not any("Add a timeout to the call" in fix.words for fix in found)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("import signal\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\nx = 1\n", "import signal\nx = 1\n"),
        (
            "from signal import *\nimport signal as s\ndef f():\n    s.signal(\n        s.SIGCHLD, s.SIG_IGN\n    )\n",
            "from signal import *\nimport signal as s\ndef f():\n    pass\n",
        ),
        (
            "import signal\nif 1:\n\tsignal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies\r\n".replace("\r", ""),
            "import signal\nif 1:\n\tpass\n",
        ),
    ],
)
def test_the_line_that_ignores_deaths_is_taken_out(text: str, left: str, fixes: Named, tmp_path: Path) -> None:
    """What is left is Python."""
    assert applied(fixes(Cause.UNNOTICED_DEATH, text, 1)[0], tmp_path).decode() == left


@pytest.mark.parametrize(
    "text",
    [
        "import signal\nsignal.signal(signal.SIGCHLD, handler)\n",
        "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n",
        "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n",
    ],
)
def test_other_handlers_are_left_alone(text: str, fixes: Named) -> None:
    """And so is what shares its line with others."""
    assert fixes(Cause.UNNOTICED_DEATH, text, 1) == ()


@pytest.mark.parametrize("text", [b"\xff\xfe", b"def (:", b"\0", b"x = 1\ry = 2\r", b"(" * 5000])
def test_what_is_no_python_gets_no_diff(text: bytes, fixes: Named) -> None:
    """And is no error."""
    assert all(fix.diff == "" for cause in Cause for fix in fixes(cause, text, 1))


@pytest.mark.parametrize(
    "file",
    ["<stdin>", "<frozen runpy>", "/var/ipykernel_1/1.py", "train.pyc", "gone.py", ".", "/dev/null", "a\0b.py", "x.so"],
)
def test_what_cannot_be_read_gets_no_diff(file: str, tmp_path: Path) -> None:
    """Notebooks, prompts, files of another container."""
    (tmp_path / "train.pyc").write_bytes(b"\xa7\r\r\n")
    assert read_source(at(file, "f"), str(tmp_path)) is None
    assert read_source(at(file, "f"), "") is None


def test_files_that_are_too_large_are_not_read(tmp_path: Path) -> None:
    """Nobody wrote them."""
    (tmp_path / "a.py").write_text("x = 1\n" * 200_000)
    assert read_source(at("a.py", "f"), str(tmp_path)) is None


def test_a_file_elsewhere_has_its_full_name(tmp_path: Path) -> None:
    """One below the folder of the job has a name from there: `patch` takes no other."""
    (tmp_path / "job").mkdir()
    (tmp_path / "a.py").write_text("x = 1\n")
    (tmp_path / "job" / "b.py").write_text("x = 1\n")
    elsewhere = read_source(at("../a.py", "f"), str(tmp_path / "job"))
    below = read_source(at(str(tmp_path / "job" / "b.py"), "f"), str(tmp_path / "job"))

    assert elsewhere is not None
    assert elsewhere.shown == str(tmp_path / "a.py")
    assert below is not None
    assert below.shown == "b.py"


def test_commands_where_they_cure(fixes: Named) -> None:
    """A stopped process needs no diff."""
    assert fixes(Cause.STOPPED, "x = 1\n", 1)[0].command == "kill -CONT 101"
    assert "--shm-size" in fixes(Cause.SHARED_MEMORY, "x = 1\n", 1)[0].command
    assert "train.log" in fixes(Cause.FULL_PIPE, "x = 1\n", 1)[0].command


def test_nothing_to_change_without_a_suspect() -> None:
    """A healthy job is left as it is."""
    assert (
        fixes_of(Diagnosis(verdict=Verdict.HEALTHY, summary="The job is making progress."), watched(process(100))) == ()
    )
