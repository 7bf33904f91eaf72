"""How long workers take to start, and what they hold: ours against torch's `fork`, and against one new process.

    python benchmarks/start.py                    all datasets, 2 and 4 workers, five epochs, three rounds
    python benchmarks/start.py --only tuples      one of them

Each measurement is a process of its own, and all kinds take turns in each round. `once` imports the same modules and
loads the same pickled dataset in a new interpreter, and reads one item, which may import more: what a first epoch
cannot do without. Datasets whose library is not installed are left out. Needs pandas, albumentations, datasets and
monai for all of them.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

LIBRARIES = {"plain": "", "pandas": "pandas", "albumentations": "albumentations", "datasets": "datasets"}
LIBRARIES |= {"monai": "monai", "tuples": ""}


def make(name: str) -> Any:
    """Return a dataset that uses a library, as people write it."""
    import start_datasets

    return start_datasets.MAKERS[name]()


def loader_class(kind: str) -> Any:
    if kind == "torch":
        from torch.utils.data import DataLoader

        return DataLoader
    from antifreeze import DataLoader as Ours

    return Ours


def epochs(name: str, kind: str, workers: int, prestart: bool) -> dict[str, Any]:
    """Return the seconds to the first batch of five epochs, and the memory of all processes at the end of the last."""
    dataset = make(name)
    batch = 1000 if name == "tuples" else 8
    loader = loader_class(kind)(dataset, batch_size=batch, shuffle=True, num_workers=workers)
    if prestart:
        if kind == "antifreeze":
            loader.prestart()
        time.sleep(float(os.environ.get("MODEL_S", "12")))  # the model is built
    found, pss = [], 0
    for _ in range(5):
        began_s = time.perf_counter()
        iterator = iter(loader)
        next(iterator)
        found.append(time.perf_counter() - began_s)
        left = len(loader) - 1
        for _ in iterator:
            left -= 1
            if left == 2 * workers:
                pss = pss_of_tree(os.getpid())
    return {"first": found, "pss": pss}


def both(kind: str, workers: int) -> dict[str, Any]:
    """Return the seconds that all starts take, of a loader for training and one for validation in turn."""
    loaders = [loader_class(kind)(make("pandas"), batch_size=8, shuffle=True, num_workers=workers) for _ in range(2)]
    found = []
    for _ in range(5):
        began_s, spent_s = time.perf_counter(), 0.0
        for loader in loaders:
            began_s = time.perf_counter()
            iterator = iter(loader)
            next(iterator)
            spent_s += time.perf_counter() - began_s
            list(iterator)
        found.append(spent_s)
    return {"first": found, "pss": 0}


def pss_of_tree(pid: int) -> int:
    """Return the memory of a process and all its descendants in bytes, each shared page counted once."""
    total = 0
    for process in descendants(pid):
        try:
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
    return total


def descendants(pid: int) -> list[int]:
    """Return a process and all that it has started."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [each for child in task.read_text().split() for each in descendants(int(child))]
        except OSError:
            continue
    return found


ONCE = "import pickle, sys, pathlib; pickle.loads(pathlib.Path(sys.argv[1]).read_bytes())[0]"


def once(name: str) -> float:
    """Return the seconds that a new interpreter takes to import the modules of a dataset, load it and read an item."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "dataset.pkl"
        path.write_bytes(pickle.dumps(make(name)))
        began_s = time.perf_counter()
        subprocess.run([sys.executable, "-c", ONCE, str(path)], check=True, cwd=Path(__file__).parent, timeout=600)
        return time.perf_counter() - began_s


def one(*arguments: str) -> dict[str, Any]:
    """Return what a process of its own measures."""
    command = [sys.executable, __file__, "--one", *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=900)
    return json.loads(done.stdout.splitlines()[-1])


def measured(arguments: list[str]) -> dict[str, Any]:
    what, kind, workers = arguments[0], arguments[1], int(arguments[2])
    if kind == "once":
        return {"first": [once(what)], "pss": 0}
    if what == "both":
        return both(kind, workers)
    return epochs(what, kind, workers, arguments[3:] == ["prestart"])


def row(name: str, workers: int, rounds: list[dict[str, dict[str, Any]]]) -> str:
    """Return a line of the table: medians of the rounds."""

    def median(kind: str, first: bool) -> float:
        picked = [r[kind]["first"][:1] if first else r[kind]["first"][1:] for r in rounds]
        return statistics.median(seconds for found in picked for seconds in found)

    pss = [statistics.median(r[kind]["pss"] for r in rounds) / 1e6 for kind in ("torch", "antifreeze")]
    cells = [name, str(workers)]
    cells += [f"{median(kind, True):.2f}" for kind in ("once", "torch", "antifreeze", "prestarted")]
    cells += [f"{median(kind, False):.3f}" for kind in ("torch", "antifreeze")]
    cells += [f"{pss[0]:.0f} / {pss[1]:.0f}" + (f" ({pss[1] / pss[0]:.2f})" if pss[0] else "")]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Measure everything that can be, in turn, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[*LIBRARIES, "both"])
    parser.add_argument("--workers", nargs="*", type=int, default=[2, 4])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", nargs="+")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measured(options.one)))
        return
    print(
        "| dataset | workers | once | first: torch | ours | prestarted | later: torch | ours | PSS, MB: torch / ours |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for name in options.only:
        library = LIBRARIES.get(name, "pandas")
        if library and importlib.util.find_spec(library) is None:
            print(f"| {name} | left out: {library} is not installed |", flush=True)
            continue
        for workers in options.workers:
            rounds = []
            for _ in range(options.rounds):
                found = {kind: one(name, kind, str(workers)) for kind in ("torch", "antifreeze")}
                found["once"] = one("pandas" if name == "both" else name, "once", "0")
                found["prestarted"] = found["antifreeze"]
                if name != "both":
                    found["prestarted"] = one(name, "antifreeze", str(workers), "prestart")
                rounds.append(found)
            print(row(name, workers, rounds), flush=True)


if __name__ == "__main__":
    main()
