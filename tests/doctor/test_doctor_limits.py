"""What speaks for a cause beside where a process stands: the file and its disk, memory, and open files."""

from __future__ import annotations

import dataclasses
import math
import os
from pathlib import Path

import pytest
from doctor_children import child, in_call, until
from doctor_made import BIG, LOADS, MAIN, SCRIPT, STANDARD, at, process, trainer, watched, worker

from antifreeze.diagnosis import Cause, ProcSnapshot, Target, TargetKind
from antifreeze.doctor.job import Confidence, Diagnosis, Verdict
from antifreeze.doctor.job._observation import GroupMemory, Machine, Process, Stack, Thread
from antifreeze.doctor.job._observe import _is_silent, read_process
from antifreeze.doctor.job._verdict import judge
from antifreeze.doctor.job._wait_channels import Mount, mount_of, place_of

DISK = {
    "syscall": "write",
    "fd": 5,
    "target": "/data/cache",
    "target_kind": TargetKind.FILE,
    "path": "/data/cache",
    "mount": "/data (nfs4, server:/export)",
    "wchan": "rpc_wait_bit_killable",
}
BIRTH = {"syscall": "clone3", "wchan": "kernel_clone", "limit_s": None}
STARVED = {"syscall": "", "wchan": "mem_cgroup_oom_synchronize"}
NETWORK = {
    "syscall": "recvfrom",
    "target": "socket to 10.0.0.1:443",
    "target_kind": TargetKind.PEER,
    "wchan": "wait_woken",
    "limit_s": math.inf,
}
MB = 1_000_000


def with_group(**facts: int) -> Machine:
    """Return a machine on which the job's control group stands like this."""
    return dataclasses.replace(BIG, group=GroupMemory(**facts))


def lines_of(found: Diagnosis) -> tuple[str, ...]:
    """Return the evidence for what is named first."""
    return found.suspects[0].finding.evidence_lines


# -- files and disks ------------------------------------------------------------------------------------------------


def test_the_file_and_its_disk_are_named() -> None:
    """Who is called at night wants to know which server it is."""
    found = judge(watched(trainer(), worker(LOADS, state="D", thread=DISK)))

    assert found.verdict is Verdict.STUCK
    assert (found.suspects[0].cause, found.suspects[0].confidence) == (Cause.DEAD_DISK, Confidence.CERTAIN)
    assert "process state D, in system call write on /data/cache (wchan rpc_wait_bit_killable)" in lines_of(found)
    assert "the file is on /data (nfs4, server:/export)" in lines_of(found)


@pytest.mark.parametrize(
    ("wakes", "looks", "cause", "verdict"),
    [
        ((5, 5, 5, 5), 4, Cause.DEAD_DISK, Verdict.STUCK),
        ((5, 6, 6, 6, 6), 5, Cause.DEAD_DISK, Verdict.STUCK),
        ((5, 5, 5), 3, Cause.DEAD_DISK, Verdict.SLOW),
        ((5, 5, 6, 6), 4, Cause.FILE, Verdict.SLOW),
        ((5, 6, 7, 8), 4, Cause.FILE, Verdict.SLOW),
    ],
)
def test_a_disk_that_answers_is_not_dead(wakes: tuple[int, ...], looks: int, cause: Cause, verdict: Verdict) -> None:
    """A large read gives no bytes until it is done. But whoever waits for it wakes up with each part of it."""

    def later(look: int, seen: Process) -> Process:
        main = dataclasses.replace(seen.main, wakes=wakes[look])
        return dataclasses.replace(seen, threads=(main,)) if seen.pid == 101 else seen

    found = judge(watched(trainer(), worker(LOADS, state="D", thread=DISK), looks=looks, later=later))

    assert (found.suspects[0].cause, found.verdict) == (cause, verdict)
    assert found.sure is (verdict is Verdict.STUCK)


@pytest.mark.parametrize(
    ("sectors", "idle_s", "cause", "verdict"),
    [
        ((8, 8, 8, 8), None, Cause.DEAD_DISK, Verdict.STUCK),
        ((0, 0, 0, 9), None, Cause.DEAD_DISK, Verdict.STUCK),  # of one look nothing follows
        ((8, 8, 8, 9), None, Cause.FILE, Verdict.SLOW),
        ((7, 8, 9, 10), 59.0, Cause.FILE, Verdict.SLOW),
        ((7, 8, 9, 10), 60.0, Cause.DEAD_DISK, Verdict.STUCK),  # it works, but not for this one
    ],
)
def test_a_disk_that_works_is_not_dead(
    sectors: tuple[int, ...], idle_s: float | None, cause: Cause, verdict: Verdict
) -> None:
    """The kernel reads megabytes ahead: on a slow disk, whoever waits may wake up only after many seconds."""

    def later(look: int, seen: Process) -> Process:
        main = dataclasses.replace(seen.main, wakes=5, sectors=sectors[look], idle_s=idle_s)
        return dataclasses.replace(seen, threads=(main,)) if seen.pid == 101 else seen

    found = judge(watched(trainer(), worker(LOADS, state="D", thread=DISK), looks=4, later=later))

    assert (found.suspects[0].cause, found.verdict) == (cause, verdict)


def test_a_file_that_the_call_names_is_named() -> None:
    """A call that opens or asks has no descriptor yet."""
    thread = {**DISK, "syscall": "newfstatat", "fd": -1, "target": ""}
    found = judge(watched(trainer(), worker(LOADS, state="D", thread=thread)))

    assert found.suspects[0].cause is Cause.DEAD_DISK
    assert "the file that it waits for: /data/cache" in lines_of(found)


def test_who_starts_a_program_waits_for_the_new_process() -> None:
    """It has the name and the memory of the worker until it begins the program, and is no worker."""
    unborn = worker(LOADS, pid=102, parent=101, thread={"syscall": "openat", "path": "/data/pipe"})
    found = judge(watched(trainer(), worker(LOADS, state="D", thread=BIRTH), unborn))

    assert found.verdict is Verdict.STUCK
    assert [(suspect.cause, suspect.pid) for suspect in found.suspects] == [(Cause.CHILD, 101)]
    assert "the new process (102) is in system call openat on /data/pipe" in lines_of(found)


TABLE = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:40 / /data rw shared:5 - nfs4 server:/export rw,vers=4.2
31 22 0:41 / /data\\040of\\040mine rw - fuse.sshfs me:s3cret@host:/x rw
32 30 7:0 / /data/disk rw - ext4 /dev/loop0 rw
33 22 7:1 / /data/disk rw - xfs /dev/loop1 rw
garbage
"""


@pytest.mark.parametrize(
    ("path", "mount"),
    [
        ("/etc/passwd", "/ (ext4, /dev/vda)"),
        ("/data", "/data (nfs4, server:/export)"),
        ("/data/x", "/data (nfs4, server:/export)"),
        ("/database/x", "/ (ext4, /dev/vda)"),
        ("/data of mine/x", "/data of mine (fuse.sshfs, "),
        ("/data/disk/x", "/data/disk (xfs, /dev/loop1)"),
    ],
)
def test_where_a_file_lies(path: str, mount: str) -> None:
    """The longest mount above it, the last of equal ones."""
    assert mount_of(path, TABLE).description.startswith(mount)
    assert mount_of(path, "") == Mount()


@pytest.mark.parametrize(
    ("path", "stat", "sectors"),
    [
        ("/data/disk/x", "1 0 100 2 3 0 20 4 0 5 6\n", 120),
        ("/data/disk/x", "1 0 100\n", 0),
        ("/data/disk/x", "nonsense\n", 0),
        ("/data/x", "1 0 100 2 3 0 20 4 0 5 6\n", 0),
    ],
)
def test_how_much_the_disk_of_a_file_has_done(path: str, stat: str, sectors: int, tmp_path: Path) -> None:
    """A server elsewhere is no disk of this machine."""
    home, device = tmp_path / "proc" / "7", tmp_path / "sys" / "dev" / "block" / "7:1"
    home.mkdir(parents=True)
    device.mkdir(parents=True)
    (home / "mountinfo").write_text(TABLE)
    (device / "stat").write_text(stat)
    look = ProcSnapshot(syscall="read", syscall_target=Target(TargetKind.FILE, path))

    assert place_of(7, look, may_read=False, proc=tmp_path / "proc").sectors == sectors


def path_of(pid: int) -> str:
    """Return the file that the main thread of a process is about."""
    seen = read_process(pid)
    return seen.main.path if seen is not None else ""


@pytest.mark.parametrize("relative", [True, False])
def test_the_path_that_a_call_was_given_is_read(relative: bool, tmp_path: Path) -> None:
    """A named pipe that nobody writes to is opened."""
    os.mkfifo(tmp_path / "pipe")
    name = "pipe" if relative else str(tmp_path / "pipe")
    with child(f"print('ready', flush=True)\nopen({name!r})", cwd=tmp_path) as process:
        until(lambda: path_of(process.pid) == str(tmp_path / "pipe"))
        seen = read_process(process.pid)

    assert seen is not None
    assert seen.main.target == ""
    assert "(" in seen.main.mount


def test_a_name_that_is_no_text_can_be_printed(tmp_path: Path) -> None:
    """Of the path that is opened, and of the file that is read."""
    strange = os.fsencode(tmp_path) + b"/\xff"
    os.mkfifo(strange)
    opens = f"print('ready', flush=True)\nopen({strange!r})"
    reads = f"import os\nfd = os.open({strange!r}, os.O_RDWR)\nprint('ready', flush=True)\nos.read(fd, 1)"
    for code in (opens, reads):
        with child(code) as process:
            until(lambda: path_of(process.pid) == f"{tmp_path}/\ufffd")


def test_no_path_is_read_where_there_is_none(tmp_path: Path) -> None:
    """A pipe has none."""
    with child("print('ready', flush=True)\ninput()", cwd=tmp_path) as process:
        until(lambda: in_call(process.pid, "read"))
        seen = read_process(process.pid)

    assert seen is not None
    assert (seen.main.path, seen.main.mount) == ("", "")


@pytest.mark.parametrize(
    ("state", "thread", "other", "silent"),
    [
        ("S", {}, "S", False),
        ("Z", {}, "S", True),
        ("X", {}, "S", True),
        ("D", DISK, "S", False),
        ("D", BIRTH, "S", False),
        ("D", STARVED, "S", False),
        ("D", {"syscall": "mmap"}, "S", True),
        ("D", {"syscall": "", "wchan": "folio_wait_bit"}, "S", True),
        ("D", DISK, "D", True),
    ],
)
def test_lines_are_read_only_of_who_does_not_hold_its_memory(
    state: str, thread: dict[str, object], other: str, silent: bool
) -> None:
    """Else the reader might wait as long."""
    seen = process(101, state=state, thread=thread, others=(Thread(tid=102, state=other),))

    assert _is_silent(seen) is silent


# -- memory ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "confidence", "line"),
    [
        (
            {"oom_kills": 1},
            Confidence.LIKELY,
            "a process of its control group because memory ran out since the group was",
        ),
        (
            {"oom_kills": 3, "new_oom_kills": 2},
            Confidence.CERTAIN,
            "2 processes of its control group because memory ran",
        ),
    ],
)
def test_a_worker_that_the_kernel_has_killed(facts: dict[str, int], confidence: Confidence, line: str) -> None:
    """SIGCHLD is ignored, and one worker is gone: the count of the group says why."""
    found = judge(watched(trainer(ignores_sigchld=True), worker(), machine=with_group(**facts)))

    assert found.verdict is Verdict.STUCK
    assert (found.suspects[0].cause, found.suspects[0].confidence) == (Cause.OUT_OF_MEMORY, confidence)
    assert "waits for a worker that the kernel killed because memory ran out" in found.summary
    assert any(line in said for said in lines_of(found))
    assert any("ignores SIGCHLD" in said for said in lines_of(found))


def test_all_workers_were_killed() -> None:
    """There is none, and nobody ignores anything."""
    found = judge(watched(trainer(), machine=with_group(oom_kills=2)))

    assert found.suspects[0].cause is Cause.OUT_OF_MEMORY


def test_without_a_kill_it_is_a_death_that_nobody_noticed() -> None:
    """Nothing is said of memory."""
    machine = with_group(limit_nbytes=100 * MB, used_nbytes=50 * MB)
    found = judge(watched(trainer(ignores_sigchld=True), worker(), machine=machine))

    assert found.suspects[0].cause is Cause.UNNOTICED_DEATH
    assert not any("memory" in line for line in lines_of(found))


def test_who_waits_for_memory() -> None:
    """No line can be read of a process in a group that is full; the kernel's function is enough."""
    machine = with_group(limit_nbytes=100 * MB, used_nbytes=100 * MB, waits=True)
    seen = watched(trainer(), worker((), state="D", thread=STARVED), machine=machine)
    found = judge(seen)

    assert found.verdict is Verdict.STUCK
    assert (found.suspects[0].cause, found.suspects[0].confidence) == (Cause.OUT_OF_MEMORY, Confidence.CERTAIN)
    assert "waits for memory, of which its control group has none left" in found.summary
    assert "memory of its control group: 100 MB of 100 MB used, not counting the page cache" in lines_of(found)
    assert any("wait for some instead of being killed" in line for line in lines_of(found))


def test_a_job_whose_trainer_could_not_be_seen_and_thrashes() -> None:
    """In a group that is full most looks fail, and a worker is woken now and then, to find that nothing has changed."""

    def later(look: int, seen: Process) -> Process:
        if seen.pid == 100:
            return dataclasses.replace(seen, stacks=() if look else seen.stacks, cpu_s=float(look))
        awake = Thread(tid=101, state="R")
        return dataclasses.replace(seen, state="R", threads=(awake,)) if look == 3 else seen

    machine = with_group(limit_nbytes=100 * MB, used_nbytes=100 * MB, waits=True)
    found = judge(
        watched(trainer(), worker((), state="D", thread=STARVED), worker(pid=102), machine=machine, later=later)
    )

    assert found.verdict is not Verdict.HEALTHY
    assert [(suspect.cause, suspect.pid) for suspect in found.suspects] == [(Cause.OUT_OF_MEMORY, 101)]


def test_a_trainer_that_starves() -> None:
    """Its workers wait for work."""
    machine = with_group(limit_nbytes=100 * MB, used_nbytes=100 * MB, waits=True)
    found = judge(watched(trainer((), state="D", thread=STARVED), worker(), machine=machine))

    assert found.verdict is Verdict.STUCK
    assert [(suspect.cause, suspect.pid) for suspect in found.suspects] == [(Cause.OUT_OF_MEMORY, 100)]


def test_a_look_that_failed_is_no_motion() -> None:
    """py-spy fails now and then; a process that stands still does so all the same."""

    def later(look: int, seen: Process) -> Process:
        return dataclasses.replace(seen, stacks=()) if seen.pid == 101 and look == 1 else seen

    found = judge(watched(trainer(), worker(LOADS, thread=NETWORK), later=later))

    assert (found.suspects[0].cause, found.verdict) == (Cause.NETWORK, Verdict.STUCK)


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"limit_nbytes": 100 * MB, "used_nbytes": 89 * MB}, False),
        ({"limit_nbytes": 100 * MB, "used_nbytes": 90 * MB}, True),
        ({"limit_nbytes": 0, "used_nbytes": 90 * MB}, False),
        ({"oom_kills": 4}, False),
        ({"oom_kills": 4, "new_oom_kills": 1}, True),
    ],
)
def test_memory_is_spoken_of_where_it_is_short(facts: dict[str, int], said: bool) -> None:
    """Who waits for the network does not do so because somebody was killed last week."""
    found = judge(watched(trainer(MAIN, thread=NETWORK), machine=with_group(**facts)))

    assert found.suspects[0].cause is Cause.NETWORK
    assert any("memory" in line for line in lines_of(found)) is said


# -- threads --------------------------------------------------------------------------------------------------------


def test_the_thread_that_keeps_a_program_from_ending_is_named() -> None:
    """The main thread has no line of the user left."""
    ending = (at(f"{STANDARD}/threading.py", "_shutdown"),)
    uploads = (at(f"{STANDARD}/queue.py", "get"), at(SCRIPT, "upload", 19))
    seen = trainer(ending, thread={"syscall": "futex", "limit_s": math.inf}, others=(Thread(tid=109, state="S"),))
    stacks = (*seen.stacks, Stack(tid=108, name="ours"), Stack(tid=109, name="uploader", frames=uploads))
    found = judge(watched(dataclasses.replace(seen, stacks=stacks)))

    assert f"the program has finished, and waits for thread 'uploader': {SCRIPT}:19 in upload" in lines_of(found)
    assert f"{SCRIPT}:19 in upload" in found.summary


# -- open files -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("files", "most", "said"), [(921, 1024, False), (922, 1024, True), (5, 0, False)])
def test_open_files_are_spoken_of_where_they_run_out(files: int, most: int, said: bool) -> None:
    """Of the process that is concerned."""
    found = judge(watched(trainer(MAIN, thread=NETWORK, files=files, max_files=most)))

    assert any(line == f"it has {files} files open, of at most 1,024 (`ulimit -n`)" for line in lines_of(found)) is said


def test_open_files_of_a_worker_whose_batch_is_lost() -> None:
    """It is the trainer that waits, and the worker that could not open more."""
    found = judge(watched(trainer(), worker(files=1024, max_files=1024), machine=BIG))

    assert found.suspects[0].cause is Cause.LOST_BATCH
    assert "worker 0 (pid 101) has 1,024 files open, of at most 1,024 (`ulimit -n`)" in lines_of(found)
