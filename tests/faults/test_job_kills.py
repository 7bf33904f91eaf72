"""A job that is killed, and goes on with other ranks and workers, makes the same steps as one that is not."""

from __future__ import annotations

import itertools
import json
import random
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest
from worker_processes import until

from conftest import write

SCRIPT = str(Path(__file__).resolve().parent / "rank_job.py")
Step = tuple[int, int]


class Job:
    """A job and its lives."""

    def __init__(self, data: Path, folder: Path, kind: str) -> None:
        self._data, self._folder, self._kind = data, folder, kind
        self._life = 0
        folder.mkdir()

    def live(self, world_size: int, num_workers: int, steps: int | None) -> bool:
        """Run all ranks; kill them after the first has made so many steps. Tell whether they came to the end."""
        self._life += 1
        known = [str(self._data), str(self._folder), str(self._life)]
        ranks = [
            subprocess.Popen(
                [sys.executable, SCRIPT, *known, str(rank), str(world_size), str(num_workers), self._kind],
                start_new_session=True,
            )
            for rank in range(world_size)
        ]
        try:
            first = self._folder / f"steps-{self._life}-0"
            until(
                lambda: (
                    (steps is not None and first.exists() and first.read_text().count("\n") >= steps)
                    or all(rank.poll() is not None for rank in ranks)
                ),
                "the job gets on",
            )
        finally:
            for rank in ranks:
                rank.send_signal(signal.SIGKILL)
            codes = [rank.wait(30) for rank in ranks]
        assert set(codes) <= {0, -signal.SIGKILL}
        return set(codes) == {0}

    def steps(self) -> dict[Step, dict[str, list[int]]]:
        """Return what each process has had in each step."""
        found: dict[Step, dict[str, list[int]]] = defaultdict(dict)
        for log in self._folder.glob("steps-*"):
            for line in log.read_text().splitlines(keepends=True):
                if line.endswith("\n"):  # it may have been killed while it wrote
                    epoch, sample, rows = json.loads(line)
                    found[epoch, sample][log.name] = rows
        return found


def undisturbed(data: Path, folder: Path, kind: str) -> dict[Step, set[int]]:
    """Return the samples of each step of a job of one rank that nobody kills."""
    job = Job(data, folder / "undisturbed", kind)
    assert job.live(1, 0, None)
    return {step: set(*had.values()) for step, had in job.steps().items()}


def check(data: Path, folder: Path, kind: str, seed: int, kills: int) -> int:
    """Kill a job until it has come to its end all the same; return how often that was."""
    expected = undisturbed(data, folder, kind)
    chance = random.Random(seed)  # noqa: S311
    job, killed = Job(data, folder / "killed", kind), 0
    while not job.live(
        chance.choice([1, 2, 3, 4]), chance.choice([0, 1, 2]), chance.randint(1, 9) if killed < kills else None
    ):
        killed += 1
    found = job.steps()

    assert found.keys() == expected.keys()
    for step, had in found.items():
        # A step that was made when the job was killed is made again; it is made of the same samples each time.
        assert set(itertools.chain(*had.values())) == expected[step], f"step {step} with seed {seed}"
        lives = {name.split("-")[1] for name in had}
        for life in lives:
            rows = [row for name, of in had.items() if name.split("-")[1] == life for row in of]
            assert len(rows) == len(set(rows)), f"step {step} with seed {seed}"
    return killed


@pytest.mark.parametrize("kind", ["plain", "made", "mixed"])
def test_a_job_that_is_killed_makes_the_same_steps(kind: str, tmp_path: Path) -> None:
    """Wherever it is killed, and whatever it goes on with."""
    data = write(tmp_path / "data", [97, 130, 40], group_rows=13).path

    assert check(data, tmp_path, kind, seed=1, kills=3) == 3


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 52))
def test_two_hundred_kills(seed: int, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """Up to nine in each job, fewer if it comes to its end before: more than three hundred in all."""
    data = write(tmp_path / "data", [97, 130, 40], group_rows=13).path
    kind = ["plain", "made", "mixed", "mixed made"][seed % 4]
    killed = check(data, tmp_path, kind, seed=seed, kills=9)
    record_property("killed", killed)

    assert killed >= 2
