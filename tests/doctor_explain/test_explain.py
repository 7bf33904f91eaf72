"""``antifreeze explain``: every name that is printed can be explained, by the page of the installed version."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from antifreeze import core
from antifreeze.diagnosis import Cause, Finding
from antifreeze.doctor.check import MACHINE_RULES, SCRIPT_RULES, CheckFinding, Rule
from antifreeze.doctor.command import main
from antifreeze.doctor.explain import Kind, read_topics
from antifreeze.doctor.job import Confidence, Suspect

ROOT = Path(__file__).parents[2]
ERRORS = [
    name
    for name in core.__all__
    if isinstance(getattr(core, name), type) and issubclass(getattr(core, name), core.AntifreezeError)
]


def explained(name: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["explain", name]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("cause", Cause, ids=lambda cause: cause.value)
def test_every_cause_that_the_doctor_prints_is_explained(cause: Cause, capsys: pytest.CaptureFixture[str]) -> None:
    """The command that the doctor prints works as it is printed."""
    suspect = Suspect(
        pid=1, name="worker 0", finding=Finding(cause=cause, evidence_lines=()), confidence=Confidence.LIKELY
    )
    program, *arguments = suspect.link.split()

    assert program == "antifreeze"
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"{cause.value}\n")
    assert "Fix." in text
    assert "Test." not in text


@pytest.mark.parametrize("rule", [*SCRIPT_RULES, *MACHINE_RULES], ids=lambda rule: rule.code)
def test_every_finding_that_a_check_prints_is_explained(rule: Rule[Any], capsys: pytest.CaptureFixture[str]) -> None:
    """The row of the table, and the section behind it."""
    finding = CheckFinding(rule=rule, reason="It is so.", change="Change it.")

    assert main(finding.link.split()[1:]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"{rule.code}\n")
    assert "Fix." in text


@pytest.mark.parametrize("name", ERRORS)
def test_every_error_is_explained(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert explained(name, capsys).startswith(f"{name}\n")


@pytest.mark.parametrize("name", ["WorkerDied", "workerdied", "WORKERDIED", "`WorkerDied`"])
def test_case_and_quotes_do_not_matter(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert explained(name, capsys).startswith("WorkerDied\n")


def test_without_a_name_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 0
    out = capsys.readouterr().out

    assert [name for name in read_topics() if f"\n  {name}\n" not in out] == []
    assert [kind.value for kind in Kind if kind.value not in out] == []


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("forc", "did you mean `antifreeze explain fork`?"),
        ("WorkrDied", "did you mean `antifreeze explain WorkerDied`?"),
        ("xyzzy", "`antifreeze explain` lists all names"),
        ("\x1b[31mfork", "did you mean `antifreeze explain"),
    ],
)
def test_an_unknown_name_suggests_the_nearest(name: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", name]) == 2
    printed = capsys.readouterr()

    assert printed.out == ""
    assert printed.err.startswith("antifreeze: error: unknown name ")
    assert hint in printed.err
    assert "\x1b" not in printed.err


def test_piped_output_has_no_control_codes_and_no_markdown_links() -> None:
    """All sections, through a real pipe."""
    code = (
        "from antifreeze.doctor.command import main\n"
        "from antifreeze.doctor.explain import read_topics\n"
        "assert not any(main(['explain', name]) for name in read_topics())\n"
        "main(['explain'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)

    assert [char for char in set(done.stdout) if ord(char) < 32 and char != "\n"] == []
    assert "](" not in done.stdout
    assert "**" not in done.stdout.replace("2**attempt", "")
    assert "|---|" not in done.stdout


@pytest.mark.parametrize("width", [40, 80, 140])
def test_sentences_fit_the_terminal(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code is left as it is, and is indented by four."""
    monkeypatch.setenv("COLUMNS", str(width))
    lines = [line for name in read_topics() for line in explained(name, capsys).splitlines()]

    assert [line for line in lines if len(line) > min(width, 100) and " " in line.strip() and line[:4].strip()] == []


def test_the_package_and_the_documentation_have_one_page() -> None:
    """The file in the package is a link: a copy would be edited by one person and read by another."""
    page = ROOT / "src/antifreeze/doctor/explain/troubleshooting.md"

    assert page.is_symlink()
    assert page.resolve() == (ROOT / "docs/troubleshooting.md").resolve()


def test_nothing_points_to_a_file_that_is_not_installed() -> None:
    """A path below docs/ leads nowhere for those who installed a wheel."""
    sources = (ROOT / "src").rglob("*.py")

    assert [path.name for path in sources if "docs/" in path.read_text()] == []
