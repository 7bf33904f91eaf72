"""The pages that people read when a job stands still: every cause is explained, and every number and key is true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from doctor_jobs import FROZEN

from antifreeze.diagnosis import Cause, Finding, Frame
from antifreeze.doctor.job import Confidence, Diagnosis, Suspect, Verdict
from antifreeze.doctor.job import _observe as observe
from antifreeze.doctor.job import _verdict as judge
from antifreeze.doctor.job._fix import Fix
from antifreeze.doctor.job._job_command import CODES, COULD_NOT
from antifreeze.doctor.job._job_report import as_values, keep

TESTS = Path(__file__).parents[1]
JOBS = TESTS / "doctor/jobs"
CAUSES = TESTS.parent / "docs/troubleshooting.md"
DOCTOR = TESTS.parent / "docs/doctor.md"
PARTS = ("Symptom", "Mechanism", "Fix", "Test")


def section_of(cause: Cause) -> str:
    (section,) = re.findall(rf"^### `{cause.value}`\n(.*?)(?=^##)", CAUSES.read_text(), re.MULTILINE | re.DOTALL)
    return str(section)


def parts_of(cause: Cause) -> dict[str, str]:
    """Return what a section says under each of its bold words."""
    words = re.split(r"^\*\*(\w+)\.\*\* ", section_of(cause), flags=re.MULTILINE)[1:]
    return dict(zip(words[::2], words[1::2], strict=True))


@pytest.mark.parametrize("cause", Cause, ids=lambda cause: cause.value)
def test_every_cause_has_symptom_mechanism_and_fix(cause: Cause) -> None:
    parts = parts_of(cause)

    assert tuple(parts) == PARTS
    assert all(len(text.split()) > 4 for name, text in parts.items() if name not in ("Test", "Symptom"))


@pytest.mark.parametrize("cause", Cause, ids=lambda cause: cause.value)
def test_every_cause_names_tests_that_exist(cause: Cause) -> None:
    """A job that freezes a real loader in this way, or a test that does it to ours."""
    named = set(re.findall(r"`((?:frozen|healthy|test)_\w+)`", parts_of(cause)["Test"]))
    jobs = {path.stem for path in JOBS.glob("*.py")}
    tests = {
        name
        for path in TESTS.rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
    }

    assert named
    assert named - jobs - tests == set()


def test_a_job_stands_under_the_causes_that_the_doctor_must_find() -> None:
    """Each frozen job is named in the section of a cause of its own."""
    texts = {cause.value: parts_of(cause)["Test"] for cause in Cause}
    homeless = [
        job.script for job in FROZEN if not any(f"`{Path(job.script).stem}`" in texts[cause] for cause in job.causes)
    ]

    assert homeless == []


def test_the_page_has_the_numbers_of_the_source() -> None:
    text = " ".join(DOCTOR.read_text().split())

    shortest_s, longest_s = observe.MIN_OBSERVATION_S, observe.MAX_OBSERVATION_S
    assert f"every {observe._SNAPSHOT_INTERVAL_S:g} seconds, for {shortest_s:g} to {longest_s:g} seconds" in text
    assert (
        f"has not moved for {judge.STUCK_GRACE_S:g} seconds; without Python lines, for {judge._BLIND_GRACE_S:g} seconds"
        in text
    )
    assert f"of {judge._PROGRESS_GRACE_S / 60:g} minutes or more" in text
    assert f"no progress for {judge._PROGRESS_GRACE_S / 60:g} minutes" in text


def test_the_page_has_the_keys_of_the_json() -> None:
    """All that a program may rely on."""
    suspect = Suspect(
        pid=1,
        name="worker 0",
        finding=Finding(cause=Cause.LOCK, evidence_lines=("a line",)),
        confidence=Confidence.LIKELY,
        frames=(Frame(file="train.py", line=1, function="f"),),
    )
    values = as_values(Diagnosis(verdict=Verdict.STUCK, summary="", suspects=(suspect,)), (Fix(words=""),), 1)
    told = DOCTOR.read_text().partition("## JSON")[2].partition("\n## ")[0]
    finding, fix = values["findings"][0], values["fixes"][0]
    keys = {*values, *finding, *finding["frames"][0], *fix}

    assert {key for key in keys if not re.search(rf"`(?:findings\[\])?\.?{key}`", told)} == set()
    assert all(f'`"{member.value}"`' in told for member in (*Verdict, *Confidence))


def test_the_page_has_the_exit_codes() -> None:
    rows = re.findall(r"^\| (\d) \| (\w+)", DOCTOR.read_text(), re.MULTILINE)

    assert dict(rows) == {str(code): verdict.value for verdict, code in CODES.items()} | {str(COULD_NOT): "wrong"}


def test_the_page_has_the_files_that_are_kept(tmp_path: Path) -> None:
    folder = keep(tmp_path / "kept", observe.Observation(root=1, snapshots=()), (), "")
    told = DOCTOR.read_text().partition("### What is kept")[2].partition("\n## ")[0]

    assert {path.name for path in folder.iterdir()} == set(re.findall(r"^\| `([\w.]+)` \|", told, re.MULTILINE))
