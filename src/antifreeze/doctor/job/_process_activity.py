"""How a process stood over the time that it was watched. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from antifreeze.diagnosis import Cause, Evidence, Finding, Frame, find_cause, is_user
from antifreeze.doctor.job._observation import Observation, Process, Thread
from antifreeze.doctor.job._roles import Doing, doing, function_at, in_worker, was_forked

OPEN_END_S = 5.5
"""A wait without a limit that may still end by itself is called stuck when it has lasted this long."""
_BUSY_S = 60.0
"""One read from a disk that works may take this long: the kernel asks for many megabytes at once."""
_POLL_S = 4.0
"""Who waits in a loop with a limit, as torch does, wakes up about this often."""
_FEW_WAKES = 3
_STILL_SHARE = 0.02
"""Seconds of CPU per second that standing still costs."""
_POOLS = ("polars", "tokio", "rayon", "async-executor", "ThreadPool", "grpc", "fsspec", "iou-", "pool-")
"""How the threads of pools are called that people use before they fork."""
_SLEEPS = ("nanosleep", "clock_nanosleep")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessActivity:
    """One process, over all looks."""

    seen: tuple[Process, ...]
    """Once for each look that found it."""
    doings: tuple[Doing, ...]
    looked_s: float
    evidence: Evidence
    finding: Finding
    moves: bool
    """True if it used CPU, moved bytes, woke up often, or was found at different lines."""
    still_s: float
    quiet_s: float
    """For how long its main thread has been in one wait, as far as it was seen."""

    @property
    def last(self) -> Process:
        """It, as it was last seen."""
        return self.seen[-1]

    def always(self, *doings: Doing) -> bool:
        """True if it did only this, whenever it was looked at."""
        return all(doing in doings for doing in self.doings)


def stand(seen: Observation, pid: int, without: Sequence[int] = ()) -> ProcessActivity:
    """Return how a process stood, together with what it has started, without those that are named."""
    looks = tuple(process for snapshot in seen.snapshots if (process := snapshot.find(pid)) is not None)
    times = [snapshot.at_s for snapshot in seen.snapshots if snapshot.find(pid) is not None]
    looked_s = times[-1] - times[0]
    family = _family(seen, pid, without)
    cpu_s = sum(part.cpu_s for part in _gains(seen, family))
    moved_bytes = sum(part.read_bytes + part.written_bytes for part in _gains(seen, family))
    share = cpu_s / looked_s if looked_s else 0.0
    wakes = looks[-1].main.wakes - looks[0].main.wakes
    moves = share > _STILL_SHARE or moved_bytes > 0 or _wakes_often(wakes, looked_s) or len(_places(looks)) > 1
    moves = moves or _goes_on(looks)
    quiet_s = _quiet_s(looks, times)
    answers = looks[-1].main.state == "D" and _disk_answers(looks, wakes, quiet_s)
    children = sum(process.parent == pid for process in seen.snapshots[-1].processes)
    evidence = _evidence(seen, looks, share=share, moved_bytes=moved_bytes, wakes=wakes, children=children)
    finding = find_cause(evidence)
    if answers and finding.cause is Cause.DEAD_DISK:  # bytes of a read are counted only when all of it is done
        finding = replace(finding, cause=Cause.FILE)
    moves = moves or answers
    return ProcessActivity(
        seen=looks,
        doings=tuple(doing(look) for look in looks),
        looked_s=looked_s,
        evidence=evidence,
        finding=finding,
        moves=moves,
        still_s=0.0 if moves else max(looked_s, looks[-1].main.idle_s or 0.0),
        quiet_s=quiet_s,
    )


def _disk_answers(looks: Sequence[Process], wakes: int, quiet_s: float) -> bool:
    """True if whoever waits for a disk was woken by it, or was not for long, while the disk worked for somebody."""
    counts = {look.main.sectors for look in looks if look.main.mount == looks[-1].main.mount} - {0}
    return (wakes > 0 and quiet_s < OPEN_END_S) or (len(counts) > 1 and quiet_s < _BUSY_S)


def _quiet_s(looks: Sequence[Process], times: Sequence[float]) -> float:
    main = looks[-1].main
    begun_s = next(at_s for look, at_s in zip(looks, times, strict=True) if look.main.wakes == main.wakes)
    return max(times[-1] - begun_s, main.idle_s or 0.0)


def _evidence(
    seen: Observation, looks: Sequence[Process], *, share: float, moved_bytes: int, wakes: int, children: int
) -> Evidence:
    # Who starves is woken now and then, to find that there is still no memory.
    starving = [look for look in looks if look.main.starves]
    last = starving[-1] if 2 * len(starving) > len(looks) else looks[-1]
    main = last.main
    parent = seen.snapshots[-1].find(last.parent)
    calls = {(look.main.syscall, look.main.wchan, look.main.target) for look in looks}
    return Evidence(
        pid=last.pid,
        state=main.state or last.state,
        wchan=main.wchan,
        syscall=main.syscall,
        syscall_target=main.target,
        syscall_fd=main.fd,
        cpu_share=share,
        moved_bytes=moved_bytes,
        # Who gets from one sample to the next is slow. Who does not, and wakes up again and again, tries in vain.
        changing=not _goes_on(looks) and (len(calls) > 1 or (main.syscall in _SLEEPS and wakes > _FEW_WAKES)),
        threads=len(last.threads),
        children=children,
        rss_nbytes=last.rss_nbytes,
        stage="start" if _is_starting(last) else "",
        frames=in_worker(last.frames),
        forked=was_forked(last, parent),
        nobody_wakes=nobody_wakes(looks, parent),
        libraries=main.libraries,
        limit_s=main.limit_s,
    )


def nobody_wakes(looks: Sequence[Process], parent: Process | None = None) -> bool:
    """True if the main thread waits for a lock of its own process, and no thread of the process could release it."""
    last = looks[-1]
    main = last.main
    if not (last.frames or main.syscall or main.wchan):
        return _lacks_threads(last, parent)
    if main.wakes - looks[0].main.wakes > _FEW_WAKES:
        return False
    if any(look.main.syscall != "futex" and "futex" not in look.main.wchan for look in looks):
        return False
    if main.owner and main.owner not in {thread.tid for thread in last.threads}:
        return True
    is_shared = main.shared or function_at(last.frames[:2], "/multiprocessing/synchronize.py")
    if is_shared or (main.limit_s is not None and math.isfinite(main.limit_s)):
        return False
    return not any(_moved(looks[0], thread) for thread in last.threads if thread.tid != last.pid)


def _lacks_threads(process: Process, parent: Process | None) -> bool:
    """True if its parent has threads of a pool, and it has none: all that shows where nothing else can be read."""
    pools = [thread for thread in parent.threads if thread.name.startswith(_POOLS)] if parent else []
    return len(process.threads) == 1 and bool(pools)


def _moved(before: Process, now: Thread) -> bool:
    """True if a thread has done anything between two looks; a new one has."""
    then = next((thread for thread in before.threads if thread.tid == now.tid), None)
    return then is None or now.wakes - then.wakes > _FEW_WAKES or now.cpu_s > then.cpu_s


def _goes_on(looks: Sequence[Process]) -> bool:
    """True if it was found at different samples."""
    return len({look.sample for look in looks if look.frames}) > 1


def _places(looks: Sequence[Process]) -> set[tuple[Frame, ...]]:
    """Return the lines at which a process was found, the user's own if there are any. A look may have failed."""
    found = set()
    for look in looks:
        if not look.frames:
            continue
        mine = [frame for frame in look.frames if is_user(frame)]
        found.add(tuple(mine[:2] or look.frames[:1]))
    return found


def _wakes_often(wakes: int, looked_s: float) -> bool:
    return wakes > _FEW_WAKES + 3 * looked_s / _POLL_S


def _is_starting(process: Process) -> bool:
    frames = process.frames
    if function_at(frames, "/torch/utils/data/_utils/worker.py", frozenset({"_worker_loop"})):
        return False
    return function_at(frames, "/multiprocessing/spawn.py") or function_at(frames, "/multiprocessing/forkserver.py")


def _family(seen: Observation, pid: int, without: Sequence[int]) -> list[int]:
    """Return a process and all that it has started: one that waits for a program moves when the program does."""
    found = [pid]
    for parent in found:
        children = (process.pid for process in seen.snapshots[-1].processes if process.parent == parent)
        found += [child for child in children if child not in found and child not in without]
    return found


@dataclass(frozen=True, slots=True)
class _Gain:
    cpu_s: float
    read_bytes: int
    written_bytes: int


def _gains(seen: Observation, pids: list[int]) -> list[_Gain]:
    """Return by how much the counters of processes have gone up; those of a new one count in full."""
    found = []
    for pid in pids:
        looks = [process for snapshot in seen.snapshots if (process := snapshot.find(pid)) is not None]
        last = looks[-1] if looks else None
        if last is None:
            continue
        first = looks[0] if seen.snapshots[0].find(pid) is not None else Process(pid=pid)
        found.append(
            _Gain(
                last.cpu_s - first.cpu_s,
                max(0, last.read_bytes - first.read_bytes),
                max(0, last.written_bytes - first.written_bytes),
            )
        )
    return found
