"""A streaming data loader for PyTorch that cannot freeze.

import antifreeze as af

dataset = af.StreamingDataset("data/train", shuffle=True, columns=["ids", "labels"])
loader = af.StreamingDataLoader(dataset, batch_size=256, num_workers=4)
for batch in loader:              # {"ids": int32 tensor [256, 1024], "labels": int64 tensor [256]}
    ...
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from antifreeze.core import (
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
    from antifreeze.datasets import (
        CombinedStreamingDataset,
        ParallelStreamingDataset,
        ParquetLoader,
        StreamingDataset,
        batched,
        index_parquet_dataset,
        subsample,
        train_test_split,
    )
    from antifreeze.diagnosis import Report
    from antifreeze.doctor.job._diagnosis import Diagnosis
    from antifreeze.doctor.job._job_command import diagnose
    from antifreeze.loaders import StreamingDataLoader
    from antifreeze.loaders.dataloader import DataLoader

__version__ = "0.1.0"

__all__ = [
    "AntifreezeError",
    "CombinedStreamingDataset",
    "ConfigError",
    "CorruptFile",
    "DataError",
    "DataLoader",
    "Diagnosis",
    "DuplicateData",
    "InputError",
    "ManifestError",
    "NotPicklable",
    "NotRepeatable",
    "NullValue",
    "ParallelStreamingDataset",
    "ParquetLoader",
    "RaggedColumn",
    "Report",
    "SchemaMismatch",
    "SourceChanged",
    "SourceNotFound",
    "Stalled",
    "StateMismatch",
    "StreamingDataLoader",
    "StreamingDataset",
    "TooLarge",
    "UnknownColumn",
    "UnreadableFile",
    "UserCodeError",
    "WorkerDied",
    "__version__",
    "batched",
    "diagnose",
    "index_parquet_dataset",
    "subsample",
    "train_test_split",
]

_ELSEWHERE = {
    "DataLoader": ("antifreeze.loaders.dataloader",),  # the one name that needs torch
    "Diagnosis": ("antifreeze.doctor.job",),
    "diagnose": ("antifreeze.doctor.job",),
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: ``import antifreeze`` itself costs nothing and imports no library."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    packages = ("antifreeze.core", "antifreeze.diagnosis", "antifreeze.datasets", "antifreeze.loaders")
    for package in _ELSEWHERE.get(name, packages):
        module = importlib.import_module(package)
        if name in module.__all__:
            value = globals()[name] = getattr(module, name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
