"""What a process did over the time that it was observed. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from antifreeze.diagnosis import Cause, Evidence, Finding, Frame, Target, find_cause, is_user
from antifreeze.doctor.job._observation import Observation, Process, Thread
from antifreeze.doctor.job._roles import Doing, doing, has_frame, in_worker, was_forked

STUCK_GRACE_S = 5.5
"""A wait without a limit that may still end by itself counts as stuck after this time."""
_DISK_READ_GRACE_S = 60.0
"""One read from a working disk may take this long: the kernel requests many megabytes at once."""
_POLL_INTERVAL_S = 4.0
"""A wait in a loop with a timeout, as in torch, wakes up about this often."""
_MAX_IDLE_WAKES = 3
_MAX_IDLE_CPU_SHARE = 0.02
"""Seconds of CPU per second that waiting costs."""
_POOLS = ("polars", "tokio", "rayon", "async-executor", "ThreadPool", "grpc", "fsspec", "iou-", "pool-")
"""Name prefixes of the threads of common pools."""
_SLEEPS = ("nanosleep", "clock_nanosleep")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessActivity:
    """One process, over all snapshots."""

    seen: tuple[Process, ...]
    """Once for each snapshot that has it."""
    doings: tuple[Doing, ...]
    looked_s: float
    evidence: Evidence
    finding: Finding
    moves: bool
    """True if it used CPU, moved bytes, woke up often, or was seen at different lines."""
    still_s: float
    quiet_s: float
    """How long its main thread has been in one wait, as far as observed."""

    @property
    def last(self) -> Process:
        """The process in the last snapshot that has it."""
        return self.seen[-1]

    def always(self, *doings: Doing) -> bool:
        """True if it did only this in every snapshot."""
        return all(doing in doings for doing in self.doings)


def activity_of(seen: Observation, pid: int, without: Sequence[int] = ()) -> ProcessActivity:
    """Return the activity of a process and of what it started, except ``without``."""
    looks = tuple(process for snapshot in seen.snapshots if (process := snapshot.find(pid)) is not None)
    times = [snapshot.at_s for snapshot in seen.snapshots if snapshot.find(pid) is not None]
    looked_s = times[-1] - times[0]
    cpu_s, moved_bytes = _gains(seen, _family(seen, pid, without))
    share = cpu_s / looked_s if looked_s else 0.0
    main = looks[-1].main
    wakes = main.wakes - looks[0].main.wakes
    is_often_woken = wakes > _MAX_IDLE_WAKES + 3 * looked_s / _POLL_INTERVAL_S
    moves = share > _MAX_IDLE_CPU_SHARE or moved_bytes > 0 or is_often_woken
    moves = moves or len(_places(looks)) > 1 or _changes_samples(looks)
    begun_s = next(at_s for look, at_s in zip(looks, times, strict=True) if look.main.wakes == main.wakes)
    quiet_s = max(times[-1] - begun_s, main.idle_s or 0.0)
    is_answered = main.state == "D" and _is_disk_answering(looks, wakes, quiet_s)
    children = sum(process.parent == pid for process in seen.snapshots[-1].processes)
    evidence = _evidence(seen, looks, share=share, moved_bytes=moved_bytes, wakes=wakes, children=children)
    finding = find_cause(evidence)
    if is_answered and finding.cause is Cause.DEAD_DISK:  # bytes of a read are counted only when all of it is done
        finding = replace(finding, cause=Cause.FILE)
    moves = moves or is_answered
    return ProcessActivity(
        seen=looks,
        doings=tuple(doing(look) for look in looks),
        looked_s=looked_s,
        evidence=evidence,
        finding=finding,
        moves=moves,
        still_s=0.0 if moves else max(looked_s, main.idle_s or 0.0),
        quiet_s=quiet_s,
    )


def _is_disk_answering(looks: Sequence[Process], wakes: int, quiet_s: float) -> bool:
    """True if the disk woke the process recently, or serves other processes meanwhile."""
    counts = {look.main.sectors for look in looks if look.main.mount == looks[-1].main.mount} - {0}
    return (wakes > 0 and quiet_s < STUCK_GRACE_S) or (len(counts) > 1 and quiet_s < _DISK_READ_GRACE_S)


def _evidence(
    seen: Observation, looks: Sequence[Process], *, share: float, moved_bytes: int, wakes: int, children: int
) -> Evidence:
    # A process without memory is woken now and then, to find that there is still none.
    out_of_memory = [look for look in looks if look.main.is_out_of_memory]
    last = out_of_memory[-1] if 2 * len(out_of_memory) > len(looks) else looks[-1]
    main = last.main
    parent = seen.snapshots[-1].find(last.parent)
    calls = {(look.main.syscall, look.main.wchan, look.main.target) for look in looks}
    return Evidence(
        pid=last.pid,
        state=main.state or last.state,
        wchan=main.wchan,
        syscall=main.syscall,
        syscall_target=Target(main.target_kind, main.target),
        syscall_fd=main.fd,
        cpu_share=share,
        moved_bytes=moved_bytes,
        # A process that gets from one sample to the next is slow. One that does not, and keeps waking up, retries.
        changing=not _changes_samples(looks)
        and (len(calls) > 1 or (main.syscall in _SLEEPS and wakes > _MAX_IDLE_WAKES)),
        threads=len(last.threads),
        children=children,
        rss_nbytes=last.rss_nbytes,
        stage="start" if _is_starting(last) else "",
        frames=in_worker(last.frames),
        forked=was_forked(last, parent),
        nobody_wakes=is_never_woken(looks, parent),
        libraries=main.libraries,
        limit_s=main.limit_s,
    )


def is_never_woken(looks: Sequence[Process], parent: Process | None = None) -> bool:
    """True if the main thread waits for a lock of its process that no thread of the process can release."""
    last = looks[-1]
    main = last.main
    if not (last.frames or main.syscall or main.wchan):
        # The only sign where nothing else can be read: its parent has threads of a pool, and it has none.
        pools = [thread for thread in parent.threads if thread.name.startswith(_POOLS)] if parent else []
        return len(last.threads) == 1 and bool(pools)
    if main.wakes - looks[0].main.wakes > _MAX_IDLE_WAKES:
        return False
    if any(look.main.syscall != "futex" and "futex" not in look.main.wchan for look in looks):
        return False
    if main.owner and main.owner not in {thread.tid for thread in last.threads}:
        return True
    is_shared = main.shared or has_frame(last.frames[:2], "/multiprocessing/synchronize.py")
    if is_shared or (main.limit_s is not None and math.isfinite(main.limit_s)):
        return False
    return not any(_has_moved(looks[0], thread) for thread in last.threads if thread.tid != last.pid)


def _has_moved(before: Process, now: Thread) -> bool:
    """True if a thread did anything between two snapshots; a new one did."""
    then = next((thread for thread in before.threads if thread.tid == now.tid), None)
    return then is None or now.wakes - then.wakes > _MAX_IDLE_WAKES or now.cpu_s > then.cpu_s


def _changes_samples(looks: Sequence[Process]) -> bool:
    """True if it was seen at different samples."""
    return len({look.sample for look in looks if look.frames}) > 1


def _places(looks: Sequence[Process]) -> set[tuple[Frame, ...]]:
    """Return the lines at which a process was seen, the user's if there are any. A snapshot may lack them."""
    with_frames = [look.frames for look in looks if look.frames]
    return {tuple([f for f in frames if is_user(f)][:2] or frames[:1]) for frames in with_frames}


def _is_starting(process: Process) -> bool:
    frames = process.frames
    if has_frame(frames, "/torch/utils/data/_utils/worker.py", "_worker_loop"):
        return False
    return has_frame(frames, "/multiprocessing/spawn.py") or has_frame(frames, "/multiprocessing/forkserver.py")


def _family(seen: Observation, pid: int, without: Sequence[int]) -> list[int]:
    """Return a process and all that it started: waiting for a program that makes progress is progress."""
    found = [pid]
    for parent in found:
        children = (process.pid for process in seen.snapshots[-1].processes if process.parent == parent)
        found += [child for child in children if child not in found and child not in without]
    return found


def _gains(seen: Observation, pids: list[int]) -> tuple[float, int]:
    """Return the CPU seconds and the bytes that processes gained; those of a new one count in full."""
    cpu_s, moved_bytes = 0.0, 0
    for pid in pids:
        looks = [process for snapshot in seen.snapshots if (process := snapshot.find(pid)) is not None]
        if not looks:
            continue
        first = looks[0] if seen.snapshots[0].find(pid) is not None else Process(pid=pid)
        cpu_s += looks[-1].cpu_s - first.cpu_s
        moved_bytes += max(0, looks[-1].read_bytes - first.read_bytes)
        moved_bytes += max(0, looks[-1].written_bytes - first.written_bytes)
    return cpu_s, moved_bytes
