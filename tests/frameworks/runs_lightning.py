"""What Lightning is asked to do with antifreeze's loaders. Each function is one run, in a process of its own."""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812
import torch
from framework_rows import Noise, Rows, makers, numbers, with_processes, write_rows
from framework_streams import Stream
from lightning.fabric import Fabric
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities import CombinedLoader

import antifreeze as af

logging.getLogger("lightning").setLevel(logging.ERROR)
OPTIONS: dict[str, Any] = {"on_error": "skip", "stall_limit": 77.0, "max_restarts": 5}


class Model(L.LightningModule):
    """Keeps what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.batches: dict[str, list[Any]] = {}
        self.epochs: list[list[int]] = []

    def keep(self, stage: str, batch: Any) -> None:
        self.batches.setdefault(stage, []).append(batch)

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        self.keep("train", batch)
        self.epochs += [[] for _ in range(1 + self.current_epoch - len(self.epochs))]
        self.epochs[self.current_epoch] += numbers(batch)
        return self.layer(batch["x"]).sum() * 0

    def validation_step(self, batch: Any, index: int, dataloader_idx: int = 0) -> None:
        self.keep("sanity" if self.trainer.sanity_checking else f"val {dataloader_idx}", batch)

    def test_step(self, batch: Any, index: int) -> None:
        self.keep("test", batch)

    def predict_step(self, batch: Any, index: int) -> Any:
        self.keep("predict", batch)
        return batch["n"]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)

    def found(self) -> dict[str, Any]:
        """Return for each stage the numbers of its batches, and who made them."""
        return {name: [list(map(numbers, kept)), makers(kept)] for name, kept in self.batches.items()}


def trainer(**options: Any) -> L.Trainer:
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    plain = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    plain |= {"devices": ranks, "enable_model_summary": False, "strategy": "ddp" if ranks > 1 else "auto"}
    return L.Trainer(**plain | options)  # type: ignore[arg-type]


def loader(kind: str, folder: Path, num_rows: int = 24, **options: Any) -> Any:
    """Return a loader of one of the kinds: batches of 4, with 2 workers. Plain Parquet needs threads only."""
    options = {"batch_size": 4, "num_workers": 2} | options
    if kind == "map":
        return af.DataLoader(Rows(num_rows), **OPTIONS | options)
    if kind == "iterable":
        options.pop("shuffle", None)
        return af.DataLoader(Stream(num_rows), **OPTIONS | options)
    shuffle = options.pop("shuffle", False)
    path = write_rows(folder / f"rows-{num_rows}", num_rows)
    dataset = af.StreamingDataset(path, shuffle=shuffle, transform=with_processes if kind == "streaming" else None)
    return af.StreamingDataLoader(dataset, **OPTIONS | options)


def what(loaders: Any) -> list[Any]:
    """Return of which class loaders are, and whether their options are those that were set."""
    loaders = loaders if isinstance(loaders, list) else [loaders]
    return [[type(x).__module__, all(getattr(x, key) == OPTIONS[key] for key in OPTIONS)] for x in loaders]


# -- one process -------------------------------------------------------------------------------------------------------


def stages(folder: Path, kind: str) -> dict[str, Any]:
    """Fit with a sanity check and validation, validate, test and predict."""
    model = Model()
    fit = trainer(max_epochs=2)
    fit.fit(model, loader(kind, folder, shuffle=True), loader(kind, folder, 16))
    seen = {"classes": what(fit.train_dataloader) + what(fit.val_dataloaders), "batches": fit.num_training_batches}
    for name, method in {"val": fit.validate, "test": fit.test}.items():
        method(model, loader(kind, folder), verbose=False)
        seen["classes"] += what(getattr(fit, f"{name}_dataloaders"))
    predictions = fit.predict(model, loader(kind, folder, 22))
    seen["classes"] += what(fit.predict_dataloaders)
    return seen | model.found() | {"predictions": torch.cat(predictions).tolist(), "epochs": model.epochs}


def hooks(folder: Path) -> dict[str, Any]:
    """Let loaders be made in hooks: there Lightning wraps ``__init__`` and ``__setattr__`` of all loaders."""

    class Data(L.LightningDataModule):
        def train_dataloader(self) -> Any:
            made = af.DataLoader(Rows(), batch_size=4, shuffle=True, num_workers=2, **OPTIONS)
            made.worker_init_fn = None
            return made

        def val_dataloader(self) -> Any:
            return [loader("map", folder, 8), loader("plain", folder, 12)]

        def predict_dataloader(self) -> Any:
            return af.DataLoader(Rows(), batch_size=4, shuffle=True, num_workers=2, **OPTIONS)

    model, data = Model(), Data()
    fit = trainer(max_epochs=1)
    fit.fit(model, data)
    seen = {"classes": what(fit.train_dataloader) + what(fit.val_dataloaders)}
    fit.predict(model, data)
    return seen | model.found() | {"predicting": what(fit.predict_dataloaders)}


def combined(folder: Path, mode: str) -> Any:
    """Train on two loaders of different kinds and lengths at once."""

    class Two(Model):
        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            for name, part in batch.items():
                if part is not None:
                    self.keep(name, part)
            return self.layer(torch.ones(4)).sum() * 0

    model = Two()
    both = {"a": loader("map", folder, 8), "b": loader("plain", folder, 12)}
    fit = trainer(max_epochs=1)
    fit.fit(model, CombinedLoader(both, mode), CombinedLoader([*both.values()], "sequential"))  # type: ignore[arg-type]
    return model.found() | {"batches": fit.num_training_batches, "val batches": fit.num_val_batches}


def limits(folder: Path, kind: str) -> Any:
    """End epochs early, in training and validation; the next one begins anew."""
    model = Model()
    fit = trainer(max_epochs=2, limit_train_batches=2, limit_val_batches=1, num_sanity_val_steps=0)
    fit.fit(model, loader(kind, folder), loader(kind, folder))
    overfit = Model()
    trainer(max_epochs=2, overfit_batches=2).fit(overfit, loader(kind, folder, shuffle=True))
    return model.found() | {"overfit": overfit.found()["train"]}


def persistent(folder: Path, kind: str) -> Any:
    """Keep workers over epochs, validation between them included, and over two calls of ``fit``."""
    model, train, val = Model(), loader(kind, folder, persistent_workers=True), loader(kind, folder, 8)
    for _ in range(2):
        trainer(max_epochs=2).fit(model, train, val)
    pids = {int(pid) for batch in model.batches["train"] for pid in batch["pid"]}
    return {"workers": len(pids), "numbers": model.found()["train"]}


def seeded(folder: Path) -> Any:
    """Seed everything, also workers, as one does for a run that can be repeated."""
    L.seed_everything(7, workers=True, verbose=False)
    model = Model()
    fit = trainer(max_epochs=2)
    fit.fit(model, af.DataLoader(Noise(), batch_size=4, num_workers=2))
    kept = model.batches["train"]
    return {
        "noise": [n for batch in kept for n in batch["noise"].tolist()],
        "frameworks": [bool(batch["framework"].any()) for batch in kept],
        "init": str(fit.train_dataloader.worker_init_fn),
    }


def damaged(folder: Path) -> None:
    """Meet a sample that raises."""
    bad = af.DataLoader(Rows(bad=13), batch_size=4, num_workers=2)
    trainer(max_epochs=1).fit(Model(), bad)


def interrupted(folder: Path, kind: str) -> Any:
    """Get Ctrl-C in a training step."""

    class Stopped(Model):
        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            if index == 2:
                os.kill(os.getpid(), signal.SIGINT)
            return super().training_step(batch, index)

    signal.signal(signal.SIGINT, signal.default_int_handler)
    fit = trainer(max_epochs=1)
    try:
        fit.fit(Stopped(), loader(kind, folder))
    except BaseException as error:  # noqa: BLE001
        return [type(error).__name__, fit.interrupted]
    return ["nothing", fit.interrupted]


# -- a checkpoint in mid-epoch -----------------------------------------------------------------------------------------


def resumed(folder: Path, kind: str, at: list[int], workers: int = 2, **options: Any) -> Any:
    """Train for 3 epochs, and go on from some of the checkpoints; return the batches of the whole and of each rest."""
    torch.manual_seed(1)
    saver = ModelCheckpoint(folder / "saved", every_n_train_steps=1, save_top_k=-1, filename="{step}")
    whole, found = Model(), []
    first = trainer(max_epochs=3, enable_checkpointing=True, callbacks=[saver], **options)
    first.fit(whole, loader(kind, folder, shuffle=True), loader(kind, folder, 8))
    for step in at:
        torch.manual_seed(2)
        rest, again = Model(), trainer(max_epochs=3, **options)
        loaders = loader(kind, folder, shuffle=True, num_workers=workers), loader(kind, folder, 8)
        again.fit(rest, *loaders, ckpt_path=folder / "saved" / f"step={step}.ckpt")
        found.append([numbers(batch) for batch in rest.batches["train"]])
    return {"whole": [numbers(batch) for batch in whole.batches["train"]], "rests": found}


# -- several ranks -----------------------------------------------------------------------------------------------------


def fabric(folder: Path, kind: str, at: int) -> Any:
    """Let Fabric set up a loader, if it takes it; save it in mid-epoch and go on with another one."""
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    made = Fabric(accelerator="cpu", devices=ranks, strategy="ddp" if ranks > 1 else "auto")
    made.launch()
    made.seed_everything(3, verbose=False)
    first, second = [loader(kind, folder, shuffle=True) for _ in range(2)]
    if kind == "map":
        first, second = made.setup_dataloaders(first), made.setup_dataloaders(second)
    whole = []
    for step, batch in enumerate(first):
        whole.append(batch)
        if step + 1 == at:
            made.save(folder / "fabric.ckpt", {"loader": first})
    made.load(folder / "fabric.ckpt", {"loader": second})
    return {
        "whole": list(map(numbers, whole)),
        "rest": list(map(numbers, second)),
        "classes": what(first._dataloader if kind == "map" else first),
        "makers": makers(whole),
        "length": len(first),
    }
