"""The module of the dataset does not end its import in a spawned worker."""

import importlib
import sys
import warnings
from pathlib import Path

from torch.utils.data import DataLoader

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])
sys.path.insert(0, str(READY.parent))
MODULE = f"""
import multiprocessing, time, pathlib
if multiprocessing.current_process().name != 'MainProcess':
    pathlib.Path({str(READY)!r}).touch()
    time.sleep(10**6)  # a download of a model, say

class Numbers:
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        return index
"""

if __name__ == "__main__":
    (READY.parent / "number_data.py").write_text(MODULE)
    dataset = importlib.import_module("number_data").Numbers()
    for batch in DataLoader(dataset, batch_size=4, num_workers=2, multiprocessing_context="spawn"):
        print(batch)
