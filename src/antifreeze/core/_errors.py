"""The tree of errors: one class per meaning, facts as attributes, a hint that can be acted on.

AntifreezeError
├── InputError               what was asked for cannot be done
│   ├── ConfigError          an argument has a wrong value           (also ValueError)
│   ├── SourceNotFound       no such directory, file or match        (also FileNotFoundError)
│   ├── UnknownColumn        a column that the data does not have    (also KeyError)
│   ├── SchemaMismatch       files whose columns differ              (also ValueError)
│   ├── SourceChanged        the files are not those that were indexed
│   ├── ManifestError        the manifest is damaged or of another version
│   ├── NotPicklable         something that cannot be sent to a worker        (also TypeError)
│   ├── DuplicateData        an iterable dataset that gives every worker the same samples
│   └── StateMismatch        a state that this loader cannot go on from   (also ValueError)
├── DataError                what stands in a file cannot be delivered
│   ├── CorruptFile          not Parquet, truncated, a page that does not decode
│   ├── UnreadableFile       the system does not give its bytes     (also OSError)
│   ├── NullValue            a null where no fill value was given    (also ValueError)
│   ├── RaggedColumn         rows of different lengths where one length was expected
│   └── TooLarge             a page, row or window that does not fit in memory_limit (also MemoryError)
├── UserCodeError            a dataset, transform or collate function raised; its error is the cause
├── NotRepeatable            an iterable dataset cannot go on where a lost worker stopped
├── WorkerDied               a worker process ended again and again          (also RuntimeError)
└── Stalled                  nothing moved for longer than the limit (also TimeoutError, RuntimeError)
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any


def _rebuild(kind: type[AntifreezeError], message: str, hint: str, facts: dict[str, Any]) -> AntifreezeError:
    return kind(message, hint=hint, **facts)


class AntifreezeError(Exception):
    """Anything that antifreeze raises on purpose.

    The facts behind the message (``file``, ``row_group``, ``row``, ``column``, ...) are attributes, so that a
    program can act on them without reading the text.
    """

    retry: Any = None
    """What could be tried again without what failed; for the loader's own use."""

    def __init__(self, message: str, *, hint: str = "", **facts: Any) -> None:
        # Not super(): an error that is also of the user's kind must not run that kind's constructor.
        Exception.__init__(self, f"{message}\n  hint: {hint}" if hint else message)
        self.message = message
        self.hint = hint
        self.facts = facts
        for name, value in facts.items():
            setattr(self, name, value)

    # Exceptions pickle by replaying ``args``, which would lose the facts and print the hint twice.
    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.hint, self.facts)

    def __str__(self) -> str:
        # KeyError would print the repr of the message, line breaks and all.
        return Exception.__str__(self) if not isinstance(self, KeyError) else str(self.args[0])


class InputError(AntifreezeError):
    """What was asked for cannot be done."""


class ConfigError(InputError, ValueError):
    """An argument has a wrong value."""

    argument: str


class SourceNotFound(InputError, FileNotFoundError):
    """There is no such directory or file, or nothing in it matches."""

    path: str


class UnknownColumn(InputError, KeyError):
    """A column was asked for that the data does not have."""

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
    """An object cannot be sent to a worker process, or not back from it."""

    path: str


class DuplicateData(InputError):
    """An iterable dataset gives every worker the same samples, so that each would arrive once per worker."""


class StateMismatch(InputError, ValueError):
    """A state does not fit the loader that is to go on from it."""

    differences: Mapping[str, tuple[Any, Any]] = MappingProxyType({})
    """What the state says and what the loader has, by name."""


class DataError(AntifreezeError):
    """What stands in a file cannot be delivered."""

    file: str


class CorruptFile(DataError):
    """The file is not Parquet, is truncated, or has a page that does not decode."""

    row_group: int | None


class UnreadableFile(DataError, OSError):
    """The file is there, but the system does not give its bytes: permissions, handles, a disk that fails."""


class NullValue(DataError, ValueError):
    """A null stands where no fill value was given."""

    column: str
    row: int


class RaggedColumn(DataError):
    """Rows of different lengths stand where one length was expected."""

    column: str
    row: int


class TooLarge(DataError, MemoryError):
    """A page, a row, a batch or a shuffle window needs more memory than ``memory_limit`` allows."""

    nbytes: int
    """What it would need, or more."""
    limit: int


class UserCodeError(AntifreezeError):
    """The user's dataset, transform or collate function raised; its own error is the cause."""

    step: int


class NotRepeatable(AntifreezeError):
    """A worker was lost, and the iterable dataset did not give its successor the same samples again."""

    worker: int


class WorkerDied(AntifreezeError, RuntimeError):
    """A worker process ended, and so did those that took its place."""

    worker: int
    cause: str


class Stalled(AntifreezeError, TimeoutError, RuntimeError):
    """Nothing moved for longer than the limit."""

    silent_s: float


# Tracebacks name an error by its module; people find it under the package's own name.
for _error in [value for value in globals().values() if isinstance(value, type) and issubclass(value, AntifreezeError)]:
    _error.__module__ = "antifreeze"
