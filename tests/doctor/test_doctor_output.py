"""What is printed and what is kept: at every width, for people and for programs."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from doctor_made import (
    BARRIER,
    GETS_DATA,
    LAUNCHES,
    LOADS,
    MAIN,
    moving,
    process,
    trainer,
    watched,
    worker,
)

from antifreeze.diagnosis import Cause, Finding, TargetKind
from antifreeze.doctor._terminal import Paper, paper_of
from antifreeze.doctor.job import Confidence, Diagnosis, Suspect, Verdict
from antifreeze.doctor.job._fix import Fix
from antifreeze.doctor.job._job_report import CannotRead, as_text, as_values, keep, read
from antifreeze.doctor.job._observation import Observation
from antifreeze.doctor.job._thread_stacks import NOT_ALLOWED
from antifreeze.doctor.job._verdict import judge

READ = {"syscall": "recvfrom", "target": "socket to 10.0.0.1:443", "target_kind": TargetKind.PEER}
LAUNCHER = process(10, LAUNCHES, command=("python", "torchrun", "train.py"))
SEEN: dict[str, Observation] = {
    "healthy": watched(trainer(MAIN), later=moving(100)),
    "stuck": watched(trainer(), *(worker(LOADS, 101 + i, thread=READ) for i in range(6))),
    "slow": watched(trainer(), worker(LOADS, 101, state="R"), later=moving(101)),
    "lost": watched(trainer(), worker()),
    "ranks": watched(
        LAUNCHER, process(100, GETS_DATA, parent=10, rank=0), process(200, BARRIER, parent=10, rank=1), worker(LOADS)
    ),
    "blind": watched(trainer((), stacks_error=NOT_ALLOWED), worker((), stacks_error=NOT_ALLOWED, thread=READ)),
}
FIXES = (
    Fix(
        words="Add a timeout to the call; what it raises then names the sample:",
        diff="--- a.py\n+++ a.py\n-x\n+y\n z\n",
    ),
    Fix(words="Resume it:", command="kill -CONT 7"),
)
ESCAPE = "\x1b["


def is_prose(line: str) -> bool:
    """Whether a line could have been broken elsewhere: it has more than a mark and one long word."""
    return len(line.split()) > 2


@pytest.mark.parametrize("width", [40, 80, 140])
@pytest.mark.parametrize("name", SEEN)
def test_no_line_is_longer_than_the_terminal(name: str, width: int) -> None:
    """Paths and diffs excepted: they are not broken."""
    text = as_text(judge(SEEN[name]), FIXES, Paper(width))

    assert ESCAPE not in text
    assert [line for line in text.splitlines() if len(line) > width and is_prose(line)] == []
    assert text.endswith("\n")
    assert "\n\n\n" not in text


@pytest.mark.parametrize("cause", Cause)
@pytest.mark.parametrize("width", [40, 80])
def test_every_cause_can_be_printed(cause: Cause, width: int) -> None:
    """With its hint and its link."""
    suspect = Suspect(
        pid=7,
        name="worker 0",
        finding=Finding(cause=cause, evidence_lines=("a b " * 60,)),
        confidence=Confidence.LIKELY,
    )
    diagnosis = Diagnosis(
        verdict=Verdict.STUCK, summary="It stands. " * 20, suspects=(suspect,) * 9, notes=("n o " * 80,)
    )
    text = as_text(diagnosis, FIXES, Paper(width))

    assert [line for line in text.splitlines() if len(line) > width and is_prose(line)] == []
    assert f"antifreeze explain {cause.value}" in text
    assert "and 5 more: --json has all of them" in text
    assert " ".join(cause.hint.split()) in " ".join(text.split())


def test_colour_changes_nothing_but_the_colour() -> None:
    """The words are the same."""
    for seen in SEEN.values():
        plain = as_text(judge(seen), FIXES, Paper(80))
        coloured = as_text(judge(seen), FIXES, Paper(80, colour=True))
        assert ESCAPE in coloured
        assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == plain


def test_a_diff_is_printed_as_it_is() -> None:
    """So that it can be applied."""
    assert FIXES[0].diff in as_text(judge(SEEN["stuck"]), FIXES, Paper(40))


def test_the_verdict_comes_first() -> None:
    """A person under stress reads one line."""
    heads = {name: as_text(judge(seen), (), Paper()).split(":")[0] for name, seen in SEEN.items()}

    assert heads == {
        "healthy": "HEALTHY",
        "stuck": "STUCK",
        "slow": "SLOW",
        "lost": "STUCK",
        "ranks": "STUCK",
        "blind": "SLOW",
    }


def test_a_pipe_has_no_colour_and_eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless somebody says otherwise; too narrow and too wide are read by nobody."""
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr("os.get_terminal_size", lambda *_: (_ for _ in ()).throw(OSError()))
    assert paper_of(io.StringIO()) == Paper(80, colour=False)
    for columns, width in (("20", 40), ("90", 90), ("140", 100), ("500", 100)):
        monkeypatch.setenv("COLUMNS", columns)
        assert paper_of(io.StringIO()).width == width


@pytest.mark.parametrize(
    ("environment", "colour"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False), ({"TERM": "xterm"}, True)],
)
def test_a_terminal_has_colour(environment: dict[str, str], colour: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless it cannot, or nobody wants it."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)

    assert paper_of(stream).colour is colour


KEYS = "pid verdict summary looked_s findings fixes notes"
FINDING_KEYS = "cause confidence pid name title sample still_s evidence frames hint link"


def test_the_keys_of_the_json_are_a_promise() -> None:
    """Programs read them: none of these may vanish."""
    values = as_values(judge(SEEN["stuck"]), FIXES, 100)

    assert set(KEYS.split()) <= set(values)
    assert all(set(FINDING_KEYS.split()) <= set(finding) for finding in values["findings"])
    assert {tuple(frame) for finding in values["findings"] for frame in finding["frames"]} == {
        ("file", "line", "function")
    }
    assert {tuple(fix) for fix in values["fixes"]} == {("words", "diff", "command")}
    assert values["verdict"] in {verdict.value for verdict in Verdict}
    assert len(values["findings"]) == 6
    assert json.loads(json.dumps(values)) == values


# -- what is kept ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SEEN)
def test_what_was_kept_is_judged_as_it_was(name: str, tmp_path: Path) -> None:
    """The diffs are kept, too: the files that they change are not there any more."""
    seen, folder = SEEN[name], tmp_path / "deep" / "folder"
    text = as_text(judge(seen), FIXES, Paper())
    keep(folder, seen, FIXES, text)
    again, fixes = read(folder)

    assert again == seen
    assert fixes == FIXES
    assert judge(again) == judge(seen)
    assert (folder / "diagnosis.txt").read_text() == text
    assert read(folder / "seen.json") == (seen, FIXES)


def test_a_folder_that_exists_is_left_alone(tmp_path: Path) -> None:
    """Evidence is never overwritten, and nothing that another user has put there is entered."""
    first = keep(tmp_path / "kept", SEEN["stuck"], FIXES, "one")
    second = keep(tmp_path / "kept", SEEN["slow"], (), "two ä€")

    assert first == tmp_path / "kept"
    assert second.parent == tmp_path
    assert second.name.startswith("kept-")
    assert read(first) == (SEEN["stuck"], FIXES)
    assert read(second) == (SEEN["slow"], ())
    assert (second / "diagnosis.txt").read_text(encoding="utf-8") == "two ä€"


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("seen.json", None, r"seen\.json does not exist: pass a folder that `--keep` or `doctor run` wrote"),
        ("fixes.json", None, r"fixes\.json does not exist: pass a folder"),
        ("seen.json", b"", r"seen\.json cannot be read: "),
        ("seen.json", b'{"version": 1', r"seen\.json cannot be read: "),
        ("seen.json", b"\xff\xff", r"seen\.json cannot be read: "),
        ("seen.json", b"[]", r"seen\.json: not a recorded job"),
        ("seen.json", b'{"version": 9}', r"seen\.json: unsupported version: expected 2, got 9"),
        ("fixes.json", b"{", r"fixes\.json cannot be read"),
        ("fixes.json", b'[{"words": "x", "colour": 1}]', "colour"),
        ("fixes.json", b"7", "not a list of fixes"),
        ("fixes.json", b'["x"]', "not a list of fixes"),
        ("fixes.json", b'[{"words": 5}]', "expected text in every field"),
    ],
)
def test_a_damaged_folder_is_refused_in_words(file: str, text: bytes | None, words: str, tmp_path: Path) -> None:
    """It says which file, what is wrong, and what to do."""
    folder = keep(tmp_path / "kept", SEEN["stuck"], FIXES, "")
    if text is None:
        (folder / file).unlink()
    else:
        (folder / file).write_bytes(text)

    with pytest.raises(CannotRead, match=words) as error:
        read(folder)
    assert file in str(error.value)


def test_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    """It says which folders are right."""
    with pytest.raises(CannotRead, match="pass a folder that `--keep` or `doctor run` wrote"):
        read(tmp_path / "none")
    (tmp_path / "file").write_text("x")
    with pytest.raises(CannotRead, match="cannot be read"):
        read(tmp_path / "file")
