"""The command line: what it prints, in which width, and its exit codes."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antifreeze.doctor._terminal import Paper
from antifreeze.doctor.check import CannotCheck, Facts, check_script, parse
from antifreeze.doctor.check import _check_command as command_module
from antifreeze.doctor.check._check_command import MAX_FINDINGS, as_text, main

PATTERNS = Path(__file__).parent / "patterns"
BAD = PATTERNS / "bad_connections.py"
GOOD = PATTERNS / "good_image_folder.py"


@pytest.fixture(autouse=True)
def good_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test depends on the machine that it runs on."""
    monkeypatch.setattr(command_module, "read_facts", Facts)


def test_nothing_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(GOOD)]) == 0
    assert main([]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "nothing found: this machine"


def test_findings_are_printed_with_place_reason_change_and_link(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(PATTERNS / "seed_001_lock.py")]) == 1
    out = capsys.readouterr().out

    assert "seed_001_lock.py:13:21: shared-lock (can freeze or give wrong data)" in out
    assert "- self.lock = multiprocessing.Lock()" in out
    assert "antifreeze explain shared-lock" in out
    assert "\x1b" not in out


def test_only_the_most_important_are_printed_unless_asked(capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(BAD), str(PATTERNS / "bad_open_file.py"), str(PATTERNS / "bad_settings.py")]

    assert main(files) == 1
    few = capsys.readouterr().out
    main([*files, "--all"])
    everything = capsys.readouterr().out

    assert few.count("antifreeze explain ") == MAX_FINDINGS
    assert "more: --all shows them." in few
    assert "many-workers" not in few
    assert "needs-workers" in everything


@pytest.mark.parametrize("width", [40, 80, 140])
def test_sentences_fit_the_terminal(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    main([str(BAD)])
    sentences = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  ") and "#" not in line]

    assert sentences
    assert all(len(line) <= width for line in sentences if not line.startswith("    "))


def test_colour_is_for_terminals() -> None:
    text = BAD.read_text()
    findings, _ = check_script(parse("a.py", text), text, Facts())

    assert "\x1b[1;31m" in as_text(findings, [], Paper(80, colour=True), everything=False)
    assert "\x1b" not in as_text(findings, [], Paper(80, colour=False), everything=False)


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(BAD), "--json", "missing.py"]) == 2
    report = json.loads(capsys.readouterr().out)

    assert report["errors"] == ["missing.py: no such file"]
    first = report["findings"][0]
    assert (first["code"], first["weight"], first["line"]) == ("shared-connection", "freeze", 14)
    assert set(first) == {"code", "weight", "file", "line", "column", "reason", "change", "link"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"x = 1\ndef broken(:\n", ":2: invalid syntax"),
        (b"\xff\xfe\x00", "encoding"),
        (b"# coding: nothing-like-it\n", "encoding"),
        (b"x = '\x00'", "broken.py"),
        (b"(" * 5000 + b")" * 5000, "broken.py"),
    ],
)
def test_what_cannot_be_checked_is_said(
    content: bytes, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.py").write_bytes(content)

    assert main([str(tmp_path / "broken.py"), str(GOOD)]) == 2
    assert words in capsys.readouterr().err


def test_a_folder_cannot_be_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 2
    assert "it is a folder, expected a regular file" in capsys.readouterr().err


def test_it_starts_without_any_library() -> None:
    code = (
        "import sys\nfrom antifreeze.doctor.check._check_command import main\nmain([])\n"
        "print([m for m in ('torch', 'pyarrow', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.splitlines()[-1] == "[]"


LINES = [path.read_text().splitlines() for path in sorted(PATTERNS.glob("*.py"))]


@given(st.data())
def test_no_valid_python_breaks_it(data: st.DataObject) -> None:
    """Patterns with lines left out, and lines of one in the place of those of another."""
    lines = list(data.draw(st.sampled_from(LINES)))
    for _ in range(data.draw(st.integers(0, 6))):
        at = data.draw(st.integers(0, len(lines) - 1))
        other = data.draw(st.sampled_from(data.draw(st.sampled_from(LINES))))
        lines[at : at + 1] = data.draw(st.sampled_from([[], [other], [lines[at], other]])) or ["pass"]
    text = "\n".join(lines)
    try:
        script = parse("a.py", text)
    except CannotCheck:
        return
    for method in ("fork", "spawn"):
        for finding in check_script(script, text, Facts(start_method=method, cores=2))[0]:
            assert 1 <= finding.line <= len(lines)


@pytest.mark.parametrize("package", ["asyncio", "concurrent", "json", "multiprocessing", "email", "unittest"])
def test_nothing_is_found_in_the_standard_library(package: str) -> None:
    check_all(Path(sysconfig.get_paths()["stdlib"]) / package)


def test_nothing_is_found_in_torchs_own_datasets() -> None:
    """Few, right warnings: widely used code has none."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    check_all(Path(spec.origin).parent / "utils/data")


def check_all(folder: Path) -> None:
    files = sorted(folder.rglob("*.py"))
    found = []
    for path in files:
        text = path.read_text(errors="replace")
        findings, _ = check_script(parse(path.name, text), text, Facts())
        found += [finding.place for finding in findings]

    assert files
    assert found == []
