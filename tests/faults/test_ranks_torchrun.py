"""One rank of several stands still, under torchrun: every other one names it, and what can be healed is healed."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from worker_processes import identity, lives, workers

from conftest import write

HERE = Path(__file__).parent
PATIENCE_S = 100.0
NUM_SAMPLES = 600


class Job:
    """Ranks that train until they are told to stop."""

    def __init__(self, folder: Path, world_size: int, program: str = "rank_programs.py") -> None:
        self.folder, self.world_size, self.culprit = folder, world_size, world_size // 2
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world_size)]
        clean = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
        with (folder / "output").open("w") as output:
            self.process = subprocess.Popen(
                [*command, str(HERE / program), str(folder)],
                env={**clean, "OMP_NUM_THREADS": "1"},
                stdout=output,
                stderr=output,
            )

    def text(self, name: str) -> str:
        path = self.folder / name
        return path.read_text() if path.exists() else ""

    def until(self, condition: Callable[[], object], what: str) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while not condition():
            ended = self.process.poll() is not None
            assert not ended, f"the job has ended before {what}:\n{self.text('output')}"
            assert time.monotonic() < end_s, f"waited in vain until {what}:\n{self.logs()}"
            time.sleep(0.02)

    def logs(self) -> str:
        return "\n".join(f"--- rank {rank}\n{self.text(f'log-{rank}')}" for rank in range(self.world_size))

    def steps(self, rank: int) -> list[list[int]]:
        lines = self.text(f"steps-{rank}").split("\n")[:-1]
        return [[int(i) for i in line.split()] for line in lines]

    def go_on(self, steps: int = 20) -> None:
        """Wait until every rank has made some more steps."""
        before = [len(self.steps(rank)) for rank in range(self.world_size)]
        more = range(self.world_size)
        self.until(lambda: all(len(self.steps(r)) >= before[r] + steps for r in more), "all ranks have gone on")

    def pid(self, rank: int) -> int:
        return int(self.text(f"pid-{rank}"))

    def named(self, ranks: list[int], pattern: str) -> list[str]:
        """Wait until all these ranks have logged something, and return their lines."""
        found: dict[int, re.Match[str]] = {}

        def all_have() -> bool:
            for rank in ranks:
                match = re.search(pattern, self.text(f"log-{rank}"))
                if match is not None:
                    found[rank] = match
            return len(found) == len(ranks)

        self.until(all_have, f"all of {ranks} have logged {pattern}")
        return [found[rank][0] for rank in ranks]

    def end(self) -> int:
        (self.folder / "stop").touch()
        return self.process.wait(PATIENCE_S)

    def check_samples(self) -> None:
        """Assert that each rank has had its samples in order, each once in each round."""
        for rank in range(self.world_size):
            numbers = [i for step in self.steps(rank) for i in step]
            wanted = itertools.cycle(range(rank, NUM_SAMPLES, self.world_size))
            assert numbers == list(itertools.islice(wanted, len(numbers)))


def test_a_killed_rank_holds_nobody_up(tmp_path: Path) -> None:
    """The others fail in their collective, torchrun ends them, and nothing of ours keeps them."""
    job = Job(tmp_path, 2)
    try:
        job.go_on()
        ranks = [job.pid(rank) for rank in range(2)]
        processes = [identity(pid) for rank in ranks for pid in [rank, *workers(rank)]]
        os.kill(ranks[1], signal.SIGKILL)
        code = job.process.wait(PATIENCE_S)
    finally:
        job.process.kill()
        job.process.wait(PATIENCE_S)
    end_s = time.monotonic() + PATIENCE_S
    while any(lives(process) for process in processes) and time.monotonic() < end_s:
        time.sleep(0.02)

    assert code != 0
    assert not any(lives(process) for process in processes)


@pytest.mark.parametrize("world_size", [3, pytest.param(8, marks=pytest.mark.soak)])
def test_a_stuck_transform_is_named_with_its_file_on_every_rank(world_size: int, tmp_path: Path) -> None:
    """Then it is healed, the epoch ends, and every row came once."""
    num_rows = write(tmp_path / "data", [100] * 4 * world_size, group_rows=25).num_rows
    job = Job(tmp_path, world_size, "rank_rows.py")
    try:
        job.go_on(5)
        (tmp_path / "sleep").touch()
        lines = job.named(list(range(world_size)), rf"rank {job.culprit} of {world_size} .*had no batch.*")
        code = job.process.wait(PATIENCE_S)
    finally:
        job.process.kill()
        job.process.wait(PATIENCE_S)
    words = (".parquet, row ", "in transform", "it sleeps", "rank_rows.py:", "[cause: sleeping]")
    rows = [row for rank in range(world_size) for step in job.steps(rank) for row in step]

    assert [(word, line) for word in words for line in lines if word not in line] == []
    assert code == 0, job.text("output")
    assert len(rows) in (num_rows, num_rows - num_rows % (2 * world_size))
    assert len(set(rows)) == len(rows)


@pytest.fixture(scope="module", params=[4, pytest.param(8, marks=pytest.mark.soak)])
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """Start one job for all tests, each of which leaves it as it was."""
    job = Job(tmp_path_factory.mktemp("job"), request.param)
    try:
        job.go_on()
        yield job
        assert job.end() == 0, job.text("output")
        job.check_samples()
    finally:
        job.process.terminate()
        job.process.wait(PATIENCE_S)


def test_a_stuck_worker_of_one_rank_is_named_on_every_rank_and_healed(job: Job) -> None:
    """Rank, worker, sample, stage, cause and line; then the epoch goes on, with every sample once."""
    (job.folder / "sleep").touch()
    everybody = list(range(job.world_size))
    lines = job.named(everybody, rf"antifreeze: rank {job.culprit} of {job.world_size} .*had no batch.*")
    job.go_on()

    assert all(re.search(r"its worker \d+ \(pid \d+\) stalled for .* at sample \d+ of Numbers", line) for line in lines)
    words = ("in fetch", "it sleeps", "rank_programs.py:", "in __getitem__", "[cause: sleeping]")
    assert [(word, line) for word in words for line in lines if word not in line] == []
    assert "another worker redoes its batches" in job.text(f"log-{job.culprit}")
    job.check_samples()


def test_a_stopped_rank_is_named_by_all_others(job: Job) -> None:
    """Its process cannot say anything; its silence does."""
    others = [rank for rank in range(job.world_size) if rank != job.culprit]
    pid = job.pid(job.culprit)
    os.kill(pid, signal.SIGSTOP)
    try:
        pattern = rf"antifreeze: rank {job.culprit} of {job.world_size} .* has been silent .*is stopped \(SIGSTOP\).*"
        lines = job.named(others, pattern)
    finally:
        os.kill(pid, signal.SIGCONT)
    job.go_on()

    assert all(f"pid {pid}" in line for line in lines)
    job.check_samples()


def test_a_rank_whose_interpreter_is_held_by_native_code_is_named_by_all_others(job: Job) -> None:
    """None of its threads runs, ours included."""
    others = [rank for rank in range(job.world_size) if rank != job.culprit]
    os.mkfifo(job.folder / "gate")
    (job.folder / "hold").touch()
    try:
        job.named(others, rf"antifreeze: rank {job.culprit} of .* has been silent .*holds the interpreter's lock.*")
    finally:
        with (job.folder / "gate").open("r+b", buffering=0) as gate:
            gate.write(b"x")
            job.go_on()

    job.check_samples()
