"""Measures one loader once, in this process, and prints one line of JSON.

    python benchmarks/measure.py antifreeze --batch 256 --shuffle

The clock starts after the imports and before the loader is made. The consumer counts rows and reads one byte of
every tensor. CPU seconds are those of the whole process tree, workers that are still alive included.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import resource
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cases import CASES, RAW, Case
from data import Data, add_options

PAGE_NBYTES = resource.getpagesize()
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def descendants() -> list[int]:
    """Process ids of all children, their children and so on."""
    import psutil

    with contextlib.suppress(psutil.Error):
        return [process.pid for process in psutil.Process().children(recursive=True)]
    return []


def tree_cpu_s(but_s: float = 0.0) -> float:
    """CPU seconds of this process and everything below it, the dead included if somebody waited for them."""
    own, dead = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    total = own.ru_utime + own.ru_stime + dead.ru_utime + dead.ru_stime - but_s
    for pid in descendants():
        with contextlib.suppress(OSError):
            # utime, stime, cutime, cstime stand 11 fields after the name, which may itself hold spaces.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += sum(int(field) for field in fields[11:15]) / TICKS_PER_S
    return total


def rss_nbytes() -> int:
    """Resident bytes of this process alone."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_NBYTES


def pss_nbytes(pid: int | str) -> int:
    """Bytes of one process, with pages that it shares divided among those who share them."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


class Sampler(threading.Thread):
    """Watches the memory of the tree. Its own CPU time is known, so that it can be taken off."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak_nbytes = 0
        self.cpu_s = 0.0
        self.done = threading.Event()

    def run(self) -> None:
        wait_s = 0.1
        while not self.done.wait(wait_s):
            began_s = time.perf_counter()
            below = descendants()
            # PSS walks the page tables: cheap for a thread-only loader to do without, needed when memory is shared.
            now = sum(pss_nbytes(pid) for pid in ["self", *below]) if below else rss_nbytes()
            self.peak_nbytes = max(self.peak_nbytes, now)
            self.cpu_s = time.thread_time()
            wait_s = max(0.1, 50 * (time.perf_counter() - began_s))


@dataclass(slots=True)
class Reading:
    """Rows, clock and CPU at one moment."""

    rows: int
    at_s: float
    cpu_s: float


def touch(batch: Any) -> int:
    """Read one byte of every tensor; return the number of rows.

    `tensor[0, 0].item()` takes 3 µs, this 0.5 µs: at batch 8 that would be a good part of what is measured.
    """
    rows = 0
    for value in batch.values():
        if hasattr(value, "data_ptr"):
            _ = ctypes.c_byte.from_address(value.data_ptr()).value
            rows = value.shape[0]
        elif not rows and isinstance(value, list):
            touch_list(value)
    return rows


def touch_list(values: list[Any]) -> None:
    """litData's default collate makes lists of tensors: one byte of each."""
    for value in values:
        if hasattr(value, "data_ptr"):
            _ = ctypes.c_byte.from_address(value.data_ptr()).value


def shapes(batch: Any) -> dict[str, str]:
    """What a batch holds, for the report."""
    result = {}
    for name, value in batch.items():
        if hasattr(value, "data_ptr"):
            result[name] = f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
        else:
            result[name] = f"{type(value).__name__} of {len(value)} {type(value[0]).__name__}"
    return result


def warm_up() -> None:
    """Let pyarrow do its lazy imports now: its first `to_numpy` of strings imports pandas, 0.3 s, if it is there."""
    import psutil
    import pyarrow as pa
    import pyarrow.parquet as pq
    import torch

    del psutil, pq
    pa.array(["a"]).to_numpy(zero_copy_only=False)
    torch.zeros(1)


def consume(case: Case, folder: Path, options: argparse.Namespace, sampler: Sampler) -> dict[str, Any]:
    """Iterate over the loader until the pass ends or the time is over."""
    make = case.load()
    begin = Reading(0, time.perf_counter(), tree_cpu_s())
    sampler.start()
    iterator = iter(make(folder, options.batch, options.shuffle))
    batch = next(iterator)
    first = Reading(touch(batch), time.perf_counter(), tree_cpu_s(sampler.cpu_s))
    held, rows, batches = shapes(batch), first.rows, 1
    stop_s = first.at_s + options.seconds if options.seconds else float("inf")
    whole = False
    perf_counter = time.perf_counter
    for batch in iterator:
        rows += touch(batch)
        batches += 1
        if perf_counter() > stop_s:
            break
    else:
        whole = True
    end = Reading(rows, time.perf_counter(), tree_cpu_s(sampler.cpu_s))
    return {**summary(begin, first, end), "batches": batches, "whole_pass": whole, "holds": held}


def decode_only(case: Case, folder: Path, options: argparse.Namespace, sampler: Sampler) -> dict[str, Any]:
    """The baseline. It has no consumer: each thread drops what it decoded."""
    from cases import _raw

    del case
    begin = Reading(0, time.perf_counter(), tree_cpu_s())
    sampler.start()
    seen = _raw.sweep(folder, options.batch, begin.at_s)
    end = Reading(seen.rows, time.perf_counter(), tree_cpu_s(sampler.cpu_s))
    first = Reading(0, begin.at_s + seen.first_s, begin.cpu_s)
    return {**summary(begin, first, end), "batches": seen.batches, "whole_pass": True, "holds": {}}


def summary(begin: Reading, first: Reading, end: Reading) -> dict[str, Any]:
    return {
        "rows": end.rows,
        "first_s": first.at_s - begin.at_s,
        "wall_s": end.at_s - begin.at_s,
        "cpu_s": end.cpu_s - begin.cpu_s,
        "rows_after_first": end.rows - first.rows,
        "wall_after_first_s": end.at_s - first.at_s,
        "cpu_after_first_s": end.cpu_s - first.cpu_s,
    }


def give_up(timeout_s: float) -> None:
    """Runs in a timer thread: whatever the loader waits for, the measurement ends."""
    finish({"error": f"timed out after {timeout_s:.0f} s"})


def finish(result: dict[str, Any]) -> None:
    """Print the result and leave without waiting: some loaders hang at exit."""
    os.write(result_fd, (json.dumps(result) + "\n").encode())
    for pid in descendants():
        with contextlib.suppress(OSError):
            # The resource tracker ends by itself, after it has removed the shared memory that the killed ones held.
            if b"resource_tracker" not in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
    os._exit(0)


result_fd = 1


def main() -> None:
    global result_fd
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--workload", choices=["A", "B"], default="A")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--shuffle", action="store_true")
    parser.add_argument("--seconds", type=float, default=4.0, help="stop so long after the first batch; 0: whole pass")
    parser.add_argument("--timeout", type=float, default=120.0, help="give up after so many seconds")
    add_options(parser)
    options = parser.parse_args()

    # Loaders print; only the result may go to stdout.
    result_fd = os.dup(1)
    os.dup2(2, 1)
    case, data = CASES[options.case], Data(root=options.data, rows_per_file=options.rows_per_file)
    if missing := case.missing():
        finish({"error": f"not installed: {missing}"})
    try:
        folder = data.folder(options.workload, case.form)
        timer = threading.Timer(options.timeout, give_up, [options.timeout])
        timer.daemon = True
        timer.start()
        sampler = Sampler()
        warm_up()
        run = decode_only if case.name == RAW else consume
        result = run(case, folder, options, sampler)
        result["peak_mb"] = max(sampler.peak_nbytes, rss_nbytes()) / 1e6
    except BaseException as error:
        import traceback

        traceback.print_exc()
        result = {"error": f"{type(error).__name__}: {error}"[:300]}
    sys.stderr.flush()
    finish(result)


if __name__ == "__main__":
    main()
