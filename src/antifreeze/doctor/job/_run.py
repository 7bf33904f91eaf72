"""Starts a job, watches it, and explains each stall. The job is never stopped."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from antifreeze.core import PrivateFolder, one_line, with_random_suffix
from antifreeze.diagnosis import Cause
from antifreeze.doctor._terminal import Paper
from antifreeze.doctor.job._diagnosis import Verdict
from antifreeze.doctor.job._fix import fixes_of
from antifreeze.doctor.job._job_report import as_text, keep
from antifreeze.doctor.job._observation import Observation, Snapshot
from antifreeze.doctor.job._observe import Gone, memory_of, observe, snapshot
from antifreeze.doctor.job._thread_stacks import THREADS
from antifreeze.doctor.job._verdict import is_enough, judge

_SNAPSHOTS_PER_STALL = 6
"""Number of snapshots within the time after which a job counts as stalled."""
_NUM_THREADS = 2
_INTERRUPT_INTERVAL_S = 0.2
_SENT_BY_PROCESS = 0  # SI_USER and below; those of the kernel are greater
_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def run(command: list[str], *, stall_s: float, folder: Path, say: Callable[[str], None], paper: Paper) -> int:
    """Run a command to its end, and return its exit code as a shell does."""
    try:
        process = subprocess.Popen(command)  # noqa: S603  it is the user's own
    except OSError as error:
        say(f"antifreeze doctor: could not start {one_line(command[0])}: {error.strerror}\n")
        return 127 if isinstance(error, FileNotFoundError) else 126
    with _signals_for(process), ThreadPoolExecutor(_NUM_THREADS) as pool:
        watch = _Watch(process.pid, stall_s, folder, say, paper, pool)
        while True:
            try:
                code = process.wait(timeout=stall_s / _SNAPSHOTS_PER_STALL)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(Gone):
                    watch.poll()
                continue
            return code if code >= 0 else 128 - code


class _ReportedStall(NamedTuple):
    """A stall that was reported."""

    begun_s: float
    pid: int
    cause: Cause
    verdict: Verdict


class _Watch:
    """Takes snapshots of a job, inspects it closely when it makes no progress, and reports each stall once."""

    def __init__(
        self, pid: int, stall_s: float, folder: Path, say: Callable[[str], None], paper: Paper, pool: ThreadPoolExecutor
    ) -> None:
        self._pid, self._stall_s = pid, stall_s
        # Order: named once, for all evidence of this run; created with the first evidence.
        self._folder = with_random_suffix(folder)
        self._is_created = False
        self._say, self._paper, self._pool = say, paper, pool
        self._looks: deque[Snapshot] = deque()
        self._reported: _ReportedStall | None = None
        self._number = 0
        self._oom_kills = memory_of(pid).oom_kills

    def poll(self) -> None:
        """Take a snapshot, and report a stall if the job made no progress for long enough."""
        seen = snapshot(self._pid, self._pool)
        if not seen.processes:
            raise Gone
        self._looks.append(seen)
        while len(self._looks) > 2 and seen.at_s - self._looks[1].at_s >= self._stall_s:
            self._looks.popleft()
        looked_s = seen.at_s - self._looks[0].at_s
        if looked_s < self._stall_s:
            return
        begun_s = self._reported.begun_s if self._reported else self._looks[0].at_s
        diagnosis = judge(Observation(root=self._pid, snapshots=tuple(self._looks), still_s=seen.at_s - begun_s))
        if diagnosis.verdict is Verdict.HEALTHY or not diagnosis.suspects:
            if self._reported is not None and seen.find(self._reported.pid) is not None:
                self._say("antifreeze doctor: the job recovered\n")
            self._reported = None
            return
        first = diagnosis.suspects[0]
        stall = _ReportedStall(begun_s, first.pid, first.cause, diagnosis.verdict)
        if stall != self._reported:
            self._reported = stall
            self._report(seen.at_s - begun_s)

    def _report(self, still_s: float) -> None:
        seen = observe(self._pid, is_enough, still_s=still_s, oom_kills=self._oom_kills)
        diagnosis = judge(seen)
        if diagnosis.verdict is Verdict.HEALTHY or not diagnosis.suspects:  # it recovered while it was inspected
            self._reported = None
            return
        fixes = fixes_of(diagnosis, seen)
        self._number += 1
        try:
            if not self._is_created:  # an existing folder of that name is left alone
                with PrivateFolder(self._folder) as created:
                    self._folder = created.path
                self._is_created = True
            folder = self._folder / f"{self._pid}-{self._number}"
            kept_in = keep(folder, seen, fixes, as_text(diagnosis, fixes, Paper()))
            kept = f"evidence: antifreeze doctor report {one_line(kept_in)}"
        except OSError as error:  # a full disk must not end the watch
            kept = f"could not write the evidence to {one_line(self._folder)}: {error.strerror}"
        stalled_s = still_s + diagnosis.looked_s
        head = f"\nantifreeze doctor: no progress for {stalled_s:.0f} s; the job is not stopped\n\n"
        self._say(f"{head}{as_text(diagnosis, fixes, self._paper)}\n{kept}\n\n")


@contextlib.contextmanager
def _signals_for(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Forward signals to the job, except those of the terminal, which sends Ctrl-C to both."""

    def forward(number: int, _: FrameType | None) -> None:
        process.send_signal(number)

    before = {number: signal.signal(number, forward) for number in _FORWARDED}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # the thread below receives it
    over = threading.Event()
    thread = threading.Thread(target=_forward_interrupts, args=(process, over), name=f"{THREADS}-signals")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(10 * _INTERRUPT_INTERVAL_S)
        while signal.sigtimedwait([signal.SIGINT], 0) is not None:  # sent while the job ended, and not meant for us
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def _forward_interrupts(process: subprocess.Popen[bytes], over: threading.Event) -> None:
    """Forward SIGINT if a process sent it. Only ``sigtimedwait`` says who sent a signal."""
    while not over.is_set():
        found = signal.sigtimedwait([signal.SIGINT], _INTERRUPT_INTERVAL_S)
        if found is not None and found.si_code <= _SENT_BY_PROCESS:
            process.send_signal(signal.SIGINT)


def to_stderr(text: str) -> None:
    """Print a message next to the job's own output."""
    with contextlib.suppress(OSError):  # the reader is gone; the job continues
        print(text, end="", file=sys.stderr, flush=True)
