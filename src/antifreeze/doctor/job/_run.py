"""Start a job, watch it, and say why whenever it stands still. It is never stopped and never ended."""

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
from antifreeze.doctor._cgroup import memory_of
from antifreeze.doctor._terminal import Paper
from antifreeze.doctor.job._diagnosis import Verdict
from antifreeze.doctor.job._fix import fixes_of
from antifreeze.doctor.job._kept_reports import keep
from antifreeze.doctor.job._observation import Observation, Snapshot
from antifreeze.doctor.job._observe import Gone, observe, snapshot
from antifreeze.doctor.job._render_diagnosis import as_text
from antifreeze.doctor.job._thread_stacks import THREADS
from antifreeze.doctor.job._verdict import is_enough, judge

_LOOKS = 6
"""How often is looked within the time after which a job counts as standing still."""
_AT_ONCE = 2
_INTERRUPT_S = 0.2
_BY_PROCESS = 0  # SI_USER, and what is less; the kernel's own are greater
_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def run(command: list[str], *, stall_s: float, folder: Path, say: Callable[[str], None], paper: Paper) -> int:
    """Run a command to its end, and return its exit code as a shell does."""
    try:
        process = subprocess.Popen(command)  # noqa: S603  it is the user's own
    except OSError as error:
        say(f"antifreeze doctor: {one_line(command[0])} cannot be started: {error.strerror}\n")
        return 127 if isinstance(error, FileNotFoundError) else 126
    with _signals_for(process), ThreadPoolExecutor(_AT_ONCE) as pool:
        watch = _Watch(process.pid, stall_s, folder, say, paper, pool)
        while True:
            try:
                code = process.wait(timeout=stall_s / _LOOKS)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(Gone):
                    watch.look()
                continue
            return code if code >= 0 else 128 - code


class _Said(NamedTuple):
    """A standstill that was told of."""

    begun_s: float
    pid: int
    cause: Cause
    verdict: Verdict


class _Watch:
    """Looks now and then, closely when nothing has moved, and speaks once for each standstill."""

    def __init__(
        self, pid: int, stall_s: float, folder: Path, say: Callable[[str], None], paper: Paper, pool: ThreadPoolExecutor
    ) -> None:
        self._pid, self._stall_s = pid, stall_s
        # Order: named once, for all evidence of this run; created with the first of it.
        self._folder = with_random_suffix(folder)
        self._is_created = False
        self._say, self._paper, self._pool = say, paper, pool
        self._looks: deque[Snapshot] = deque()
        self._said: _Said | None = None
        self._number = 0
        self._oom_kills = memory_of(pid).oom_kills

    def look(self) -> None:
        """Look once. Diagnose if that makes it long enough."""
        seen = snapshot(self._pid, self._pool)
        if not seen.processes:
            raise Gone
        self._looks.append(seen)
        while len(self._looks) > 2 and seen.at_s - self._looks[1].at_s >= self._stall_s:
            self._looks.popleft()
        looked_s = seen.at_s - self._looks[0].at_s
        if looked_s < self._stall_s:
            return
        begun_s = self._said.begun_s if self._said else self._looks[0].at_s
        diagnosis = judge(Observation(root=self._pid, snapshots=tuple(self._looks), still_s=seen.at_s - begun_s))
        if diagnosis.verdict is Verdict.HEALTHY or not diagnosis.suspects:
            if self._said is not None and seen.find(self._said.pid) is not None:
                self._say("antifreeze doctor: the job goes on\n")
            self._said = None
            return
        first = diagnosis.suspects[0]
        said = _Said(begun_s, first.pid, first.cause, diagnosis.verdict)
        if said != self._said:
            self._said = said
            self._speak(seen.at_s - begun_s)

    def _speak(self, still_s: float) -> None:
        seen = observe(self._pid, is_enough, still_s=still_s, oom_kills=self._oom_kills)
        diagnosis = judge(seen)
        if diagnosis.verdict is Verdict.HEALTHY or not diagnosis.suspects:  # it went on while it was looked at
            self._said = None
            return
        fixes = fixes_of(diagnosis, seen)
        self._number += 1
        try:
            self._create_folder()
            folder = self._folder / f"{self._pid}-{self._number}"
            kept_in = keep(folder, seen, fixes, as_text(diagnosis, fixes, Paper()))
            kept = f"kept: antifreeze doctor report {one_line(kept_in)}"
        except OSError as error:  # a full disk must not end the watch
            kept = f"it could not be kept in {one_line(self._folder)}: {error.strerror}"
        stood_s = still_s + diagnosis.looked_s
        head = f"\nantifreeze doctor: no progress for {stood_s:.0f} s; the job is left alone\n\n"
        self._say(f"{head}{as_text(diagnosis, fixes, self._paper)}\n{kept}\n\n")

    def _create_folder(self) -> None:
        """Create the folder of this run, once; whoever has taken its name meanwhile keeps it."""
        if not self._is_created:
            with PrivateFolder(self._folder) as created:
                self._folder = created.path
            self._is_created = True


@contextlib.contextmanager
def _signals_for(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Pass signals on to the job, but not what comes from the terminal: that sends Ctrl-C to both."""

    def forward(number: int, _: FrameType | None) -> None:
        process.send_signal(number)

    before = {number: signal.signal(number, forward) for number in _FORWARDED}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # it waits for the thread below
    over = threading.Event()
    thread = threading.Thread(target=_forward_interrupts, args=(process, over), name=f"{THREADS}-signals")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(10 * _INTERRUPT_S)
        while signal.sigtimedwait([signal.SIGINT], 0) is not None:  # what came as the job ended is not for us
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def _forward_interrupts(process: subprocess.Popen[bytes], over: threading.Event) -> None:
    """Pass on SIGINT, if a process has sent it. Only whoever waits for a signal is told who sent it."""
    while not over.is_set():
        found = signal.sigtimedwait([signal.SIGINT], _INTERRUPT_S)
        if found is not None and found.si_code <= _BY_PROCESS:
            process.send_signal(signal.SIGINT)


def to_stderr(text: str) -> None:
    """Say something beside the job's own output."""
    with contextlib.suppress(OSError):  # nobody reads it any more; the job goes on
        print(text, end="", file=sys.stderr, flush=True)
