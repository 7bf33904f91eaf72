"""Measurements that are not a rate: the first batch, the peak of memory, the import.

python benchmarks/probes.py first antifreeze     # seconds to the first batch, JSON
python benchmarks/probes.py memory antifreeze    # bytes above the process before iter(), JSON
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

from cases import ANTIFREEZE, CASES, RAW
from data import Data, add_options

MEMORY_LIMIT = "256MB"
FIRST_ROWS = 256


def first(case: str, folder: Path) -> dict[str, Any]:
    """Seconds from nothing but imports to the first batch."""
    from cases import _raw
    from measure import touch, warm_up

    warm_up()
    if case == RAW:
        began_s = time.perf_counter()
        _raw.first_rows(folder, FIRST_ROWS)
        return {"first_s": time.perf_counter() - began_s}
    make = CASES[case].load()
    began_s = time.perf_counter()
    iterator = iter(make(folder, FIRST_ROWS, False))
    touch(next(iterator))
    return {"first_s": time.perf_counter() - began_s}


class Watch(threading.Thread):
    """Peak of the resident bytes. The kernel keeps it exactly, if it lets us reset it; else we look often."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        from measure import rss_nbytes

        self.rss_nbytes = rss_nbytes
        self.peak_nbytes = 0
        self.done = threading.Event()
        self.exact = False
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
            self.exact = True
        self.before_nbytes = rss_nbytes()

    def run(self) -> None:
        while not self.done.wait(0.005):
            self.peak_nbytes = max(self.peak_nbytes, self.rss_nbytes())

    def peak(self) -> int:
        self.done.set()
        if self.exact:
            for row in Path("/proc/self/status").read_text().splitlines():
                if row.startswith("VmHWM:"):
                    return max(self.peak_nbytes, int(row.split()[1]) * 1024)
        return self.peak_nbytes


def memory(folder: Path, shuffle: bool) -> dict[str, Any]:
    """One pass of antifreeze with a memory limit; torch is imported before, as in a training process."""
    import torch

    torch.zeros(1)
    from cases import _antifreeze
    from measure import touch

    loader = _antifreeze.make(folder, FIRST_ROWS, shuffle, memory_limit=MEMORY_LIMIT)
    gc.collect()
    watch = Watch()
    watch.start()
    rows = 0
    for batch in loader:
        rows += touch(batch)
    return {"above_mb": (watch.peak() - watch.before_nbytes) / 1e6, "rows": rows, "exact": watch.exact}


def run(*arguments: str, timeout_s: float = 120.0) -> dict[str, Any]:
    """One probe in a fresh process."""
    command = [sys.executable, str(Path(__file__).resolve()), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
        result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except subprocess.TimeoutExpired:
        return {"error": f"timed out after {timeout_s:.0f} s"}
    except (ValueError, IndexError):
        return {"error": (done.stderr.strip().splitlines() or ["no output"])[-1][:300]}
    return result


def first_batches(data: list[str], repeats: int) -> dict[str, Any]:
    """Interleaved: ours, then the raw decoder's, so many times."""
    ours, raw = [], []
    for _ in range(repeats):
        for case, into in ((RAW, raw), (ANTIFREEZE, ours)):
            result = run("first", case, *data)
            if "error" in result:
                return result
            into.append(result["first_s"])
    return {"ours_s": median(ours), "raw_s": median(raw), "ours_all_s": ours, "raw_all_s": raw}


def memory_peaks(data: list[str], repeats: int) -> dict[str, Any]:
    """The largest peak of all passes, in order and shuffled."""
    peaks: dict[str, float] = {}
    for name, more in (("in order", []), ("shuffled", ["--shuffle"])):
        for _ in range(repeats):
            result = run("memory", ANTIFREEZE, *more, *data)
            if "error" in result:
                return result
            peaks[name] = max(peaks.get(name, 0.0), result["above_mb"])
    return {"above_mb": peaks}


def import_time(runs: int = 20) -> dict[str, Any]:
    """`import antifreeze` over a bare interpreter, in turn; and which heavy packages it pulls in."""
    times: dict[str, list[float]] = {"pass": [], "import antifreeze": []}
    for _ in range(runs):
        for code, into in times.items():
            began_s = time.perf_counter()
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
            into.append(time.perf_counter() - began_s)
            if done.returncode:
                return {"error": (done.stderr.strip().splitlines() or ["failed"])[-1]}
    bare, ours = times.values()
    look = "import antifreeze, sys; print(*({'torch', 'pyarrow', 'numpy'} & set(sys.modules)))"
    heavy = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=False).stdout.split()
    return {
        "median_ms": (median(ours) - median(bare)) * 1e3,
        "min_ms": (min(ours) - min(bare)) * 1e3,
        "bare_median_ms": median(bare) * 1e3,
        "heavy": sorted(heavy),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("probe", choices=["first", "memory", "import"])
    parser.add_argument("case", nargs="?", default=ANTIFREEZE, choices=CASES)
    parser.add_argument("--shuffle", action="store_true")
    add_options(parser)
    options = parser.parse_args()
    if options.probe == "import":
        print(json.dumps(import_time()))
        return
    folder = Data(root=options.data, rows_per_file=options.rows_per_file).folder("A")
    result = first(options.case, folder) if options.probe == "first" else memory(folder, options.shuffle)
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
