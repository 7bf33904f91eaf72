"""Measures one loader on one dataset once, in this process, and prints one line of JSON.

    cd benchmarks && python -m workers.one rate antifreeze 1mb-array

Nothing is imported at the top but the standard library: torch's `spawn` imports this file in every worker.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

LOADERS = ("antifreeze", "torch-fork", "torch-forkserver", "torch-spawn")


def make_loader(name: str, dataset: Any, **options: Any) -> Any:
    import torch

    torch.set_num_threads(1)
    if name == "antifreeze":
        import antifreeze

        return antifreeze.DataLoader(dataset, **options)
    method = name.partition("-")[2]
    return torch.utils.data.DataLoader(dataset, multiprocessing_context=method, **options)


def rate(loader: str, case_name: str, warm_up_s: float, seconds: float) -> dict[str, Any]:
    """Batches, wall and CPU of the tree in a steady state."""
    from measure import tree_cpu_s

    from workers.cases import CASES

    case = CASES[case_name]
    iterator = iter(make_loader(loader, case.make(), num_workers=2, **case.options))
    began_s = time.perf_counter()
    batch = next(iterator)
    first_s = time.perf_counter() - began_s
    count = _take(iterator, warm_up_s, least=8)
    cpu_s, own_s, began_s = tree_cpu_s(), time.process_time(), time.perf_counter()
    count = _take(iterator, seconds, least=8)
    wall_s = time.perf_counter() - began_s
    own_s = time.process_time() - own_s
    return {
        "first_s": first_s,
        "batches": count,
        "wall_s": wall_s,
        "cpu_s": tree_cpu_s() - cpu_s,
        "trainer_cpu_s": own_s,
        "holds": str(tuple(getattr(batch, "shape", ()))),
    }


def _take(iterator: Any, seconds: float, least: int) -> int:
    perf_counter, count = time.perf_counter, 0
    stop_s = perf_counter() + seconds
    for _ in iterator:
        count += 1
        if perf_counter() > stop_s and count >= least:
            break
    return count


def start(loader: str, case_name: str) -> dict[str, Any]:
    """Seconds from `iter()` to the first batch, with four workers. torch is imported before, as in any trainer."""
    from workers.cases import CASES

    case = CASES[case_name]
    made = make_loader(loader, case.make(), num_workers=4, **case.options)
    began_s = time.perf_counter()
    iterator = iter(made)
    next(iterator)
    return {"first_s": time.perf_counter() - began_s}


def workers_of() -> dict[str, int]:
    """Our worker processes, by name."""
    from measure import descendants

    names = {pid: Path(f"/proc/{pid}/comm").read_text().strip() for pid in descendants()}
    return {name: pid for pid, name in names.items() if name.startswith("af-worker")}


def cure(fault: str, faults: int) -> dict[str, Any]:
    """The longest wait for a batch after a worker was killed or stopped, again and again."""
    import logging

    import antifreeze
    from workers.cases import CASES

    logging.getLogger("antifreeze").setLevel(logging.ERROR)
    case = CASES["sleep-5ms"]
    more = {"stall_limit": 2.0} if fault == "stop" else {}
    iterator = iter(make_loader("antifreeze", case.make(), num_workers=2, max_restarts=10_000, **more, **case.options))
    del antifreeze
    _take(iterator, 1.0, least=8)
    gaps, undisturbed = [], []
    for number in range(faults):
        undisturbed.append(_longest(iterator, 1.0))
        pid = workers_of()[f"af-worker-{number % 2}"]
        os.kill(pid, signal.SIGKILL if fault == "kill" else signal.SIGSTOP)
        gaps.append(_longest(iterator, 1.0 if fault == "kill" else 5.0))
    return {"gaps_s": gaps, "undisturbed_s": undisturbed}


def _longest(iterator: Any, seconds: float) -> float:
    """The longest wait within some seconds."""
    perf_counter = time.perf_counter
    longest_s, before_s = 0.0, perf_counter()
    stop_s = before_s + seconds
    while before_s < stop_s:
        next(iterator)
        now_s = perf_counter()
        longest_s, before_s = max(longest_s, now_s - before_s), now_s
    return longest_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("probe", choices=["rate", "start", "cure"])
    parser.add_argument("loader", choices=LOADERS)
    parser.add_argument("case")
    parser.add_argument("--warm-up", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--faults", type=int, default=15)
    options = parser.parse_args()
    if options.probe == "rate":
        result = rate(options.loader, options.case, options.warm_up, options.seconds)
    elif options.probe == "start":
        result = start(options.loader, options.case)
    else:
        result = cure(options.case, options.faults)
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
