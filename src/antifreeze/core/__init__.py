"""The vocabulary that every layer shares. Standard library only."""

from antifreeze.core._daemon_call import DaemonCall
from antifreeze.core._deadline import Deadline
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
from antifreeze.core._files import (
    PrivateFolder,
    UnsafeFile,
    create_file,
    open_regular,
    open_to_append,
    read_regular,
    regular_opener,
    with_random_suffix,
    write_all,
)
from antifreeze.core._limits import limit_hint
from antifreeze.core._logs import get_logger
from antifreeze.core._manifest import ColumnFacts, File, Manifest
from antifreeze.core._numbers import natural, seconds
from antifreeze.core._progress import Progress
from antifreeze.core._protocols import Format, Fragment, ReadLimits
from antifreeze.core._redaction import redact, redact_command
from antifreeze.core._secret_forms import HIDDEN
from antifreeze.core._seeds import step_seed
from antifreeze.core._state_check import check_kind, compare, settle
from antifreeze.core._text import Lines, clean_block, clean_lines, indented, one_line

__all__ = [
    "AntifreezeError",
    "ColumnFacts",
    "ConfigError",
    "CorruptFile",
    "DaemonCall",
    "DataError",
    "Deadline",
    "DuplicateData",
    "File",
    "Format",
    "Fragment",
    "HIDDEN",
    "InputError",
    "Lines",
    "Manifest",
    "ManifestError",
    "NotPicklable",
    "NotRepeatable",
    "NullValue",
    "PrivateFolder",
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
    "UnsafeFile",
    "UserCodeError",
    "WorkerDied",
    "check_kind",
    "clean_block",
    "clean_lines",
    "compare",
    "create_file",
    "get_logger",
    "indented",
    "limit_hint",
    "natural",
    "one_line",
    "open_regular",
    "open_to_append",
    "read_regular",
    "redact",
    "redact_command",
    "regular_opener",
    "seconds",
    "settle",
    "step_seed",
    "with_random_suffix",
    "write_all",
]
