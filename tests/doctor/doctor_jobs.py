"""Small training jobs with the stock loader of torch, frozen ones and healthy ones, for the doctor to look at."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from doctor_places import Place, can_freeze_disks, can_limit_memory, can_slow_disks, disk, little_memory, slow_disk

SCRIPTS = Path(__file__).parent / "jobs"
READY_S = 90.0
"""Within this a job gets to the place that it is about: two imports of torch on a busy machine."""
KILLED_S = 30.0
SMALL_SHM_NBYTES = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A script, and what the doctor should say of it."""

    name: str
    script: str
    causes: frozenset[str] = frozenset()
    """The causes of which the doctor should name one first; none for a job that is healthy, or only slow."""
    stdout: Literal["file", "unread"] = "file"
    """``unread``: a pipe that nobody reads."""
    stdin: Literal["nothing", "open pipe"] = "nothing"
    small_shm: bool = False
    """Whether it needs a small /dev/shm of its own, which takes root or user namespaces to make."""
    needs: Literal["nothing", "disk", "slow disk", "memory that kills", "memory that waits"] = "nothing"
    """A place that takes root to make."""
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def possible(self) -> bool:
        """Whether this machine can run it."""
        if self.small_shm:
            return os.geteuid() == 0
        if self.needs == "disk":
            return can_freeze_disks()
        if self.needs == "slow disk":
            return can_slow_disks()
        return self.needs == "nothing" or can_limit_memory()


def _frozen(name: str, *causes: str, **more: Any) -> Job:
    return Job(name=name, script=f"frozen_{name}.py", causes=frozenset(causes), **more)


def _healthy(
    name: str, script: str = "", stdin: Literal["nothing", "open pipe"] = "nothing", **environment: str
) -> Job:
    return Job(name=name, script=f"healthy_{script or name}.py", stdin=stdin, environment=environment)


FROZEN: tuple[Job, ...] = (
    _frozen("polars", "fork"),
    _frozen("thread_pool", "fork"),
    _frozen("event_loop", "fork"),
    _frozen("held_lock", "fork"),
    _frozen("held_writer", "fork"),
    _frozen("import_lock", "fork"),
    _frozen("openmp", "fork"),
    _frozen("tokenizers", "fork"),
    _frozen("queue_consumer", "fork"),
    _frozen("prefetch_event", "fork"),
    _frozen("lightning_polars", "fork"),
    _frozen("hf_polars", "fork"),
    _frozen("stopped_worker", "stopped"),
    _frozen("stopped_trainer", "stopped"),
    _frozen("traced", "traced"),
    _frozen("dead_disk", "dead-disk", needs="disk"),
    _frozen("oom_kill", "out-of-memory", needs="memory that kills"),
    _frozen("oom_wait", "out-of-memory", needs="memory that waits"),
    _frozen("sleep", "sleeping"),
    _frozen("native_sleep", "sleeping"),
    _frozen("socket", "network"),
    _frozen("urlopen", "network"),
    _frozen("short_body", "network"),
    _frozen("retry", "retrying"),
    _frozen("regex", "busy"),
    _frozen("endless_loop", "busy"),
    _frozen("lock_order", "lock"),
    _frozen("dead_owner", "lock"),
    _frozen("dead_worker_lock", "lock"),
    _frozen("spawn_lock_twice", "lock"),
    _frozen("spawn_queue", "lock"),
    _frozen("stdout_pipe", "full-pipe", stdout="unread"),
    _frozen("subprocess", "child"),
    _frozen("child_output", "child"),
    _frozen("pipe_read", "child"),
    _frozen("spawn_fifo", "child"),
    _frozen("fifo", "child", "file"),
    _frozen("missing_page", "unknown"),
    _frozen("lost_exception", "lost-batch"),
    _frozen("lost_sample", "lost-batch"),
    _frozen("lost_lock", "lost-batch"),
    _frozen("small_shm", "shared-memory", small_shm=True),
    _frozen("sigchld_ignored", "unnoticed-death"),
    _frozen("init_fn", "sleeping"),
    _frozen("spawn_import", "startup", "sleeping"),
    _frozen("endless_unpickle", "startup"),
    _frozen("trainer_socket", "network"),
    _frozen("trainer_report", "network"),
    _frozen("trainer_sleep", "sleeping"),
    _frozen("rank_worker", "sleeping"),
    _frozen("rank_uneven", "rank"),
    _frozen("rank_barrier", "rank"),
    _frozen("exit", "stopped"),
    _frozen("exit_thread", "lock"),
)

HEALTHY: tuple[Job, ...] = (
    _healthy("python_work"),
    _healthy("numpy_work"),
    _healthy("slow_disk"),
    Job(name="slow_read", script="healthy_slow_read.py", needs="slow disk"),
    _healthy("slow_transform"),
    _healthy("step_of_2_s", "slow_step", STEP_SECONDS="2"),
    _healthy("step_of_5_s", "slow_step", STEP_SECONDS="5"),
    _healthy("trainer_matmul"),
    _healthy("debugger", stdin="open pipe"),
    _healthy("input", stdin="open pipe"),
    _healthy("spawn_epochs"),
    _healthy("fork_epochs"),
    _healthy("first_sample_python", "first_sample", FIRST="python"),
    _healthy("first_sample_native", "first_sample", FIRST="native"),
    _healthy("first_sample_sleep", "first_sample", FIRST="sleep"),
    _healthy("no_workers"),
    _healthy("persistent"),
    _healthy("iterable"),
    _healthy("pin_memory"),
    _healthy("polars_forkserver"),
    _healthy("polars_in_trainer"),
    _healthy("download"),
    _healthy("subprocess"),
    _healthy("own_threads"),
    _healthy("lock_turns"),
    _healthy("idle_second_loader"),
    _healthy("large_batches"),
    _healthy("retry_that_ends"),
    _healthy("evaluation"),
    _healthy("checkpoint"),
    _healthy("antifreeze"),
    _healthy("ranks"),
    _healthy("slow_rank", "ranks", SLOW_RANK_SECONDS="4"),
    _healthy("lightning"),
    _healthy("hf_trainer"),
)


@contextmanager
def running(job: Job, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a job until it is at the place that it is about, and end all of it afterwards."""
    ready = folder / "ready"
    with _place(job, folder) as place:
        with (folder / "stdout").open("wb") as output, (folder / "stderr").open("wb") as errors:
            process = subprocess.Popen(
                [*_wrapper(job), *place.wrapper, sys.executable, str(SCRIPTS / job.script), str(ready)],
                stdin=subprocess.PIPE if job.stdin == "open pipe" else subprocess.DEVNULL,
                stdout=subprocess.PIPE if job.stdout == "unread" else output,
                stderr=errors,
                cwd=folder,
                env={**os.environ, **job.environment, **dict(place.environment)},
                start_new_session=True,
            )
        try:
            _wait_until_ready(job, process, lambda: ready.exists() and place.is_ready(process.pid), folder / "stderr")
            yield process
        finally:
            place.let_go()
            _end(process)


def _place(job: Job, folder: Path) -> AbstractContextManager[Place]:
    if job.needs == "disk":
        return disk(folder)
    if job.needs == "slow disk":
        return slow_disk(folder)
    return nullcontext(Place()) if job.needs == "nothing" else little_memory(folder, kills="kills" in job.needs)


def _wrapper(job: Job) -> list[str]:
    """Return what has to stand before the command: the process id stays that of the job."""
    if not job.small_shm:
        return []
    mount = f'mount -t tmpfs -o size={SMALL_SHM_NBYTES} tmpfs /dev/shm && exec "$@"'
    rights = [] if os.geteuid() == 0 else ["--map-root-user"]
    return ["unshare", *rights, "--mount", "--propagation", "private", "sh", "-c", mount, "sh"]


def _wait_until_ready(job: Job, process: subprocess.Popen[bytes], is_ready: Callable[[], bool], log: Path) -> None:
    end_s = time.monotonic() + READY_S
    while not is_ready():
        ended = process.poll() is not None
        if ended or time.monotonic() > end_s:
            errors = log.read_text(errors="replace")
            what = f"ended with {process.returncode} before" if ended else f"did not within {READY_S:.0f} s get to"
            raise AssertionError(f"job {job.name} {what} its moment\n{errors}")
        time.sleep(0.02)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the job and all below it, whatever session a part of it went into, and wait until nothing is left."""
    known = {process.pid}
    end_s = time.monotonic() + KILLED_S
    while living := _grown(known):
        left_s = end_s - time.monotonic()
        assert left_s > 0, f"processes {sorted(living)} cannot be killed"
        for pid in living:
            if left_s < KILLED_S / 2 or not _is_tracker(pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    process.wait(KILLED_S)
    for pipe in (process.stdin, process.stdout):
        if pipe:
            pipe.close()


def _is_tracker(pid: int) -> bool:
    """Tell whether this is the process that removes the semaphores of the others, and ends, when they are gone."""
    try:
        return b"resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _grown(known: set[int]) -> set[int]:
    """Add the children and session members of known processes to them; return those of them that live."""
    table = dict(_process_table())
    size = 0
    while size < len(known):
        size = len(known)
        known |= {pid for pid, (_, parent, session) in table.items() if parent in known or session in known}
    return {pid for pid in known if table.get(pid, ("Z", 0, 0))[0] not in "ZX"}


def _process_table() -> Iterator[tuple[int, tuple[str, int, int]]]:
    """Yield the id, state, parent and session of every process."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                words = (entry / "stat").read_text().rpartition(")")[2].split()
                yield int(entry.name), (words[0], int(words[1]), int(words[3]))
