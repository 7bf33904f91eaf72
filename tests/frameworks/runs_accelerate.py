"""What Accelerate is asked to do with antifreeze's loaders. Each function is one run, in a process of its own."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, DataLoaderConfiguration, skip_first_batches
from framework_rows import Rows, makers, numbers, with_processes, write_rows
from framework_streams import Stream

import antifreeze as af
from antifreeze.integrations.accelerate import antifreeze_loaders, prepare

OPTIONS: dict[str, Any] = {"on_error": "skip", "stall_limit": 77.0, "max_restarts": 5}


def loader(kind: str, folder: Path, num_rows: int = 24, **options: Any) -> Any:
    """Return a loader of one of the kinds: batches of 4, with 2 workers. Plain Parquet needs threads only."""
    options = {"batch_size": 4, "num_workers": 2} | options
    if kind == "map":
        return af.DataLoader(Rows(num_rows), **OPTIONS | options)
    if kind == "iterable":
        return af.DataLoader(Stream(num_rows), **OPTIONS | options)
    shuffle = options.pop("shuffle", False)
    path = write_rows(folder / f"rows-{num_rows}", num_rows)
    dataset = af.StreamingDataset(path, shuffle=shuffle, transform=with_processes if kind == "streaming" else None)
    return af.StreamingDataLoader(dataset, **OPTIONS | options)


def make(**settings: Any) -> Accelerator:
    """Return an accelerator; what is no argument of it is one of its configuration of loaders."""
    steps = settings.pop("gradient_accumulation_steps", 1)
    config = DataLoaderConfiguration(**settings)
    return Accelerator(cpu=True, gradient_accumulation_steps=steps, dataloader_config=config)


def epoch(folder: Path, kind: str, num_rows: int = 24, shuffle: bool = False, **settings: Any) -> Any:
    """Go through two epochs of a prepared loader."""
    torch.manual_seed(5)
    accelerator = make(**settings)
    model = torch.nn.Linear(4, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
    options = {"shuffle": True} if shuffle else {}
    prepared = prepare(accelerator, loader(kind, folder, num_rows, **options))
    epochs: list[list[Any]] = [[], []]
    synced = []
    for kept in epochs:
        for batch in prepared:
            with accelerator.accumulate(model):
                accelerator.backward(model(batch["x"]).sum() * 0)
                optimizer.step()
                optimizer.zero_grad()
            kept.append(batch)
            synced.append(accelerator.sync_gradients)
    base = prepared.base_dataloader
    return {
        "epochs": [list(map(numbers, kept)) for kept in epochs],
        "makers": makers(epochs[0]),
        "class": type(base).__module__,
        "options": {key: getattr(base, key) for key in OPTIONS},
        "synced": synced,
        "again": accelerator.prepare(prepared) is prepared,
        "length": None if kind == "iterable" else len(prepared),
    }


def plainly_prepared(folder: Path) -> Any:
    """Do what one would do first."""
    prepared = Accelerator(cpu=True).prepare(loader("map", folder))
    return makers(list(prepared))


def only_prepared(folder: Path, options: dict[str, Any]) -> Any:
    """Prepare a loader with some arguments, and read nothing."""
    Accelerator(cpu=True).prepare(af.DataLoader(Rows(), batch_size=4, **options))


def inside(folder: Path) -> Any:
    """Let Accelerate build a loader of ours from torch's, and skip some of its batches."""
    accelerator = Accelerator(cpu=True)
    with antifreeze_loaders(stall_limit=33):
        prepared = accelerator.prepare(torch.utils.data.DataLoader(Rows(), batch_size=4, num_workers=2))
        rest = list(skip_first_batches(prepared, 2))
    whole = list(prepared)
    outside = accelerator.prepare(torch.utils.data.DataLoader(Rows(), batch_size=4))
    return {
        "whole": list(map(numbers, whole)),
        "rest": list(map(numbers, rest)),
        "makers": [makers(whole), makers(rest)],
        "stall_limit": prepared.base_dataloader.stall_limit,
        "outside": type(outside.base_dataloader).__module__,
    }


def misnamed(folder: Path) -> None:
    """Give an option that belongs to torch's loader."""
    with antifreeze_loaders(num_workers=4):
        pass


def stateful(folder: Path) -> None:
    """Ask for torchdata's loader."""
    try:
        accelerator = make(use_stateful_dataloader=True)
    except ImportError:  # without torchdata
        accelerator = make()
        accelerator.dataloader_config.use_stateful_dataloader = True
    prepare(accelerator, loader("map", folder))


def resumed(folder: Path, kind: str, at: list[int], workers: int = 2) -> Any:
    """Go through 2 epochs, save at some steps, and go on from each with another loader."""
    torch.manual_seed(1)
    accelerator = Accelerator(cpu=True)
    prepared, whole = prepare(accelerator, loader(kind, folder, shuffle=True)), []
    for _ in range(2):
        for batch in prepared:
            whole.append(batch)
            if len(whole) in at:
                accelerator.save_state(folder / f"saved-{len(whole)}")
    accelerator.wait_for_everyone()  # all ranks write to the same files
    rests = []
    for step in at:
        torch.manual_seed(2)
        accelerator.free_memory()
        prepared = prepare(accelerator, loader(kind, folder, shuffle=True, num_workers=workers))
        accelerator.load_state(folder / f"saved-{step}")
        rests.append([batch for _ in range(step // len(prepared), 2) for batch in prepared])
    return {
        "whole": list(map(numbers, whole)),
        "rests": [list(map(numbers, rest)) for rest in rests],
        "makers": makers([batch for rest in rests for batch in rest]),
    }


def gathered(folder: Path, num_rows: list[int]) -> Any:
    """Gather what all ranks have, batch by batch, of datasets of some lengths."""
    accelerator = Accelerator(cpu=True)
    return [
        [accelerator.gather_for_metrics(batch)["n"].tolist() for batch in prepare(accelerator, made)]
        for made in [loader("plain", folder, n) for n in num_rows]
    ]


def damaged(folder: Path) -> None:
    """Meet a sample that raises."""
    list(prepare(Accelerator(cpu=True), af.DataLoader(Rows(bad=13), batch_size=4, num_workers=2)))


def interrupted(folder: Path, kind: str) -> Any:
    """Get Ctrl-C in a training step."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for step, _ in enumerate(prepare(Accelerator(cpu=True), loader(kind, folder))):
            if step == 2:
                os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        return "interrupted"
    return "nothing"
