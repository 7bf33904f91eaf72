"""One rank of a job that saves where it is after each step. Arguments: DATA FOLDER LIFE RANK RANKS WORKERS KIND."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import antifreeze as af

GLOBAL_BATCH = 12
EPOCHS = 2
_PATIENCE_S = 60.0


def keep(row: dict[str, Any]) -> dict[str, Any]:
    """A transform: it is done in worker processes."""
    return row


def dataset_of(data: str, kind: str) -> Any:
    """Return what the job reads."""
    single = af.StreamingDataset(data, columns=["n"], format="numpy", transform=keep if "made" in kind else None)
    if "mixed" not in kind:
        return single
    third = len(single) // 3
    parts = [single.subset(range(third)), single.subset(range(third, len(single)))]
    return af.CombinedStreamingDataset(parts, weights=lambda step: (1, 1 + step))


def wait_for_all(logs: list[Path], steps: int) -> None:
    """Wait until every rank has made the step, as a collective would."""
    end_s = time.monotonic() + _PATIENCE_S
    while not all(log.exists() and log.read_text().count("\n") >= steps for log in logs):
        assert time.monotonic() < end_s
        time.sleep(0.001)


def main(data: str, folder: Path, life: str, rank: int, world_size: int, num_workers: int, kind: str) -> None:
    """Read what is left, and write down each step."""
    loader = af.StreamingDataLoader(
        dataset_of(data, kind),
        batch_size=GLOBAL_BATCH // world_size,
        shuffle=True,
        num_workers=num_workers,
        drop_last=True,
        rank=rank,
        world_size=world_size,
        lanes=12,
    )
    saved = folder / "state.json"
    if saved.exists():
        loader.load_state_dict(json.loads(saved.read_text()))
    logs = [folder / f"steps-{life}-{number}" for number in range(world_size)]
    steps = 0
    with logs[rank].open("a") as log:
        while loader.state_dict()["epoch"] < EPOCHS:
            for batch in loader:
                state, steps = loader.state_dict(), steps + 1
                log.write(json.dumps([state["epoch"], state["sample"], batch["n"].tolist()]) + "\n")
                log.flush()
                if rank == 0:
                    wait_for_all(logs, steps)
                    fresh = folder / "state.new"
                    fresh.write_text(json.dumps(state))
                    fresh.replace(saved)


if __name__ == "__main__":
    _data, _folder, _life, _rank, _world_size, _workers, _kind = sys.argv[1:]
    main(_data, Path(_folder), _life, int(_rank), int(_world_size), int(_workers), _kind)
