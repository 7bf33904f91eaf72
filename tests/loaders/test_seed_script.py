"""The script that started this project: it hangs with litData, and delivers here by a change of its import lines."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# The reproduction script of litData issue 823 with its indentation restored. Changed: the two import lines, the
# folder, the size, the time limit, and ``low_memory``, which the original has as False.
SCRIPT = '''
#!/usr/bin/env python3
"""Reproduce litdata + Polars + fork() DataLoader hang with low_memory=False."""
import multiprocessing as mp
import os
import shutil
import signal
import sys
import time

DATA_DIR = @DATA_DIR@
TIMEOUT_SEC = 90


def main() -> None:
    mode = sys.argv[1] if len(sys.argv) > 1 else "fork"
    assert mode in ("fork", "spawn", "forkserver"), f"unknown mode: {mode!r}"
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    import polars as pl
    import antifreeze as ld
    from antifreeze.streaming.item_loader import ParquetLoader

    print(f"[env] python={sys.version.split()[0]} "
          f"default_mp_start_method={mp.get_start_method(allow_none=False)!r} "
          f"litdata={ld.__version__} polars={pl.__version__}")

    if os.path.exists(DATA_DIR):
        shutil.rmtree(DATA_DIR)
    os.makedirs(DATA_DIR, exist_ok=True)
    rng = np.random.default_rng(0)
    n_files, rows_per_file, seq_len = 8, 300, 64
    for i in range(n_files):
        tbl = pa.table({
            "ids": rng.integers(0, 32_000, size=(rows_per_file, seq_len), dtype=np.int32).tolist(),
            "labels": rng.integers(0, 2, size=rows_per_file, dtype=np.int64),
            "score": rng.random(rows_per_file, dtype=np.float32),
            "tag": [f"tag_{j}" for j in range(rows_per_file)],
        })
        pq.write_table(tbl, os.path.join(DATA_DIR, f"part-{i}.parquet"))
    ld.index_parquet_dataset(DATA_DIR)

    # Touch Polars in the parent first — mirrors what happens when a validation
    # sanity check runs before training workers are forked.
    _ = pl.scan_parquet(os.path.join(DATA_DIR, "part-0.parquet")).collect()

    dataset = ld.StreamingDataset(
        DATA_DIR,
        item_loader=ParquetLoader(low_memory=@LOW_MEMORY@),
    )
    loader_kwargs: dict = {"batch_size": 8, "num_workers": 4}
    if mode != "fork":
        loader_kwargs["multiprocessing_context"] = mp.get_context(mode)
    loader = ld.StreamingDataLoader(dataset, **loader_kwargs)

    t0 = time.time()
    for i, batch in enumerate(loader):
        print(f"  got batch {i} ({time.time() - t0:.1f}s)")
        if i >= 5:
            break
    print(f"[OK] completed normally in {time.time() - t0:.1f}s")
@MORE@

if __name__ == "__main__":
    def _on_timeout(signum, frame):
        sys.stderr.write(f"\\n[!] TIMED OUT after {TIMEOUT_SEC}s -- this is the hang.\\n")
        os._exit(124)

    signal.signal(signal.SIGALRM, _on_timeout)
    signal.alarm(TIMEOUT_SEC)
    main()
'''

# Every value of every row, against what Polars reads from the same files.
CHECK_ALL = """
    for options in ({}, {"shuffle": True}):
        tables = {i: pl.read_parquet(os.path.join(DATA_DIR, f"part-{i}.parquet")) for i in range(n_files)}
        whole = pl.concat(tables.values())
        expected = sorted(zip(
            (tuple(row) for row in whole["ids"].to_list()), whole["labels"].to_list(), whole["score"].to_list(),
            whole["tag"].to_list()))
        rows = []
        for batch in ld.StreamingDataLoader(dataset, **loader_kwargs, **options):
            assert batch["ids"].shape == (8, seq_len), batch["ids"].shape
            rows += zip(map(tuple, batch["ids"].tolist()), batch["labels"].tolist(), batch["score"].tolist(),
                        batch["tag"])
        assert len(rows) == n_files * rows_per_file
        assert (sorted(rows) == rows) is False
        assert sorted(rows) == expected
    print("[OK] every row once")
"""


def run(folder: Path, mode: str, low_memory: bool, more: str = "") -> subprocess.CompletedProcess[str]:
    script = SCRIPT.replace("@DATA_DIR@", repr(str(folder / "data"))).replace("@LOW_MEMORY@", str(low_memory))
    path = folder / "reproduce.py"
    path.write_text(script.replace("@MORE@", more).lstrip())
    command = [sys.executable, "-W", "error", str(path), mode]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.parametrize("low_memory", [False, True])
@pytest.mark.parametrize("mode", ["fork", "spawn", "forkserver"])
def test_the_script_that_hangs_elsewhere_delivers(tmp_path: Path, mode: str, low_memory: bool) -> None:
    """With every start method, after Polars was used in the parent, and without a word on stderr."""
    done = run(tmp_path, mode, low_memory)

    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert [line.split("(")[0].strip() for line in lines[1:-1]] == [f"got batch {i}" for i in range(6)]
    assert lines[-1].startswith("[OK] completed normally")


@pytest.mark.parametrize(("mode", "low_memory"), [("fork", False), ("forkserver", True)])
def test_the_script_delivers_every_row_when_it_is_not_stopped(tmp_path: Path, mode: str, low_memory: bool) -> None:
    """Six batches prove that there is no hang; all rows prove that nothing is missing."""
    done = run(tmp_path, mode, low_memory, more=CHECK_ALL)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "[OK] every row once"
