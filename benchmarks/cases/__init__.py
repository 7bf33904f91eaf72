"""Every loader that is measured: one entry each, imported only in the process that runs it."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cases._stubs import stand_in

Make = Callable[[Path, int, bool], Iterable[dict[str, Any]]]

RAW, ANTIFREEZE = "raw", "antifreeze"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One loader, set up in one way."""

    name: str
    label: str
    module: str
    function: str = "make"
    packages: tuple[str, ...] = ()
    """Distributions it needs besides torch, numpy and pyarrow."""
    imports: tuple[str, ...] = ()
    """Modules that its function imports; imported early, so that no clock sees it."""
    stubs: tuple[str, ...] = ()
    """Packages that its import needs and its work does not."""
    form: str = "parquet"
    workloads: str = "A"
    group: str = ""
    """Variants of one loader share a group; a bar is compared with the best of the group."""
    note: str = ""
    kind: str = field(default="peer")

    def load(self) -> Make:
        """Import the loader. Done before the clock starts."""
        if self.stubs:
            stand_in(*self.stubs)
        for module in self.imports:
            importlib.import_module(module)
        make: Make = getattr(importlib.import_module(f"cases.{self.module}"), self.function)
        return make

    def missing(self) -> str:
        """The packages that are not installed, or nothing."""
        return ", ".join(name for name in self.packages if not version(name))


def version(distribution: str) -> str:
    """Its installed version, or nothing. A checkout on the path has no version but is there."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "from source" if importlib.util.find_spec(distribution.replace("-", "_")) else ""


BY_HAND = "Parquet decode by hand"

CASES = {
    case.name: case
    for case in (
        Case(name=RAW, label="pyarrow to NumPy, 2 threads (raw)", module="_raw", workloads="AB", kind="raw"),
        Case(
            name=ANTIFREEZE,
            label="antifreeze",
            module="_antifreeze",
            packages=("antifreeze",),
            workloads="AB",
            kind="ours",
        ),
        Case(
            name="torch",
            label="torch DataLoader, expert",
            module="_torch",
            function="dataloader",
            workloads="AB",
            group="torch DataLoader",
            note=BY_HAND,
        ),
        Case(
            name="torch-bundled",
            label="torch DataLoader, expert, many batches per hand-over, cut by hand",
            module="_torch",
            function="dataloader_bundled",
            workloads="AB",
            group="torch DataLoader with a cutter by hand",
            note=BY_HAND,
        ),
        Case(
            name="torch-map",
            label="torch DataLoader, map-style over arrays in memory",
            module="_torch",
            function="dataloader_map",
            workloads="B",
            group="torch DataLoader",
        ),
        Case(
            name="nodes",
            label="torchdata.nodes, expert, threads",
            module="_torch",
            function="nodes",
            packages=("torchdata",),
            imports=("torchdata.nodes",),
            workloads="AB",
            group="torchdata.nodes",
            note=BY_HAND,
        ),
        Case(
            name="spdl",
            label="SPDL, expert, threads",
            module="_torch",
            function="spdl",
            packages=("spdl",),
            imports=("spdl.pipeline",),
            workloads="AB",
            group="SPDL",
            note=BY_HAND,
        ),
        Case(
            name="inline",
            label="no loader: decode by hand in the loop",
            module="_torch",
            function="inline",
            workloads="AB",
            group="decode loop by hand",
            note=BY_HAND,
        ),
        Case(
            name="hf",
            label="Hugging Face datasets, streaming, torch format",
            module="_hugging_face",
            function="torch_format",
            packages=("datasets",),
            group="Hugging Face datasets",
            note="ids as int64",
        ),
        Case(
            name="hf-arrow",
            label="Hugging Face datasets, streaming, Arrow format, tensors by hand",
            module="_hugging_face",
            function="arrow_format",
            packages=("datasets",),
            group="Hugging Face datasets",
        ),
        Case(
            name="mosaic",
            label="MosaicML streaming",
            module="_own_format",
            function="mosaic",
            packages=("mosaicml-streaming",),
            imports=("streaming",),
            stubs=("torchvision", "transformers"),
            form="mds",
            group="MosaicML",
            note="own format",
        ),
        Case(
            name="webdataset",
            label="WebDataset",
            module="_own_format",
            function="webdataset",
            packages=("webdataset",),
            imports=("webdataset",),
            form="webdataset",
            group="WebDataset",
            note="own format (tar)",
        ),
        Case(
            name="grain-parquet",
            label="Grain, Parquet",
            module="_own_format",
            function="grain_parquet",
            packages=("grain",),
            imports=("grain", "grain.experimental"),
            group="Grain",
        ),
        Case(
            name="grain-arrayrecord",
            label="Grain, ArrayRecord",
            module="_own_format",
            function="grain_arrayrecord",
            packages=("grain", "array_record"),
            imports=("grain",),
            form="arrayrecord",
            group="Grain",
            note="own format",
        ),
        Case(name="ray", label="Ray Data", module="_ray", packages=("ray",), group="Ray Data"),
        *(
            Case(
                name=f"litdata-{workers}",
                label=f"litData as documented, {workers} workers",
                module="_litdata",
                function=f"documented_{workers}",
                packages=("litdata", "polars"),
                form="litdata-index",
                group="litData as documented",
                note="ids as a list of 1,024 tensors",
            )
            for workers in (0, 1, 2)
        ),
        *(
            Case(
                name=f"litdata-collate-{workers}",
                label=f"litData, collate by hand, low_memory=False, {workers} workers",
                module="_litdata",
                function=f"collated_{workers}",
                packages=("litdata", "polars"),
                form="litdata-index",
                group="litData, collate by hand",
            )
            for workers in (0, 2)
        ),
        Case(
            name="litdata-optimized",
            label="litData optimized",
            module="_litdata",
            function="optimized",
            packages=("litdata",),
            form="litdata-optimized",
            group="litData optimized",
            note="own format",
        ),
        Case(
            name="lance",
            label="Lance scan",
            module="_own_format",
            function="lance_scan",
            packages=("pylance",),
            imports=("lance",),
            form="lance",
            group="Lance",
            note="own format",
        ),
    )
}
