"""The messages between the trainer and the processes that fork others."""

from __future__ import annotations

from typing import Any, NamedTuple


class Preload(NamedTuple):
    """Trainer to fork server: import libraries that all workers need, and answer ``Preloaded``."""

    modules: tuple[str, ...]


class Branch(NamedTuple):
    """Trainer to any server: fork another server. Its channel and stack file are sent with the message."""

    token: int
    name: str


class Prepare(NamedTuple):
    """Trainer to a branch: take over the environment, import modules, load a payload; answer ``Prepared``.

    The payload's descriptors are sent with the message.
    """

    environment: Any
    modules: tuple[str, ...]
    payload: Any = None


class Spawn(NamedTuple):
    """Trainer to any server: fork a worker. Its channel, heartbeat and stack file are sent with the message."""

    token: int
    slot: int


class Terminate(NamedTuple):
    """Trainer to any server: kill a process that it has forked, at once or after a grace period."""

    token: int
    grace_s: float


class Retire(NamedTuple):
    """Trainer to a branch: fork nothing more, and exit after the last forked process has exited."""


class Preloaded(NamedTuple):
    """Fork server to trainer: the requested libraries are imported."""


class Prepared(NamedTuple):
    """Branch to trainer: the requested modules and payload are loaded, or why they are not."""

    failure: Any
    """The error that user code raised while the payload was loaded, or None."""
    unsafe: str
    """Why this process must not be forked; "" if it can be."""
    seconds: float


class Spawned(NamedTuple):
    """Server to trainer: a process was forked."""

    token: int
    pid: int


class Exited(NamedTuple):
    """Server to trainer: a forked process has exited. Negative codes are signals, as in ``subprocess``."""

    token: int
    pid: int
    code: int
