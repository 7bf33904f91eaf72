"""The interpreter exits with an epoch open: nothing is on stderr but what the script itself has caused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Data

BOUND_S = 120.0
HEAD = """
import builtins, sys, threading
import antifreeze, torch

class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, i):
        return torch.tensor(i * i)

def double(row):
    return row
"""
MAP_STYLE = "loader = antifreeze.DataLoader(Squares(), batch_size=4, num_workers=2)"
PERSISTENT = "loader = antifreeze.DataLoader(Squares(), batch_size=4, num_workers=2, persistent_workers=True)"
STREAM = "loader = antifreeze.StreamingDataLoader(antifreeze.StreamingDataset({path!r}), batch_size=4, num_workers=2)"
TRANSFORMED = STREAM.replace("{path!r}", "{path!r}, transform=double")
ENDINGS = {
    "an exception out of a function": """
def train():
    batches = iter(loader)
    next(batches)
    raise RuntimeError("mine")
train()
""",
    "an exception in the loop": "for batch in loader:\n    raise RuntimeError('mine')",
    "an interrupt": "for batch in loader:\n    raise KeyboardInterrupt('mine')",
    "an exit": "for batch in loader:\n    sys.exit('mine')",
    "an exception that is kept": """
try:
    batches = iter(loader)
    next(batches)
    raise RuntimeError("mine")
except RuntimeError as error:
    sys.last_value = error
    print("mine", file=sys.stderr)
""",
    "a cycle": """
class Holder:
    pass
holder = Holder()
holder.itself, holder.batches = holder, iter(loader)
next(holder.batches)
del holder
print("mine", file=sys.stderr)
""",
    "a reference that nothing drops": """
builtins.batches = iter(loader)
next(builtins.batches)
print("mine", file=sys.stderr)
""",
    "a thread that is still in the loop": """
begun = threading.Event()
def read():
    for batch in loader:
        begun.set()
        threading.Event().wait(600)
threading.Thread(target=read, daemon=True).start()
begun.wait(600)
print("mine", file=sys.stderr)
""",
}


FEW = ("an exception out of a function", "a cycle")
CASES = [(MAP_STYLE, ending) for ending in ENDINGS]
CASES += [(loader, ending) for loader in (PERSISTENT, STREAM, TRANSFORMED) for ending in FEW]


@pytest.mark.parametrize(("loader", "ending"), CASES)
def test_an_exit_with_an_epoch_open_is_quiet(loader: str, ending: str, data: Data, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(HEAD + loader.format(path=str(data.path)) + "\n" + ENDINGS[ending])
    command = [sys.executable, "-Wdefault", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND_S, check=False)

    assert done.stderr.splitlines()[-1].endswith("mine"), done.stderr
    assert "ResourceWarning" not in done.stderr
    assert "Exception ignored" not in done.stderr
