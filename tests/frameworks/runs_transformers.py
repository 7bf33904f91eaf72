"""What the Trainer of transformers is asked to do with antifreeze's loaders. Each function is one run."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import torch
from framework_rows import Noise, Rows, makers, numbers, with_processes, write_rows
from framework_streams import Stream
from torch.utils.data import default_collate
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import ExportableState

import antifreeze as af
from antifreeze.integrations.accelerate import antifreeze_loaders, prepare


class Model(torch.nn.Module):
    """Keeps what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.kept: dict[str, list[Any]] = {"train": [], "eval": []}

    def forward(self, n: Any, x: Any, **process: Any) -> dict[str, Any]:
        self.kept["train" if self.training else "eval"].append({"n": n, "x": x, **process})
        return {"loss": self.layer(x).sum() * 0, "logits": n.float()}

    def found(self) -> dict[str, Any]:
        """Return for each stage the numbers of its batches, and who made them."""
        return {name: [list(map(numbers, kept)), makers(kept)] for name, kept in self.kept.items()}


class Position(TrainerCallback, ExportableState):
    """Keeps the loader's position in the Trainer's checkpoints."""

    loader: Any = None
    position: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **_: Any) -> None:
        self.loader = train_dataloader
        if self.position is not None:
            train_dataloader.load_state_dict(self.position)

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": {"position": self.loader and self.loader.state_dict()}}


class Streaming(Trainer):
    """Trains on Parquet files."""

    def get_train_dataloader(self) -> Any:
        options = {"batch_size": self.args.train_batch_size, "num_workers": self.args.dataloader_num_workers}
        return prepare(self.accelerator, af.StreamingDataLoader(self.train_dataset, **options))  # type: ignore[arg-type]

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        options = {"batch_size": self.args.eval_batch_size, "num_workers": self.args.dataloader_num_workers}
        return prepare(self.accelerator, af.StreamingDataLoader(eval_dataset or self.eval_dataset, **options))

    get_test_dataloader = get_eval_dataloader


def arguments(folder: Path, **settings: Any) -> TrainingArguments:
    plain: dict[str, Any] = {"output_dir": str(folder / "out"), "use_cpu": True, "report_to": [], "disable_tqdm": True}
    plain |= {
        "remove_unused_columns": False,
        "save_strategy": "no",
        "logging_strategy": "no",
        "label_names": ["n"],
        "num_train_epochs": 2,
    }
    plain |= {"per_device_train_batch_size": 4, "per_device_eval_batch_size": 4, "dataloader_num_workers": 2}
    return TrainingArguments(**plain | settings)


def collating(kind: Any, *args: Any, **options: Any) -> Any:
    """Return a trainer whose workers need not import transformers, which takes seconds."""
    return kind(*args, data_collator=default_collate, **options)


def rows(folder: Path, num_rows: int, shuffle: bool = False, **options: Any) -> Any:
    return af.StreamingDataset(write_rows(folder / f"rows-{num_rows}", num_rows), shuffle=shuffle, **options)


def trained(folder: Path, num_rows: int = 24, iterable: bool = False, **settings: Any) -> Any:
    """Train on a dataset of one's own, evaluate and predict, with loaders that are ours by the ``with`` block."""
    model = Model()
    with antifreeze_loaders(stall_limit=77):
        dataset: Any = Stream(num_rows) if iterable else Noise(num_rows)
        made = collating(Trainer, model, arguments(folder, **settings), train_dataset=dataset, eval_dataset=Rows(10))
        made.train()
        seen, kept = model.found(), model.kept["train"]
        made.evaluate()
        predictions = made.predict(Rows(9)).predictions
    base = made.callback_handler.train_dataloader.base_dataloader
    return {
        "train": seen["train"],
        "eval": model.found()["eval"],
        "predictions": sorted(int(n) for n in predictions),
        "class": [type(base).__module__, base.stall_limit],
        "noise": [n for batch in kept for n in batch.get("noise", torch.empty(0)).tolist()],
        "framework": any(bool(batch["framework"].any()) for batch in kept if "framework" in batch),
        "sampler": type(getattr(base.batch_sampler, "sampler", None)).__name__,
        "steps": made.state.global_step,
    }


def streamed(folder: Path, num_rows: int = 24) -> Any:
    """Train on Parquet files, evaluate and predict."""
    model = Model()
    train = rows(folder, num_rows, True, transform=with_processes)
    made = Streaming(model, arguments(folder), train_dataset=train, eval_dataset=rows(folder, 16))
    made.train()
    seen = model.found()
    made.evaluate()
    predictions = made.predict(rows(folder, 16)).predictions
    return {
        "train": seen["train"],
        "eval": model.found()["eval"],
        "predictions": sorted(int(n) for n in predictions),
        "steps": made.state.global_step,
    }


def resumed(folder: Path, kind: str, at: list[int], **settings: Any) -> Any:
    """Train for 2 epochs, save on the way, and go on from some of the checkpoints."""
    found = []
    for step in [None, *at]:
        model, saving = Model(), {"save_strategy": "steps", "save_steps": 1} if step is None else {}
        with antifreeze_loaders():
            if kind == "map":
                made = collating(Trainer, model, arguments(folder, **saving, **settings), train_dataset=Rows(24))
            else:
                saving |= {"ignore_data_skip": True, "restore_callback_states_from_checkpoint": True}
                dataset, given = rows(folder, 24, True), arguments(folder, **saving, **settings)
                made = Streaming(model, given, train_dataset=dataset, callbacks=[Position()])
            made.train(resume_from_checkpoint=step and str(folder / "out" / f"checkpoint-{step}"))
        found.append([*model.found()["train"], made.state.global_step])
    return found


def damaged(folder: Path) -> None:
    """Meet a sample that raises."""
    with antifreeze_loaders():
        collating(Trainer, Model(), arguments(folder), train_dataset=Rows(bad=13)).train()


def interrupted(folder: Path) -> Any:
    """Get Ctrl-C in a training step."""

    class Stopped(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 2:
                os.kill(os.getpid(), signal.SIGINT)

    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with antifreeze_loaders():
            collating(Trainer, Model(), arguments(folder), train_dataset=Rows(), callbacks=[Stopped()]).train()
    except KeyboardInterrupt:
        return "interrupted"
    return "nothing"


def row_by_row(folder: Path) -> Any:
    """Give Parquet files to the Trainer as they are: a map-style dataset, whose rows are asked for one by one."""
    model = Model()
    with antifreeze_loaders():
        collating(Trainer, model, arguments(folder), train_dataset=rows(folder, 24)).train()
    return model.found()["train"]
