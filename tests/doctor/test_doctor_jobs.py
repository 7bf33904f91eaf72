"""Real jobs with a real loader, frozen in every way that the troubleshooting page explains, and healthy ones."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from doctor_jobs import FROZEN, HEALTHY, Job

PATIENCE_S = 300
ALWAYS = {
    "polars held_lock stopped_worker traced sleep socket retry regex lock_order stdout_pipe subprocess fifo",
    "lost_exception small_shm sigchld_ignored endless_unpickle trainer_socket rank_uneven rank_worker exit",
    "python_work slow_transform step_of_5_s debugger spawn_epochs first_sample_native first_sample_sleep download",
    "polars_forkserver antifreeze slow_rank own_threads",
    "dead_disk slow_read oom_kill missing_page",
}
"""One job for each cause, and the healthy ones that are most like frozen ones. The others run in the soak."""
WITHOUT_LINES = ("stopped", "sleeping", "startup", "out-of-memory")
"""Of these the lines of the script need not show."""


def marked(jobs: tuple[Job, ...]) -> list[Any]:
    """Return the jobs as parameters. Only root can give a job a small /dev/shm, a disk or a group of its own."""
    always = " ".join(ALWAYS).split()
    possible = [job for job in jobs if job.possible]
    return [pytest.param(job, id=job.name, marks=[] if job.name in always else [pytest.mark.soak]) for job in possible]


@pytest.fixture(scope="module")
def diagnoses(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder into which another process writes what the doctor says of all jobs that are tested."""
    folder = tmp_path_factory.mktemp("jobs")
    specs = [getattr(item, "callspec", None) for item in request.session.items]
    jobs = [job for spec in specs if spec is not None and isinstance(job := spec.params.get("job"), Job)]
    names = [f"{job.script}:{job.name}" for job in jobs]
    command = [sys.executable, str(Path(__file__).with_name("doctor_runner.py")), str(folder), *names]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        try:
            yield folder
        finally:
            process.communicate(timeout=PATIENCE_S)


def said_of(job: Job, folder: Path) -> dict[str, Any]:
    """Return what the doctor said of a job, as a program gets it."""
    path = folder / f"{job.script}:{job.name}.json"
    end_s = time.monotonic() + PATIENCE_S
    while not path.exists():
        assert time.monotonic() < end_s, "nothing was said in time"
        time.sleep(0.05)
    done = json.loads(path.read_text())
    assert done["errors"] == ""
    found: dict[str, Any] = json.loads(done["output"])
    assert done["code"] == {"healthy": 0, "stuck": 1, "slow": 3}[found["verdict"]]
    return found


@pytest.mark.parametrize("job", marked(FROZEN))
def test_the_cause_of_a_frozen_job_is_named_first(job: Job, diagnoses: Path) -> None:
    """With evidence, with what to do, and with the command that explains it."""
    found = said_of(job, diagnoses)

    assert found["verdict"] != "healthy", found
    first = found["findings"][0]
    assert first["cause"] in job.causes, found
    assert first["evidence"]
    assert first["hint"]
    assert first["link"] == f"antifreeze explain {first['cause']}"
    assert job.script in found["summary"] or first["cause"] in WITHOUT_LINES, found


@pytest.mark.parametrize("job", marked(HEALTHY))
def test_a_healthy_job_is_never_called_stuck(job: Job, diagnoses: Path) -> None:
    """It may be slow; then it says where the time goes."""
    found = said_of(job, diagnoses)

    assert found["verdict"] != "stuck", found
    if found["verdict"] == "slow":
        assert any(job.script in note for note in found["notes"]), found


def test_there_are_enough_of_them() -> None:
    """Every name in the list is that of a job."""
    names = {job.name for job in (*FROZEN, *HEALTHY)}

    assert {name for line in ALWAYS for name in line.split()} <= names
    assert len(HEALTHY) >= 20
