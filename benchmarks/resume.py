"""How long a run takes to go on: the first batch after a resume against that of a fresh start, at several positions.

python benchmarks/resume.py                  # 5 million rows, written once to a temporary folder
python benchmarks/resume.py --rows 200000    # a look

Every measurement has a fresh process; all of them are taken in turn, and the whole round is repeated.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

POSITIONS = (0.0, 0.01, 0.5, 0.99)
NUM_FILES, GROUP_ROWS, LENGTH, BATCH_SIZE = 50, 20_000, 8, 256
TIMEOUT_S = 300.0


def write(folder: Path, num_rows: int) -> None:
    """Write the rows, unless they are there."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True, exist_ok=True)
    per_file = num_rows // NUM_FILES
    for number in range(NUM_FILES):
        path = folder / f"part-{number:03}.parquet"
        if not path.exists():
            random = np.random.default_rng(number)
            values = pa.FixedSizeListArray.from_arrays(random.random(per_file * LENGTH, np.float32), LENGTH)
            table = pa.table({"number": np.arange(number * per_file, (number + 1) * per_file), "values": values})
            pq.write_table(table, path, row_group_size=GROUP_ROWS)


def measure(folder: Path, position: float, shuffle: bool) -> float:
    """Return the seconds from ``iter()`` to the first batch, after a state was loaded."""
    import torch  # noqa: F401  a trainer has it

    import antifreeze as af

    dataset = af.StreamingDataset(folder, shuffle=shuffle)
    loader = af.StreamingDataLoader(dataset, batch_size=BATCH_SIZE, num_workers=2)
    if position:
        other = af.StreamingDataLoader(dataset, batch_size=BATCH_SIZE, num_workers=0)
        next(iter(other))
        state = other.state_dict()
        state["sample"] = int(len(loader) * position) * BATCH_SIZE
        del dataset.__dict__["_spec"]  # it would be there already
        loader.load_state_dict(state)
    began_s = time.perf_counter()
    next(iter(loader))
    return time.perf_counter() - began_s


def main() -> None:
    """Measure all positions in turn, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "antifreeze-resume")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    folder = options.data / str(options.rows)
    if options.one:
        print(json.dumps(measure(folder, float(options.one[0]), options.one[1] == "shuffled")))
        return
    write(folder, options.rows)
    found: dict[tuple[str, float], list[float]] = {}
    for number in range(options.repeats):
        for order in ("in order", "shuffled"):
            for position in POSITIONS[:: 1 if number % 2 else -1]:
                command = [sys.executable, __file__, "--rows", str(options.rows), "--data", str(options.data)]
                command += ["--one", str(position), order]
                done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
                found.setdefault((order, position), []).append(json.loads(done.stdout))
                print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    print("| order | position | first batch | of a fresh start |\n| --- | ---: | ---: | ---: |")
    for (order, position), seconds in sorted(found.items()):
        fresh = found[order, 0.0]
        ratio = statistics.median(a / b for a, b in zip(seconds, fresh, strict=True))
        median = statistics.median(seconds)
        print(f"| {order} | {position:.0%} | {median * 1e3:.0f} ms | {ratio:.2f} |")


if __name__ == "__main__":
    main()
