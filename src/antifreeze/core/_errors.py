"""The tree of errors: one class per meaning, facts as attributes, a hint that can be acted on.

AntifreezeError
├── InputError               a request that cannot be fulfilled
│   ├── ConfigError          an argument has a wrong value           (also ValueError)
│   ├── SourceNotFound       no such directory, file or match        (also FileNotFoundError)
│   ├── UnknownColumn        a column that the data does not have    (also KeyError)
│   ├── SchemaMismatch       files whose columns differ              (also ValueError)
│   ├── SourceChanged        the files are not those that were indexed
│   ├── ManifestError        the manifest is damaged or of another version
│   ├── NotPicklable         something that cannot be sent to a worker        (also TypeError)
│   ├── DuplicateData        an iterable dataset that gives every worker the same samples
│   └── StateMismatch        a state that this loader cannot resume from     (also ValueError)
├── DataError                a file's contents could not be read
│   ├── CorruptFile          not Parquet, truncated, a page that does not decode
│   ├── UnreadableFile       the system refuses to read it          (also OSError)
│   ├── NullValue            a null where no fill value was given    (also ValueError)
│   ├── RaggedColumn         rows of different lengths where one length was expected
│   └── TooLarge             a page, row or window that does not fit in memory_limit (also MemoryError)
├── UserCodeError            a dataset, transform or collate function raised; its error is the cause
├── NotRepeatable            an iterable dataset cannot resume where a lost worker stopped
├── WorkerDied               workers exited repeatedly                       (also RuntimeError)
└── Stalled                  no progress for longer than the limit   (also TimeoutError, RuntimeError)
"""

from __future__ import annotations

import errno
import functools
import resource
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from antifreeze.core._redaction import redact_addresses
from antifreeze.core._text import clean_lines, indented, one_line

_MAX_MESSAGE_CHARS = 4_000


def _without_credentials(fact: Any) -> Any:
    """Return a fact for programs: unchanged, except for users and passwords in addresses."""
    if type(fact) is str:
        return redact_addresses(fact)
    if type(fact) is dict:
        return {name: _without_credentials(value) for name, value in fact.items()}
    return type(fact)(map(_without_credentials, fact)) if type(fact) in (tuple, list) else fact


class AntifreezeError(Exception):
    """Base class of all errors that antifreeze raises on purpose. Catch this one to catch all.

    The facts behind the message (``file``, ``row_group``, ``row``, ``column``, ...) are attributes, so that a
    program can act on them without reading the text. They are as found: a name with a line break in it keeps it. Only
    users, passwords and signatures in addresses are removed.

    The text is safe to print and to log: names and messages that it is built from cannot add a line to it, control a
    terminal, or make it long, and what looks like a secret is hidden.

    Args:
        message: The problem, on one line. A line break in it can only come from a fact, and is shown as ``\\n``.
        hint: What to do, on one line.
        lines: More about the problem, each shown on its own line below it.
        **facts: Set as attributes.

    Attributes:
        message (str): The problem, with its further lines.
        hint (str): What to do; empty if there is nothing to advise.
        lines (tuple[str, ...]): The further lines.
        facts (dict[str, Any]): All facts by name; each is an attribute as well.

    Example:
        ```python
        import antifreeze as af

        try:
            af.StreamingDataset("data/train", columns=["idz"])
        except af.UnknownColumn as error:
            print(error.column, error.hint)
        ```
    """

    retry: Any = None
    """What can be retried without the failed part; for internal use."""

    def __init__(self, message: str, *, hint: str = "", lines: Iterable[str] = (), **facts: Any) -> None:
        # Invariant: only here does an error become text, and the only line breaks in it are those added here.
        self._problem = one_line(message, _MAX_MESSAGE_CHARS)
        self.lines = tuple(clean_lines(lines))
        self.message = self._problem + indented(self.lines, by="  ")
        self.hint = one_line(hint, _MAX_MESSAGE_CHARS)
        # Not super(): an error that is also of the user's kind must not run that kind's constructor.
        Exception.__init__(self, f"{self.message}\n  hint: {self.hint}" if hint else self.message)
        self.facts = {name: _without_credentials(value) for name, value in facts.items()}
        for name, value in self.facts.items():
            setattr(self, name, value)

    # Exceptions pickle by replaying ``args``, which would lose the facts and print the hint twice.
    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(type(self), self._problem, hint=self.hint, lines=self.lines, **self.facts), ()

    def __str__(self) -> str:
        # KeyError would print the repr of the message, line breaks and all.
        return Exception.__str__(self) if not isinstance(self, KeyError) else str(self.args[0])


class InputError(AntifreezeError):
    """A request that cannot be fulfilled; base class of errors about arguments, sources and states."""


class ConfigError(InputError, ValueError):
    """An argument has a wrong value."""

    argument: str
    """Name of the argument."""


class SourceNotFound(InputError, FileNotFoundError):
    """There is no such directory or file, or nothing in it matches."""

    path: str
    """Path or pattern that was looked for."""


class UnknownColumn(InputError, KeyError):
    """The data does not have a column of this name."""

    column: str
    """Name of the missing column."""


class SchemaMismatch(InputError, ValueError):
    """Files of one dataset, or datasets of one mixture, do not have the same columns."""

    file: str
    """File that differs."""


class SourceChanged(InputError):
    """The files are not those that were indexed."""

    changed: tuple[str, ...]
    """Files with another size or time."""
    vanished: tuple[str, ...]
    """Files that are missing."""
    appeared: tuple[str, ...]
    """Files that are new."""


class ManifestError(InputError):
    """The manifest is damaged or of another version."""

    path: str
    """Path of the manifest."""


class NotPicklable(InputError, TypeError):
    """An object cannot be sent to a worker process, or back from it."""

    path: str
    """Where the object is, such as ``dataset.client``."""


class DuplicateData(InputError):
    """An iterable dataset yields the same samples in every worker, so each would be delivered once per worker."""


class StateMismatch(InputError, ValueError):
    """A state does not match the loader that should resume from it."""

    differences: Mapping[str, tuple[Any, Any]] = MappingProxyType({})
    """For each name, what the state says and what the loader has."""


class DataError(AntifreezeError):
    """The file's contents could not be read; base class of errors about data."""

    file: str
    """Path of the file."""


class CorruptFile(DataError):
    """The file is not Parquet, is truncated, or has a page that cannot be decoded."""

    row_group: int | None
    """Number of the row group; None if it is about the whole file."""


class UnreadableFile(DataError, OSError):
    """The file exists, but the system refuses to read it: permissions, open-file limit, a failing disk."""


class NullValue(DataError, ValueError):
    """A column has a null, and no fill value was given."""

    column: str
    """Name of the column."""
    row: int
    """Number of the row in its file."""


class RaggedColumn(DataError):
    """A list column has rows of different lengths where one length was expected."""

    column: str
    """Name of the column."""
    row: int
    """Number of the row in its file."""


class TooLarge(DataError, MemoryError):
    """A page, a row, a batch or a shuffle window needs more memory than ``memory_limit`` allows."""

    nbytes: int
    """Bytes that it would need, or more."""
    limit: int
    """Bytes that are allowed."""


class UserCodeError(AntifreezeError):
    """The user's dataset, transform or collate function raised.

    The error is also of the type that the user's code raised, so ``except ValueError`` works; ``__cause__`` is the
    original.
    """

    step: int
    """Number of the batch in its epoch."""


class NotRepeatable(AntifreezeError):
    """A worker was lost, and the iterable dataset did not give its replacement the same samples again."""

    worker: int
    """Number of the worker."""


class WorkerDied(AntifreezeError, RuntimeError):
    """A worker process exited, and so did those that replaced it."""

    worker: int
    """Number of the worker."""
    cause: str
    """Name of the cause; ``antifreeze explain`` explains it."""


class Stalled(AntifreezeError, TimeoutError, RuntimeError):
    """No progress for longer than the limit."""

    silent_s: float
    """Seconds without progress."""


# Tracebacks name an error by its module; users find it under the name of the package.
for _error in [value for value in globals().values() if isinstance(value, type) and issubclass(value, AntifreezeError)]:
    _error.__module__ = "antifreeze"


# -- limits of the system ------------------------------------------------------------------------------------------

_FILES = (errno.EMFILE, errno.ENFILE)
_SPACE = (errno.ENOSPC, errno.EDQUOT)


def limit_hint(error: OSError) -> str:
    """Return what to do about a limit that was reached; nothing if the error is of another kind."""
    if error.errno in _FILES:
        return (
            f"raise the limit on open files, which is {_limit(resource.RLIMIT_NOFILE)}, with `ulimit -n 4096`, or use "
            "fewer workers"
        )
    if error.errno == errno.EAGAIN:
        return (
            f"raise the limit on processes and threads (`ulimit -u`, which is {_limit(resource.RLIMIT_NPROC)}; the "
            "container's pids limit, `docker run --pids-limit`), or use fewer workers"
        )
    if error.errno == errno.EFBIG:
        return (
            f"raise the limit on the size of files, which is {_limit(resource.RLIMIT_FSIZE)} bytes and holds for "
            "shared memory, too: `ulimit -f unlimited`; or use a smaller batch_size"
        )
    if error.errno == errno.ENOMEM:
        return "free memory, give the job more, or use fewer workers"
    if error.errno in _SPACE:
        return "free space where the file is, or write elsewhere"
    return ""


def _limit(which: int) -> str:
    soft = resource.getrlimit(which)[0]
    return "not set" if soft == resource.RLIM_INFINITY else str(soft)
