"""All that passes between the trainer and the processes that fork others."""

from __future__ import annotations

from typing import Any, NamedTuple


class Preload(NamedTuple):
    """Trainer to fork server: import libraries that all workers need, and answer ``Preloaded``."""

    modules: tuple[str, ...]


class Branch(NamedTuple):
    """Trainer to any server: fork a server of its kind. Its channel and its stack file come with the message."""

    token: int
    name: str


class Prepare(NamedTuple):
    """Trainer to a branch: take over the environment, import modules, load a payload; answer ``Prepared``.

    The payload's descriptors come with the message.
    """

    environment: Any
    modules: tuple[str, ...]
    payload: Any = None


class Spawn(NamedTuple):
    """Trainer to any server: fork a worker. Its channel, heartbeat and stack file come with the message."""

    token: int
    slot: int


class Terminate(NamedTuple):
    """Trainer to any server: end a process that it has forked, at once or when its grace is over."""

    token: int
    grace_s: float


class Retire(NamedTuple):
    """Trainer to a branch: fork nothing more, and exit with the last process that was forked."""


class Preloaded(NamedTuple):
    """Fork server to trainer: it has imported what it was told to."""


class Prepared(NamedTuple):
    """Branch to trainer: it has imported and loaded what it was told to, or why it has not."""

    failure: Any
    """What user code raised while the payload was loaded; None if nothing."""
    unsafe: str
    """Why no process may be forked from this one; empty if it is safe."""
    seconds: float


class Spawned(NamedTuple):
    """Server to trainer: the process that it has forked."""

    token: int
    pid: int


class Exited(NamedTuple):
    """Server to trainer: the end of a process that it had forked. Negative codes are signals, as in ``subprocess``."""

    token: int
    pid: int
    code: int
