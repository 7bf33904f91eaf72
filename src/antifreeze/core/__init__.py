"""The vocabulary that every layer shares. Standard library only."""

from antifreeze.core._deadline import Clock, Deadline
from antifreeze.core._errors import (
    AntifreezeError,
    ConfigError,
    CorruptFile,
    DataError,
    DuplicateData,
    InputError,
    ManifestError,
    NotPicklable,
    NotRepeatable,
    NullValue,
    RaggedColumn,
    SchemaMismatch,
    SourceChanged,
    SourceNotFound,
    Stalled,
    StateMismatch,
    TooLarge,
    UnknownColumn,
    UnreadableFile,
    UserCodeError,
    WorkerDied,
)
from antifreeze.core._manifest import ColumnFacts, File, Manifest
from antifreeze.core._progress import Progress
from antifreeze.core._protocols import Format, Fragment, ReadLimits
from antifreeze.core._seeds import step_seed
from antifreeze.core._state import check_kind, compare, settle

__all__ = [
    "AntifreezeError",
    "Clock",
    "ColumnFacts",
    "ConfigError",
    "CorruptFile",
    "DataError",
    "DuplicateData",
    "Deadline",
    "File",
    "Format",
    "Fragment",
    "InputError",
    "Manifest",
    "ManifestError",
    "NotPicklable",
    "NotRepeatable",
    "NullValue",
    "Progress",
    "RaggedColumn",
    "ReadLimits",
    "SchemaMismatch",
    "SourceChanged",
    "SourceNotFound",
    "Stalled",
    "StateMismatch",
    "TooLarge",
    "UnknownColumn",
    "UnreadableFile",
    "UserCodeError",
    "WorkerDied",
    "check_kind",
    "compare",
    "settle",
    "step_seed",
]
