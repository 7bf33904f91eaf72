"""All that passes between the trainer and a worker. Messages hold positions and texts; data travels in segments."""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

from antifreeze.ipc import Inbox, Opened, Packed, Piece, Slowest, unpack
from antifreeze.payload import PayloadLayout, Settings

OnError = str
"""``"raise"``: a sample that fails ends its task. ``"skip"``: it is left out."""


class Environment(NamedTuple):
    """What a process of ours takes over from the trainer, as it is there now."""

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
    on_error: OnError
    seed: int
    environment: Environment
    payload: PayloadLayout
    """What to load, unless the worker was forked from a process that has loaded it."""
    sends_at_once: bool
    """Whether no result waits for others: its predecessor died, and this one may as well, at the next batch."""


class Task(NamedTuple):
    """One batch to make."""

    epoch: int
    step: int
    seed: int
    """What the random numbers of this epoch start from."""
    what: Any
    """Indices, a share of an iterable, or rows: whatever the program understands; packed if it is not plain."""
    skip: tuple[int, ...] = ()
    """Positions in the batch that are left out."""
    run: int = 0
    """What it was asked in: an epoch that goes on after an error asks anew, and takes no answers to what was before."""


def pieces_of(task: Task) -> list[Piece]:
    """Return where the data of a task stands, if it has any."""
    return task.what.pieces if isinstance(task.what, Packed) else []


def unpacked(task: Task, inbox: Inbox) -> Task:
    """Return the task with what it is about, which may stand in the trainer's memory and is the worker's to change."""
    return task._replace(what=unpack(task.what, inbox)) if isinstance(task.what, Packed) else task


class ShardState(NamedTuple):
    """A place in a share that the dataset's own state leads to."""

    after: int
    """How many batches of the share it stands after."""
    fingerprint: int
    """Of these."""
    state: bytes
    is_end: bool = False
    """True for the state of the dataset after the epoch before: the shard begins with its next iteration."""


class Shard(NamedTuple):
    """What a task of an iterable dataset asks for: the batch with this number of the worker's share."""

    number: int
    fingerprint: int | None = 0
    """Of all batches of the share before it, for a worker that must go on after them; None if it is not known."""
    stand: ShardState | None = None
    """From where it may go on instead of making all of them again: before the last one, which is then made again."""
    is_saved: bool = False
    """Whether all this comes from a state that the user has loaded, and not from a worker that was lost."""
    is_over: bool = False
    """Whether there are no more. The dataset's own state is loaded, and its iteration is run to its end."""


class SkippedSample(NamedTuple):
    """A sample that was left out, and why."""

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
    """What became of a task."""

    epoch: int
    step: int
    packed: Packed | None = None
    """The batch; None if there is none: the task failed, nothing was left of it, or the share has ended."""
    failure: Failure | None = None
    ended: bool = False
    """Whether the share has no more batches: beyond this one, if there is one."""
    skipped: tuple[SkippedSample, ...] = ()
    num_samples: int = 0
    nbytes: int = 0
    times: tuple[tuple[str, float], ...] = ()
    """Seconds for each stage."""
    slowest: Slowest | None = None
    fingerprint: int | None = 0
    stand: ShardState | None = None
    """Where the share stood before the batch, if the dataset has a state of its own."""
    end: bytes | None = None
    """The state of the dataset after its iteration, if that has ended and the dataset has a state."""
    asked: bool = True
    """Whether the dataset has asked which share is its own."""
    run: int = 0
    """That of its task."""


class Tasks(NamedTuple):
    """Trainer to worker: more to do."""

    tasks: list[Task]
    returned: list[int]
    opened: list[Opened]
    dropped: list[int]


class Cancel(NamedTuple):
    """Trainer to worker: nobody waits for the tasks of this run any more."""

    run: int


class Ready(NamedTuple):
    """Worker to trainer: the program is loaded and has started, or why not."""

    failure: Failure | None
    load_s: float


class Results(NamedTuple):
    """Worker to trainer: what was made."""

    results: list[Result]
    returned: list[int]
    opened: list[Opened]
    dropped: list[int]
    imported: tuple[str, ...] = ()
    """Modules that the worker has imported since it was forked from a template, in this order; each is named once."""
