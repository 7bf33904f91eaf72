# facts: cores=4
"""Arguments that do not go together, or not with this machine."""

import os

from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset()
WORKERS = 16

one = DataLoader(data, num_workers=2)  # finds: batch-size-1
two = DataLoader(data, batch_size=1, num_workers=4)  # finds: batch-size-1
three = DataLoader(data, 64, num_workers=WORKERS)  # finds: many-workers
four = DataLoader(data, 64, num_workers=os.cpu_count() * 2)  # finds: many-workers
five = DataLoader(data, batch_size=64, persistent_workers=True)  # finds: needs-workers
six = DataLoader(data, batch_size=64, num_workers=0, prefetch_factor=4)  # finds: needs-workers
seven = DataLoader(data, batch_size=64, prefetch_factor=None, persistent_workers=False)
eight = DataLoader(data, batch_size=1)
