"""What reading imports: worker processes, and all that they need, only where user code runs.

``cloudpickle`` is not among it: pyarrow imports it itself.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

SCRIPT = """
import sys
import antifreeze as af

dataset = af.StreamingDataset(sys.argv[1], format=sys.argv[2], shuffle=True)
loader = af.StreamingDataLoader(dataset, batch_size=8, num_workers=2)
rows = sum(len(batch["n"]) for batch in loader)
loader.load_state_dict(loader.state_dict())
loader.report()
unwanted = ("antifreeze.pool", "antifreeze.forkserver", "antifreeze.payload", "antifreeze.worker")
found = [name for name in unwanted if name in sys.modules]
sys.exit(f"{rows} rows, and imported {found}" if found or rows != 100 else 0)
"""


@pytest.mark.parametrize("form", ["numpy", "arrow", "torch"])
def test_threads_read_without_importing_worker_processes(form: str, tmp_path: Path) -> None:
    """Who has no transform starts no process, and should not pay for importing what starts them."""
    pq.write_table(pa.table({"n": list(range(100))}), tmp_path / "a.parquet")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path), form], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
