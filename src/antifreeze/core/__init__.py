"""The vocabulary that every layer shares. Standard library only."""

from antifreeze.core._deadline import Clock, Deadline
from antifreeze.core._errors import (
    AntifreezeError,
    ConfigError,
    CorruptFile,
    DataError,
    InputError,
    ManifestError,
    NullValue,
    RaggedColumn,
    SchemaMismatch,
    SourceChanged,
    SourceNotFound,
    Stalled,
    UnknownColumn,
    UnreadableFile,
    UserCodeError,
)
from antifreeze.core._manifest import ColumnFacts, File, Manifest
from antifreeze.core._progress import Progress
from antifreeze.core._protocols import Format, Fragment

__all__ = [
    "AntifreezeError",
    "Clock",
    "ColumnFacts",
    "ConfigError",
    "CorruptFile",
    "DataError",
    "Deadline",
    "File",
    "Format",
    "Fragment",
    "InputError",
    "Manifest",
    "ManifestError",
    "NullValue",
    "Progress",
    "RaggedColumn",
    "SchemaMismatch",
    "SourceChanged",
    "SourceNotFound",
    "Stalled",
    "UnknownColumn",
    "UnreadableFile",
    "UserCodeError",
]
