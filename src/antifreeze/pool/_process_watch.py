"""Whether one process of ours makes progress, and if not, why: seen from outside, while it cannot answer.

Problem. A worker or a fork server that does not answer may compute, wait for a slow disk, or never come back. Asking it
does not help: the code that would answer is the code that is stuck. So a process is looked at twice, some time apart,
through the counters of the kernel; what has changed in between is progress. Only when it has made none is more
evidence gathered: its system call, and its Python stacks, which ``faulthandler`` writes from a signal handler whatever
the interpreter does.

Guarantees:

- A process that runs well is never looked at; one that is silent costs a few reads of ``/proc`` each ``LOOK_S``.
- ``find_cause`` takes at most the ``_DUMP_TIMEOUT_S`` for stacks and, at its first look, ``_APART_S``.
- Nobody is blamed for a time in which we did not look: a laptop that slept, a call that held the interpreter's lock.

Assumptions. Counters grow if a process does anything useful; a byte that comes through ``recv`` is not counted, but to
handle it costs CPU time. Two looks of one watch belong to the same silence: its owner drops the watch when the process
has answered.
"""

# Invariant: looks only read. Nothing is asked of the process except its stacks, and these only when a cause is wanted.
# Tried: judging a process by one look. One that loops over short sleeps is then found asleep, like one that is stuck.
# Tried: py-spy and ptrace. They need permissions that containers do not give, and stop the process meanwhile.
# Rejected: a thread in the process that answers. It does not run while native code holds the interpreter's lock, which
# is one of the stalls to be explained.

from __future__ import annotations

import contextlib
import os
import time

from antifreeze.core import Deadline
from antifreeze.diagnosis import Finding, Look, evidence_of, find_cause, parse_stack, read_counters, read_proc
from antifreeze.worker import DUMP_SIGNAL

LOOK_S = 0.5
"""Looks are this far apart."""
_APART_S = 0.3
"""Two looks that are compared for evidence are at least this far apart."""
_DUMP_TIMEOUT_S = 0.5
_STACK_NBYTES = 1 << 16
_CANNOT_DUMP = ("T", "t", "D", "Z")
"""States in which a process runs no signal handler."""


class ProcessWatch:
    """Looks at one process, from the moment it is made. Used by one thread at a time.

    ``stacks`` is the file that its ``faulthandler`` writes to, below 0 if there is none. With children, the programs
    that it has started count as its progress; CPU time of ``noise_s`` between two looks does not.
    """

    def __init__(self, pid: int, stacks: int, *, with_children: bool = True, noise_s: float = 0.0) -> None:
        self._pid = pid
        self._stacks = stacks
        self._with_children = with_children
        self._noise_s = noise_s
        self.warnings = 0
        """How many warnings the owner of this watch has given."""
        self.since_s = self.moved_s = time.monotonic()
        self._before: Look | None = None
        self._last = self._look(self.since_s)

    @property
    def state(self) -> str:
        """The state of the process at the last look, as one letter; empty if it is gone."""
        return self._last.counters.state if self._last.counters else ""

    @property
    def at_s(self) -> float:
        """When the last look was taken."""
        return self._last.at_s

    def observe(self, now_s: float) -> None:
        """Take another look, unless the last one was taken just now."""
        if now_s - self._last.at_s < LOOK_S:
            return
        self._before, self._last = self._last, self._look(now_s)
        before, after = self._before.counters, self._last.counters
        if before and after and after.moved_since(before, self._noise_s):
            self.moved_s = now_s

    def find_cause(self, stage: str) -> Finding:
        """Return why the process makes no progress. ``stage`` is where it is, in the words of ``Evidence``."""
        # Order: the stacks before the last look. The signal interrupts what the process waits in; once the dump is
        # complete, it is back there.
        text = "" if self.state in _CANNOT_DUMP else ask_for_stacks(self._pid, self._stacks)
        # The look that is at hand is compared, if it is old enough, so that a warning does not hold up its caller.
        first = self._last
        if time.monotonic() - first.at_s < _APART_S and self._before is not None:
            first = self._before
        left_s = _APART_S - (time.monotonic() - first.at_s)
        if left_s > 0:
            time.sleep(left_s)
        now = self._look(time.monotonic())
        return find_cause(evidence_of(self._pid, first, now, stage=stage, frames=parse_stack(text)))

    def _look(self, now_s: float) -> Look:
        return Look(now_s, read_counters(self._pid, alone=not self._with_children), read_proc(self._pid))


def ask_for_stacks(pid: int, stacks: int) -> str:
    """Return the stacks of all threads of a process, or nothing if it does not write them in time."""
    if not pid or stacks < 0:
        return ""
    before = os.fstat(stacks).st_size
    with contextlib.suppress(OSError):
        os.kill(pid, DUMP_SIGNAL)
    # A process whose main thread is stuck in native code never runs the Python handlers of signals; faulthandler's is
    # native, and its end is not announced. So the file is watched until it has stopped growing.
    deadline, size = Deadline.after(_DUMP_TIMEOUT_S), before
    while not deadline.passed:
        time.sleep(0.01)
        now = os.fstat(stacks).st_size
        if now == size > before:  # it has begun to write, and has stopped
            break
        size = now
    return read_stacks(stacks, before)


def read_stacks(stacks: int, start: int = 0) -> str:
    """Return what ``faulthandler`` has written since."""
    with contextlib.suppress(OSError):
        return os.pread(stacks, _STACK_NBYTES, start).decode(errors="replace")
    return ""
