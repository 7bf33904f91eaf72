"""The closed list of reasons for which a worker process is stalled or gone, each with a hint."""

from __future__ import annotations

import enum
import signal
from typing import Self


class Cause(enum.Enum):
    """Why a worker is stalled or gone. The value is the name under which the documentation explains it."""

    title: str
    """What the worker does, for a message: worker 3 ..."""
    hint: str
    """What to do about it."""

    def __new__(cls, slug: str, title: str = "", *hint: str) -> Self:
        """Make a member whose value is its slug. ``Cause("lock")`` finds it. The parts of the hint are joined."""
        cause = object.__new__(cls)
        cause._value_ = slug
        cause.title, cause.hint = title, " ".join(hint)
        return cause

    KILLED = (
        "killed",
        "was killed by SIGKILL or another signal from outside",
        "The signal came from a person, the scheduler, or an out-of-memory killer that this container",
        "cannot see. Look at `dmesg` on the host and at the scheduler's log; if memory was short, use fewer",
        "workers.",
    )
    OUT_OF_MEMORY = (
        "out-of-memory",
        "was killed by SIGKILL because memory ran out",
        "`dmesg | grep -i oom` names the memory limit that was hit. Use fewer workers, a smaller batch_size or",
        "prefetch_factor, or give the job more memory.",
    )
    CRASHED = (
        "crashed",
        "crashed in native code",
        "A native library that the dataset uses failed: load the named sample in a separate process,",
        "with `python -X faulthandler`. After SIGBUS, look whether a mapped file was cut or its disk is full.",
    )
    EXITED = (
        "exited",
        "exited in the middle of its work",
        "Something called `sys.exit` or `os._exit`, or an interpreter ended with an error: look for it in the",
        "dataset and its libraries, and for a traceback on stderr. Raise an exception instead; it is reported",
        "with its sample.",
    )
    STOPPED = (
        "stopped",
        "is stopped (SIGSTOP)",
        "A person, job control or a checkpoint tool stopped or froze it. `kill -CONT` with its process id",
        "resumes it; a control group that is frozen must be thawed.",
    )
    TRACED = (
        "traced",
        "is held by a debugger",
        "A debugger or tracer (gdb, strace, py-spy without --nonblocking) holds it. Resume it or detach.",
    )
    DEAD_DISK = (
        "dead-disk",
        "waits for a disk or network file system that does not answer",
        "Not even SIGKILL ends such a wait. Try `ls` on the mount from another shell; look at `dmesg` for I/O",
        "errors and at the NFS, Lustre or FUSE server behind it.",
    )
    SLEEPING = (
        "sleeping",
        "sleeps",
        "The line that is named calls a sleep: often the pause before another try of something that failed.",
        "Bound the number of tries and raise the last error.",
    )
    NETWORK = (
        "network",
        "waits for a network peer",
        "The peer does not answer and the call has no timeout. Give sockets and clients one (`timeout=`,",
        "`socket.setdefaulttimeout(30)`), and check that the peer can be reached from this machine.",
    )
    LOCK = (
        "lock",
        "waits for a lock or for another thread",
        "Another thread or process holds what it waits for: two locks taken in different orders, a lock of a",
        "worker that was killed, or a thread that has ended. Take locks in one order and with a timeout, and share",
        "none between workers.",
    )
    FORK = (
        "fork",
        "waits for a thread or a lock that was lost when the process was forked",
        "A fork copies one thread: pools that were in use before have no threads in it, and locks that others held",
        'stay locked. Start workers another way (`multiprocessing_context="forkserver"`, `antifreeze.DataLoader`),',
        "or use the library only inside of workers.",
    )
    FULL_PIPE = (
        "full-pipe",
        "writes into a pipe that nobody reads",
        "The reader of the output of this job (stdout, stderr or another pipe) has stopped reading.",
        "Read it, send it to a file, or print less in the dataset.",
    )
    CHILD = (
        "child",
        "waits for another process",
        "A program that it started, or the other end of a pipe, does not finish. Give the call a limit, such as",
        "`subprocess.run(..., timeout=60)`, and read the output of the program while it runs.",
    )
    FILE = (
        "file",
        "waits for a file",
        "The file system is slow or does not answer. Read the file that is named from another shell; if that",
        "takes as long, copy the data to a local disk.",
    )
    BUSY = (
        "busy",
        "keeps computing",
        "The line that is named has not returned: a loop without an end, a sample of extreme size, or native code",
        "that may hold the interpreter's lock. Try that sample alone, and set a longer limit if it is only slow.",
    )
    RETRYING = (
        "retrying",
        "keeps retrying",
        "It works a little, waits, and works again without getting anywhere: usually a retry loop around a",
        "service that is down. Bound the number of tries and raise the last error.",
    )
    INPUT = (
        "input",
        "waits for user input",
        "It is at a prompt: a debugger such as pdb, or `input()`. Answer it, or take the call out of the program.",
    )
    RANK = (
        "rank",
        "waits for the other ranks",
        "Every rank must call the same collectives equally often. Look at the rank that is not there: it may have",
        "fewer batches (give all equally many, or use `torch.distributed.algorithms.Join`), or be stalled itself.",
    )
    LOST_BATCH = (
        "lost-batch",
        "waits for a batch that was lost on its way from a worker",
        "A worker could not pickle a batch or an exception; the traceback with `_feed` in it is on stderr, and",
        "the loader is never notified. Return arrays, tensors and numbers only, and raise exceptions that can be",
        "pickled.",
    )
    SHARED_MEMORY = (
        "shared-memory",
        "waits for a batch that found no room in /dev/shm",
        "Give the container more (`docker run --shm-size=8g`, or an emptyDir with `medium: Memory` mounted there),",
        "or use smaller batches and fewer workers. `antifreeze.DataLoader` needs no room there.",
    )
    UNNOTICED_DEATH = (
        "unnoticed-death",
        "waits for a worker that is gone",
        "The job ignores SIGCHLD, so it does not notice that a worker has ended. Take",
        "`signal.signal(signal.SIGCHLD, signal.SIG_IGN)` out of it, and look at `dmesg` for what ended the worker.",
    )
    LEAK = (
        "leak",
        "exceeds its memory limit",
        "Something in the dataset keeps what it loads: a cache without a limit, a list that grows, a file that",
        "stays open. Bound it, or give a higher limit.",
    )
    STARTUP = (
        "startup",
        "has not reached its first task",
        "Importing a module or unpickling the dataset does not end. Look at what runs at import, at",
        "`__setstate__` and at worker_init_fn, and keep large data out of the dataset's attributes.",
    )
    ORPHANED = (
        "orphaned",
        "was killed together with its fork server",
        "The fork server or the template (`af-forkserver`, `af-template` in `top`) was killed, and the kernel",
        "kills workers with it. Look at `dmesg` and at the scheduler's log if it was not you.",
    )
    UNKNOWN = (
        "unknown",
        "is stalled for an unknown reason",
        "Look at it from outside: `py-spy dump --native --pid` with its process id shows the line of every thread.",
    )


CRASHES = {
    signal.SIGSEGV: "segmentation fault",
    signal.SIGBUS: "bus error",
    signal.SIGABRT: "aborted by itself",
    signal.SIGFPE: "arithmetic error",
    signal.SIGILL: "illegal instruction",
    signal.SIGTRAP: "trap",
    signal.SIGSYS: "forbidden system call",
}
"""The signals that a process causes itself, as messages describe them."""


def describe_exit(exit_code: int) -> str:
    """Return how a process ended. A negative code is the signal that ended it, as in ``subprocess``."""
    if exit_code >= 0:
        return f"exited with exit code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:  # a real-time signal has no name
        return f"killed by signal {-exit_code}"
    if words := CRASHES.get(signal.Signals(-exit_code)):
        return f"crashed with {name} (signal {-exit_code}), {words}"
    return f"killed by {name} (signal {-exit_code})"
