# /// script
# requires-python = ">=3.11"
# dependencies = ["antifreeze[torch]", "polars"]
# ///
"""What `make demo` shows: data, Polars in the parent, training, speed next to the bare decoder, and lost workers."""

from __future__ import annotations

import argparse
import os
import platform
import signal
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import torch

import antifreeze as af
from antifreeze.core import Progress

IDS, WORDS, THREADS, BATCH = 256, 1_000, 2, 256
STALL_LIMIT_S = 2
FAULTS = {30: signal.SIGKILL, 60: signal.SIGSTOP}
"""At these batches, the worker that made them gets this signal."""


def say(head: str, text: str = "") -> None:
    print(f"{head:<10} {text}", flush=True)


def make_dataset(folder: Path, files: int, rows: int) -> np.ndarray:
    """Write the files, sorted by label as real data often is; return the sum of the ids of each row."""
    rng, sums = np.random.default_rng(0), []
    for i in range(files):
        label = np.full(rows, 2 * i // files)
        ids = rng.integers(0, WORDS - 100, size=(rows, IDS), dtype=np.int32) + np.int32(100) * label[:, None]
        ids = ids.astype(np.int32)
        table = {
            "ids": pa.ListArray.from_arrays(np.arange(0, ids.size + 1, IDS, dtype=np.int32), ids.ravel()),
            "label": label.astype(np.float32),
            "row": np.arange(i * rows, (i + 1) * rows),
        }
        pq.write_table(pa.table(table), folder / f"part-{i}.parquet")
        sums.append(ids.sum(axis=1))
    return np.concatenate(sums)


def train(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Train for an epoch; return the numbers of the rows that came, and the sums of their ids."""
    dataset = af.StreamingDataset(folder, shuffle=True)
    loader = af.StreamingDataLoader(dataset, batch_size=BATCH, num_workers=THREADS)
    model = torch.nn.Sequential(torch.nn.Linear(IDS, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    failures, rows, sums = [], [], []
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    began_s = time.perf_counter()
    with Progress("Training  ", len(dataset), "rows") as bar:
        for batch in loader:
            guess = model(batch["ids"] / WORDS).squeeze(1)
            loss = torch.nn.functional.binary_cross_entropy_with_logits(guess, batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            failures.append(loss.item())
            rows.append(batch["row"].numpy().copy())
            sums.append(batch["ids"].sum(dim=1).numpy())
            bar.advance(len(batch["row"]))
    seconds = time.perf_counter() - began_s
    say(
        "" if sys.stderr.isatty() else "Training",
        f"one epoch in {seconds:.1f} s: {len(failures)} shuffled batches of {BATCH}",
    )
    say("", f"loss {np.mean(failures[:10]):.3f} at the start, {np.mean(failures[-10:]):.3f} at the end")
    return np.concatenate(rows), np.concatenate(sums)


def raw(folder: Path) -> None:
    """Decode all files to NumPy with pyarrow, in as many threads as the loader has, and nothing else."""

    def decode(files: list[Path]) -> None:
        for file in files:
            for batch in pq.ParquetFile(file).iter_batches(BATCH, use_threads=False):
                batch["ids"].flatten().to_numpy().reshape(-1, IDS)
                batch["label"].to_numpy(), batch["row"].to_numpy()

    files = sorted(folder.glob("*.parquet"))
    threads = [threading.Thread(target=decode, args=(files[i::THREADS],)) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def load(loader: af.StreamingDataLoader) -> None:
    """Take all batches of an epoch, and do nothing with them."""
    for _ in loader:
        pass


def compare(folder: Path, rows: int) -> None:
    """Print rows per second: the bare decoder, the loader, the loader shuffled; in turn, the better of two rounds."""
    dataset = af.StreamingDataset(folder)
    loader = af.StreamingDataLoader(dataset, batch_size=BATCH, num_workers=THREADS)
    shuffled = af.StreamingDataLoader(dataset, batch_size=BATCH, num_workers=THREADS, shuffle=True)
    cases: dict[str, Callable[[], None]] = {
        "bare decoder (pyarrow to NumPy)": lambda: raw(folder),
        "antifreeze": lambda: load(loader),
        "antifreeze, shuffled": lambda: load(shuffled),
    }
    best = dict.fromkeys(cases, float("inf"))
    for _ in range(2):
        for name, run in cases.items():
            began_s = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - began_s)
    say("Speed", f"without training, {THREADS} threads each, better of two rounds")
    for name, seconds in best.items():
        say("", f"  {name:<34}{rows / seconds:>11,.0f} rows/s {next(iter(best.values())) / seconds:>6.2f} x")


def check(rows: np.ndarray, sums: np.ndarray, wanted: np.ndarray) -> bool:
    """Say whether each row came exactly once, with its own ids, and whether all threads have ended."""
    times = np.bincount(rows, minlength=len(wanted))
    wrong = int((sums != wanted[rows]).sum()) if len(times) == len(wanted) else len(rows)
    left = [thread.name for thread in threading.enumerate() if thread.name.startswith("antifreeze")]
    good = bool((times == 1).all()) and not wrong and not left
    say(
        "Check",
        f"{len(wanted):,} rows: {(times == 1).sum():,} came once, {(times == 0).sum()} are missing, "
        f"{(times > 1).sum()} came twice",
    )
    say("", f"{wrong} rows with other ids than were written, {len(left)} threads left behind")
    say("", "OK: every row came exactly once" if good else "FAILED")
    return good


@af.batched
def augment(batch: dict[str, Any]) -> dict[str, Any]:
    """Run in a worker process: noise on the ids, at the pace of a transform that has something to do."""
    time.sleep(0.01)
    return {"row": batch["row"], "x": batch["ids"] / WORDS + torch.randn(batch["ids"].shape), "pid": os.getpid()}


def run(folder: Path, rows: int, faults: dict[int, signal.Signals]) -> tuple[af.StreamingDataLoader, list[Any]]:
    """Return a loader after an epoch, and for each batch its rows and the checksum of its values."""
    dataset = af.StreamingDataset(folder, shuffle=True, transform=augment).subset(slice(0, rows))
    loader = af.StreamingDataLoader(
        dataset, batch_size=max(1, min(BATCH, rows // 100)), num_workers=2, stall_limit=STALL_LIMIT_S
    )
    found = []
    for step, batch in enumerate(loader):
        found.append((batch["row"].tolist(), zlib.crc32(batch["x"].numpy().tobytes())))
        if step in faults:
            time.sleep(0.003)  # by now it is at another batch
            say("", f"batch {step} has come; the process that made it, {batch['pid']}, now gets {faults[step].name}")
            os.kill(batch["pid"], faults[step])
    return loader, found


def disturb(folder: Path, total: int) -> bool:
    """Kill a worker and stop another one in mid-epoch; say whether that changed anything."""
    rows = min(total, 40_000)
    wanted = run(folder, rows, {})[1]
    say("Workers", f"{rows:,} rows, {len(wanted)} batches, a transform in two processes")
    say("", "in mid-epoch, one of them is killed and one is stopped")
    loader, found = run(folder, rows, FAULTS)
    say("Report", "loader.report() prints:")
    report = loader.report()
    print(flush=True)
    numbers = sorted(row for batch, _ in found for row in batch)
    del loader  # and with it the process that has loaded the transform
    lost, left = len(report.restarts), processes_left()
    good = numbers == list(range(rows)) and found == wanted and lost == len(FAULTS) and not left
    say("Check", f"{rows:,} rows: {len(set(numbers)):,} came, {len(numbers) - len(set(numbers))} came twice")
    same = sum(map(tuple.__eq__, found, wanted))
    say("", f"{same} of {len(wanted)} batches, in order, have the bytes of a run without faults")
    say("", f"{lost} workers were replaced, {len(left)} processes left behind")
    say("", "OK: two workers were lost, and nothing else" if good else "FAILED")
    return good


def processes_left() -> list[str]:
    """Return the processes that this one has started, once they had time to end."""
    end_s = time.monotonic() + 20
    while True:
        left = " ".join(file.read_text() for file in Path("/proc/self/task").glob("*/children")).split()
        if not left or time.monotonic() > end_s:
            return left
        time.sleep(0.05)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--rows", type=int, default=25_000, help="rows in each file")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the model is tiny, and the decoder threads need the cores
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, Polars {pl.__version__}"
    say("antifreeze", f"{af.__version__}, {versions}, {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory(prefix="antifreeze-demo-") as name:
        folder, began_s = Path(name), time.perf_counter()
        wanted = make_dataset(folder, options.files, options.rows)
        size = sum(file.stat().st_size for file in folder.iterdir()) / 1e6
        seconds = time.perf_counter() - began_s
        say(
            "Data",
            f"{options.files} Parquet files, {len(wanted):,} rows of {IDS} ids, {size:.0f} MB, in {seconds:.1f} s",
        )
        mean = pl.scan_parquet(folder / "*.parquet").select(pl.col("label").mean()).collect().item()
        say("Polars", f"used in this process first: the mean label is {mean:.2f}")
        say("", "(a forked worker that uses Polars after this would hang)")
        rows, sums = train(folder)
        compare(folder, len(wanted))
        good = check(rows, sums, wanted)
        good &= disturb(folder, len(wanted))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
