"""A thread of the trainer is importing a large module when the workers are forked, and they import it too."""

import importlib
import sys
import threading
import warnings
from pathlib import Path

from torch.utils.data import DataLoader, Dataset

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])
STARTED = threading.Event()
sys.path.insert(0, str(READY.parent))


class Plotted(Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, index):
        READY.touch()
        import heavy_plots

        return heavy_plots.SIZE + index


if __name__ == "__main__":
    source = "import time, __main__\n__main__.STARTED.set()\ntime.sleep(10**6)\nSIZE = 3\n"
    (READY.parent / "heavy_plots.py").write_text(source)
    threading.Thread(target=importlib.import_module, args=("heavy_plots",), daemon=True).start()
    STARTED.wait(60)
    for batch in DataLoader(Plotted(), batch_size=4, num_workers=2):
        print(batch)
