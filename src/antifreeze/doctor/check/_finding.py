"""What a check finds: a stable code, a place, the reason in a sentence, and what to change."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Self


class Weight(enum.IntEnum):
    """How bad it is. The smaller, the earlier it is shown."""

    FREEZE = 0
    """The loader can freeze, or deliver wrong data without a word."""
    ERROR = 1
    """It ends with an error, often one that names something else."""
    WASTE = 2
    """It works, and costs time or memory."""

    @property
    def words(self) -> str:
        """What to expect, for a person."""
        return ("can freeze or give wrong data", "will fail", "costs time or memory")[self]


class Code(enum.Enum):
    """What can be found. The value is the name that people see; names never change their meaning."""

    section: str
    """The section of the troubleshooting page that explains it."""
    weight: Weight

    def __new__(cls, name: str, weight: Weight, section: str) -> Self:
        """Make a member whose value is its name."""
        code = object.__new__(cls)
        code._value_ = name
        code.weight, code.section = weight, section
        return code

    SHARED_LOCK = ("shared-lock", Weight.FREEZE, "lock")
    SHARED_THREAD = ("shared-thread", Weight.FREEZE, "fork")
    SHARED_FILE = ("shared-file", Weight.FREEZE, "notpicklable")
    SHARED_CONNECTION = ("shared-connection", Weight.FREEZE, "notpicklable")
    SHARED_ITERATOR = ("shared-iterator", Weight.FREEZE, "notpicklable")
    FORKED_LIBRARY = ("forked-library", Weight.FREEZE, "fork")
    FORKED_OPENMP = ("forked-openmp", Weight.FREEZE, "fork")
    TOKENIZERS = ("tokenizers-parallelism", Weight.FREEZE, "fork")
    SIGCHLD = ("sigchld-ignored", Weight.FREEZE, "unnoticed-death")
    ENDLESS_RETRY = ("endless-retry", Weight.FREEZE, "retrying")
    NO_TIMEOUT = ("no-timeout", Weight.FREEZE, "network")
    LOCAL_ERROR = ("local-error", Weight.FREEZE, "lost-batch")
    NOT_DATA = ("not-data", Weight.FREEZE, "lost-batch")
    STOP_ITERATION = ("stop-iteration", Weight.FREEZE, "usercodeerror")
    DUPLICATES = ("duplicates", Weight.FREEZE, "duplicatedata")
    SAME_RANDOM = ("same-random", Weight.FREEZE, "what-doctor-check-finds")
    SMALL_SHM = ("small-shm", Weight.FREEZE, "shared-memory")
    NONE_SAMPLE = ("none-sample", Weight.ERROR, "usercodeerror")
    EXIT_IN_WORKER = ("exit-in-worker", Weight.ERROR, "exited")
    CUDA_IN_WORKER = ("cuda-in-worker", Weight.ERROR, "what-doctor-check-finds")
    MAIN_GUARD = ("main-guard", Weight.ERROR, "what-doctor-check-finds")
    NOT_PICKLABLE = ("not-picklable", Weight.ERROR, "notpicklable")
    NEEDS_WORKERS = ("needs-workers", Weight.ERROR, "what-doctor-check-finds")
    FEW_FILES = ("few-files", Weight.ERROR, "unreadablefile")
    LITTLE_MEMORY = ("little-memory", Weight.ERROR, "out-of-memory")
    STALE_SHM = ("stale-shm", Weight.WASTE, "what-doctor-check-finds")
    PYTHON_LIST = ("python-list", Weight.WASTE, "memory-grows")
    MANY_WORKERS = ("many-workers", Weight.WASTE, "what-doctor-check-finds")
    MANY_THREADS = ("many-threads", Weight.WASTE, "training-is-slow-but-the-loader-alone-is-fast")
    BATCH_SIZE_1 = ("batch-size-1", Weight.WASTE, "what-doctor-check-finds")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckFinding:
    """One thing that will bite. Without a file it is about the machine."""

    code: Code
    reason: str
    change: str
    """What to do: lines of a diff or of code, or a sentence."""
    file: str = ""
    line: int = 0
    column: int = 0
    """Counted from 1, as editors do."""

    @property
    def link(self) -> str:
        """The command that explains it."""
        return f"antifreeze explain {self.code.value}"

    @property
    def place(self) -> str:
        """The file with line and column, which editors and terminals can jump to."""
        return f"{self.file}:{self.line}:{self.column}" if self.file else "this machine"


def by_weight(findings: list[CheckFinding]) -> list[CheckFinding]:
    """Return each finding once, the most important first."""
    order = sorted(findings, key=lambda f: (f.code.weight, f.file, f.line, f.column, f.code.value))
    return list(dict.fromkeys(order))
