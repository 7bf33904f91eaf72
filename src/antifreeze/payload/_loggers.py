"""Configures the loggers of a worker like those of the trainer, so that logs of user code are not lost."""

from __future__ import annotations

import contextlib
import logging
import pickle
import sys
from typing import Any, NamedTuple

from antifreeze.payload._safe_unpickle import rebuilt


class _Output(NamedTuple):
    """A handler that writes to a stream of the process, or to a file."""

    target: str
    """``stdout``, ``stderr`` or an absolute path."""
    encoding: str | None
    level: int
    formatter: Any
    filters: list[Any]


class Log(NamedTuple):
    """The configuration of a logger."""

    name: str
    level: int
    propagate: bool
    disabled: bool
    outputs: list[bytes]
    """Each is pickled separately: formatters and filters may be of classes that a worker does not have."""


def log_settings() -> list[Log]:
    """Return the configuration of the loggers of this process, as far as a worker can have the same."""
    others = [found for found in list(logging.root.manager.loggerDict.values()) if isinstance(found, logging.Logger)]
    found = []
    for logger in (logging.root, *others):
        outputs = []
        for output in filter(None, map(_output, list(logger.handlers))):
            with contextlib.suppress(Exception):  # border: formatters and filters of the user may not be picklable
                outputs.append(pickle.dumps(output))
        if logger is logging.root or logger.level or outputs or logger.disabled or not logger.propagate:
            found.append(Log(logger.name, logger.level, logger.propagate, logger.disabled, outputs))
    return found


def _output(handler: logging.Handler) -> _Output | None:
    rest = (handler.level, handler.formatter, list(handler.filters))
    if isinstance(handler, logging.FileHandler):
        return _Output(handler.baseFilename, handler.encoding, *rest)
    if type(handler) is logging.StreamHandler:
        streams = {"stdout": (sys.stdout, sys.__stdout__), "stderr": (sys.stderr, sys.__stderr__)}
        for name, known in streams.items():
            if any(handler.stream is stream for stream in known):
                return _Output(name, None, *rest)
    return None


def set_logs(settings: list[Log]) -> None:
    """Configure loggers. One that has handlers got them during an import, and keeps them."""
    for log in settings:
        logger = logging.root if log.name == logging.root.name else logging.getLogger(log.name)
        logger.setLevel(log.level)
        logger.propagate, logger.disabled = log.propagate, log.disabled
        if not logger.handlers:
            for blob in log.outputs:
                with contextlib.suppress(Exception):  # border: classes that do not exist here
                    logger.addHandler(_made(rebuilt(blob)))


def _made(output: _Output) -> logging.Handler:
    handler: logging.Handler
    if output.target.startswith("/"):
        handler = logging.FileHandler(output.target, "a", output.encoding, delay=True)
    else:
        handler = logging.StreamHandler(getattr(sys, output.target))
    handler.setLevel(output.level)
    handler.setFormatter(output.formatter)
    for each in output.filters:
        handler.addFilter(each)
    return handler
