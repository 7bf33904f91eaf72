"""The messages between the trainer and a worker. They hold positions and text; data is sent in segments."""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

from antifreeze.ipc import Opened, Packed, Slowest
from antifreeze.payload import PayloadLayout, Settings


class Environment(NamedTuple):
    """What a process of ours takes over from the trainer, at the time of its start."""

    owner_pid: int
    sys_path: list[str]
    argv: list[str]
    cwd: str
    environ: dict[str, str]
    settings: Settings


class Start(NamedTuple):
    """The first message to a worker."""

    slot: int
    num_workers: int
    on_error: str
    """``"raise"``: a failing sample fails its task. ``"skip"``: it is skipped."""
    seed: int
    environment: Environment
    payload: PayloadLayout
    """What to load, unless the template process has loaded it."""
    sends_at_once: bool
    """Whether results are sent one by one: its predecessor was lost, and it may be lost too, at the next batch."""


class Task(NamedTuple):
    """One batch to make."""

    epoch: int
    step: int
    seed: int
    """Seed of this epoch."""
    what: Any
    """Indices, a ``Shard``, or rows, as the program expects; packed if it is not plain data."""
    skip: tuple[int, ...] = ()
    """Positions in the batch that are skipped."""
    run: int = 0
    """Number of the run it belongs to. An epoch that resumes after an error is a new run, and ignores older results."""


class ShardState(NamedTuple):
    """A position in a shard that the dataset's saved state leads to."""

    after: int
    """Number of batches of the shard before it."""
    fingerprint: int
    """Fingerprint of these batches."""
    state: bytes
    is_end: bool = False
    """True for the state at the end of the previous epoch: the shard starts with the next iteration."""


class Shard(NamedTuple):
    """What a task of an iterable dataset requests: the batch with this number of the worker's shard."""

    number: int
    fingerprint: int | None = 0
    """Fingerprint of all earlier batches, for a worker that resumes after them; None if unknown."""
    stand: ShardState | None = None
    """State to resume from instead of replaying everything: before the last batch, which is then made again."""
    is_saved: bool = False
    """Whether this comes from a state that the user has loaded, and not from a lost worker."""
    is_over: bool = False
    """Whether it is exhausted. The dataset's state is loaded, and its iteration is run to its end."""


class SkippedSample(NamedTuple):
    """A skipped sample, and why it was skipped."""

    position: int
    sample: str
    reason: str


class FailureReason(enum.Enum):
    """What kind of failure it is. Set where the error is raised, so that nobody has to guess from its text or class."""

    RAISED = "raised"
    """User code raised an exception."""
    RETURNED_NONE = "returned-none"
    """A function returned None where it must return a value."""
    NOT_PICKLABLE = "not-picklable"
    """The batch could not be pickled."""
    NOT_REPEATABLE = "not-repeatable"
    """An iterable dataset yielded other samples when another worker iterated over it again."""
    NOT_AS_SAVED = "not-as-saved"
    """An iterable dataset yielded other samples than before a state was saved."""


class Failure(NamedTuple):
    """A failure of user code, in a form that can always be sent."""

    what: str
    """The call, as messages name it: ``dataset[13]``, ``collate_fn``."""
    sample: str
    position: int
    """Of the sample in its batch; -1 if it is not about one sample."""
    kind: str
    message: str
    traceback: str
    explanation: str = ""
    """What was found out about the samples, if anything."""
    module: str = ""
    """The module that could not be imported, if that is what happened."""
    error: bytes | None = None
    """The exception itself, if it can be rebuilt."""
    error_class: bytes | None = None
    """Its class, if that can be sent."""
    can_skip: bool = False
    reason: FailureReason = FailureReason.RAISED


class Result(NamedTuple):
    """The outcome of a task."""

    epoch: int
    step: int
    packed: Packed | None = None
    """The batch; None if the task failed, all its samples were skipped, or the shard is exhausted."""
    failure: Failure | None = None
    ended: bool = False
    """Whether the shard has no more batches beyond this one."""
    skipped: tuple[SkippedSample, ...] = ()
    num_samples: int = 0
    nbytes: int = 0
    times: tuple[tuple[str, float], ...] = ()
    """Seconds spent in each stage."""
    slowest: Slowest | None = None
    fingerprint: int | None = 0
    stand: ShardState | None = None
    """Position of the shard before the batch, if the dataset saves its state."""
    end: bytes | None = None
    """The state of the dataset after its iteration, if that has ended and the dataset saves its state."""
    asked: bool = True
    """Whether the dataset has read its worker's ID or the number of workers."""
    run: int = 0
    """The run of its task."""


class Tasks(NamedTuple):
    """Trainer to worker: more tasks."""

    tasks: list[Task]
    returned: list[int]
    opened: list[Opened]
    dropped: list[int]


class Cancel(NamedTuple):
    """Trainer to worker: this run was abandoned."""

    run: int


class Ready(NamedTuple):
    """Worker to trainer: the program is loaded and has started, or why not."""

    failure: Failure | None
    load_s: float


class Results(NamedTuple):
    """Worker to trainer: finished tasks."""

    results: list[Result]
    returned: list[int]
    opened: list[Opened]
    dropped: list[int]
    imported: tuple[str, ...] = ()
    """Modules that the worker has imported since it was forked from a template, in import order, each named once."""
