"""Measures one loader on one dataset once, in this process, and prints one line of JSON.

    cd benchmarks
    python -m workers.one rate antifreeze 1mb-array     # batches, wall and CPU of the process tree, steady state
    python -m workers.one start torch-spawn start-torch # seconds from iter() to the first batch, 4 workers
    python -m workers.one memory antifreeze 4           # memory of 4 workers that share an array of 1 GB
    python -m workers.one cure antifreeze kill          # longest wait for a batch after a worker was killed
    python -m workers.one watch antifreeze 16           # CPU of supervision at 1,000 batches of 16 a second

Nothing is imported at the top but the standard library: torch's `spawn` imports this file in every worker.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from typing import Any

LOADERS = ("antifreeze", "torch-fork", "torch-forkserver", "torch-spawn", "direct", "import")
RATE_WORKERS = 2
START_WORKERS = 4
LEAST_BATCHES = 48
"""Of slow samples, that is four seconds."""


def make_loader(name: str, dataset: Any, **options: Any) -> Any:
    """A loader of that name. `direct` makes batches in the calling thread: what samples and collating cost alone."""
    import torch

    torch.set_num_threads(1)
    if name == "direct":
        return torch.utils.data.DataLoader(dataset, **{**options, "num_workers": 0})
    if name == "antifreeze":
        import antifreeze

        return antifreeze.DataLoader(dataset, **options)
    method = name.partition("-")[2]
    return torch.utils.data.DataLoader(dataset, multiprocessing_context=method, **options)


def take(iterator: Any, seconds: float, least: int = 8) -> int:
    """Take batches for so long, at least so many, and drop them; return how many.

    As many of each worker: their batches come together, and it would count which of them the clock stops at.
    """
    perf_counter, count = time.perf_counter, 0
    stop_s = perf_counter() + seconds
    for _ in iterator:
        count += 1
        if perf_counter() > stop_s and count >= least and count % RATE_WORKERS == 0:
            break
    return count


def rate(loader: str, name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Batches, wall and CPU of the tree in a steady state: what it costs to start is not in it."""
    from measure import tree_cpu_s
    from workers.cases import CASES

    case = CASES[name]
    iterator = iter(make_loader(loader, case.make(), num_workers=RATE_WORKERS, **case.options))
    tree_cpu_s()  # the first time imports what it needs: workers would make batches ahead in that time
    take(iterator, options.warm_up)
    # Whoever is below this process is alive at both readings, so nothing of what it used is lost or counted twice.
    tree_s, own_s, began_s = tree_cpu_s(), time.process_time(), time.perf_counter()
    count = take(iterator, options.seconds, least=LEAST_BATCHES)
    wall_s, own_s = time.perf_counter() - began_s, time.process_time() - own_s
    return {"batches": count, "wall_s": wall_s, "cpu_s": tree_cpu_s() - tree_s, "trainer_cpu_s": own_s}


def start(loader: str, name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Seconds from `iter()` to the first batch. torch is imported before, as in any trainer.

    `import` is what a new process needs to import torch, and nothing else.
    """
    from workers.cases import CASES

    del options
    if loader == "import":
        began_s = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import torch, os; os._exit(0)"], check=True, timeout=60)
        return {"first_s": time.perf_counter() - began_s}
    case = CASES[name]
    made = make_loader(loader, case.make(), num_workers=START_WORKERS, **case.options)
    began_s = time.perf_counter()
    iterator = iter(made)
    next(iterator)
    return {"first_s": time.perf_counter() - began_s}


def run(options: argparse.Namespace) -> dict[str, Any]:
    if options.probe in ("rate", "start"):
        probe: Any = {"rate": rate, "start": start}[options.probe]
    else:
        from workers import probes

        probe = getattr(probes, options.probe)
    result: dict[str, Any] = probe(options.loader, options.what, options)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("probe", choices=["rate", "start", "memory", "cure", "watch"])
    parser.add_argument("loader", choices=LOADERS)
    parser.add_argument("what", help="a case; for memory, how many workers; for cure, kill or stop; for watch, a batch")
    parser.add_argument("--warm-up", type=float, default=0.7)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--faults", type=int, default=15)
    options = parser.parse_args()
    # Loaders print; only the result may go to stdout.
    result_fd = os.dup(1)
    os.dup2(2, 1)
    result = run(options)
    os.write(result_fd, (json.dumps(result) + "\n").encode())
    sys.stderr.flush()


if __name__ == "__main__":
    main()
