# /// script
# requires-python = ">=3.11"
# dependencies = ["antifreeze[torch]", "transformers", "accelerate"]
# ///
"""The Trainer of transformers, with antifreeze's workers: training, a resume in mid-epoch, evaluation."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset, default_collate
from transformers import Trainer, TrainingArguments

from antifreeze.integrations.accelerate import antifreeze_loaders


class Points(Dataset[dict[str, Any]]):
    """Points in the plane, labelled by the side of a line that they lie on."""

    def __init__(self, samples: int) -> None:
        self.points = torch.randn(samples, 2, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"n": i, "x": self.points[i], "labels": float(self.points[i].sum() > 0)}


class Model(torch.nn.Module):
    """One layer; keeps the numbers of the samples that it was trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        self.seen: list[int] = []

    def forward(self, n: torch.Tensor, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        if self.training:
            self.seen += n.tolist()
        guess = self.layer(x).squeeze(1)
        return {"loss": torch.nn.functional.binary_cross_entropy_with_logits(guess, labels), "logits": guess}


def main(samples: int, folder: Path) -> None:
    steps = -(-samples // 32)
    common: dict[str, Any] = {"output_dir": str(folder), "use_cpu": True, "report_to": [], "disable_tqdm": True}
    common |= {"remove_unused_columns": False}  # with default_collate: workers need not import transformers
    common |= {"per_device_train_batch_size": 32, "dataloader_num_workers": 2, "learning_rate": 0.05}
    common |= {"num_train_epochs": 2, "save_strategy": "steps", "save_steps": steps * 3 // 2, "logging_strategy": "no"}
    seen: list[int] = []
    with antifreeze_loaders(stall_limit=60):  # the one line that is new
        for resume in (False, True):
            model, stop = Model(), {} if resume else {"max_steps": steps * 3 // 2}
            arguments = TrainingArguments(**common, **stop)
            data = {"train_dataset": Points(samples), "eval_dataset": Points(256)}
            trainer = Trainer(model, arguments, data_collator=default_collate, **data)
            trainer.train(resume_from_checkpoint=resume)
            print(f"at step {trainer.state.global_step} of {2 * steps}")
            seen += model.seen
        print(f"loss {trainer.evaluate()['eval_loss']:.3f}")
    assert sorted(seen) == sorted([*range(samples), *range(samples)]), "a sample is missing, or came too often"
    assert sorted(seen[:samples]) == list(range(samples))
    print(f"{samples:,} samples, 2 epochs, stopped in the second and resumed: each came once in each")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=2_000)
    with tempfile.TemporaryDirectory() as name:
        main(parser.parse_args().samples, Path(name))
