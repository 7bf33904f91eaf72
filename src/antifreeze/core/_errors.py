"""The tree of errors: one class per meaning, facts as attributes, a hint that can be acted on.

AntifreezeError
├── InputError               the request cannot be fulfilled
│   ├── ConfigError          an argument has a wrong value           (also ValueError)
│   ├── SourceNotFound       no such directory, file or match        (also FileNotFoundError)
│   ├── UnknownColumn        a column that the data does not have    (also KeyError)
│   ├── SchemaMismatch       files whose columns differ              (also ValueError)
│   ├── SourceChanged        the files are not those that were indexed
│   ├── ManifestError        the manifest is damaged or of another version
│   ├── NotPicklable         something that cannot be sent to a worker        (also TypeError)
│   ├── DuplicateData        an iterable dataset that yields the same samples in every worker
│   └── StateMismatch        a state that this loader cannot resume from   (also ValueError)
├── DataError                the contents of a file cannot be read
│   ├── CorruptFile          not Parquet, truncated, a page that does not decode
│   ├── UnreadableFile       the system cannot read it                (also OSError)
│   ├── NullValue            a null where no fill value was given    (also ValueError)
│   ├── RaggedColumn         rows of different lengths where one length was expected
│   └── TooLarge             a page, row or window that does not fit in memory_limit (also MemoryError)
├── UserCodeError            a dataset, transform or collate function raised; its error is the cause
├── NotRepeatable            an iterable dataset cannot resume where a lost worker stopped
├── WorkerDied               worker processes exited repeatedly                (also RuntimeError)
└── Stalled                  no progress for longer than the limit (also TimeoutError, RuntimeError)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from antifreeze.core._redaction import redact_addresses
from antifreeze.core._text import clean_lines, indented, one_line

_MAX_MESSAGE_CHARS = 4_000


def _rebuild(
    kind: type[AntifreezeError], problem: str, hint: str, facts: dict[str, Any], lines: tuple[str, ...] = ()
) -> AntifreezeError:
    return kind(problem, hint=hint, lines=lines, **facts)


def _without_credentials(fact: Any) -> Any:
    """Return a fact for programs: unchanged, except for users and passwords in addresses."""
    if type(fact) is str:
        return redact_addresses(fact)
    if type(fact) is dict:
        return {name: _without_credentials(value) for name, value in fact.items()}
    return type(fact)(map(_without_credentials, fact)) if type(fact) in (tuple, list) else fact


class AntifreezeError(Exception):
    """Anything that antifreeze raises on purpose.

    The facts behind the message (``file``, ``row_group``, ``row``, ``column``, ...) are attributes, so that a
    program can act on them without reading the text. They are what was found: a name with a line break in it is one
    with a line break. Only users, passwords and signatures in addresses are taken out of them.

    The text is safe to print and to log: names and messages that it is built from cannot add a line to it, steer a
    terminal, or make it long, and what looks like a secret is hidden.

    Args:
        message: the problem, on one line. A line break in it can only come from a fact, and is shown as ``\\n``.
        hint: what to do, on one line.
        lines: more about the problem, each shown on its own line below it.
        **facts: set as attributes.
    """

    retry: Any = None
    """What could be retried without the failed sample; for internal use by the loader."""

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
        return _rebuild, (type(self), self._problem, self.hint, self.facts, self.lines)

    def __str__(self) -> str:
        # KeyError would print the repr of the message, line breaks and all.
        return Exception.__str__(self) if not isinstance(self, KeyError) else str(self.args[0])


class InputError(AntifreezeError):
    """The request cannot be fulfilled."""


class ConfigError(InputError, ValueError):
    """An argument has a wrong value."""

    argument: str


class SourceNotFound(InputError, FileNotFoundError):
    """There is no such directory or file, or nothing in it matches."""

    path: str


class UnknownColumn(InputError, KeyError):
    """The requested column does not exist in the data."""

    column: str


class SchemaMismatch(InputError, ValueError):
    """Two files of one dataset do not have the same columns."""

    file: str


class SourceChanged(InputError):
    """The files are not those that were indexed."""

    changed: tuple[str, ...]
    vanished: tuple[str, ...]
    appeared: tuple[str, ...]


class ManifestError(InputError):
    """The manifest is damaged or of another version."""

    path: str


class NotPicklable(InputError, TypeError):
    """An object cannot be sent to a worker process, or back from it."""

    path: str


class DuplicateData(InputError):
    """An iterable dataset yields the same samples in every worker, so each would be delivered once per worker."""


class StateMismatch(InputError, ValueError):
    """A state does not fit the loader that should resume from it."""

    differences: Mapping[str, tuple[Any, Any]] = MappingProxyType({})
    """The value in the state and the value of the loader, by name."""


class DataError(AntifreezeError):
    """The contents of a file cannot be read."""

    file: str


class CorruptFile(DataError):
    """The file is not Parquet, is truncated, or has a page that does not decode."""

    row_group: int | None


class UnreadableFile(DataError, OSError):
    """The file exists, but the system cannot read it: permissions, descriptors, a failing disk."""


class NullValue(DataError, ValueError):
    """A null was found, and no fill value was given."""

    column: str
    row: int


class RaggedColumn(DataError):
    """Rows have different lengths where one length was expected."""

    column: str
    row: int


class TooLarge(DataError, MemoryError):
    """A page, a row, a batch or a shuffle window needs more memory than ``memory_limit`` allows."""

    nbytes: int
    """An upper bound of the memory it would need."""
    limit: int


class UserCodeError(AntifreezeError):
    """The user's dataset, transform or collate function raised; its own error is the cause."""

    step: int


class NotRepeatable(AntifreezeError):
    """A worker was lost, and the iterable dataset did not yield the same samples to its replacement."""

    worker: int


class WorkerDied(AntifreezeError, RuntimeError):
    """A worker process exited, and so did its replacements."""

    worker: int
    cause: str


class Stalled(AntifreezeError, TimeoutError, RuntimeError):
    """There was no progress for longer than the limit."""

    silent_s: float


# Tracebacks name an error by its module; users find it under the name of the package.
for _error in [value for value in globals().values() if isinstance(value, type) and issubclass(value, AntifreezeError)]:
    _error.__module__ = "antifreeze"
