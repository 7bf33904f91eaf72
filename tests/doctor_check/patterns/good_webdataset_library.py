"""The library of that name batches itself."""

import webdataset as wds
from torch.utils.data import DataLoader

pipeline = wds.WebDataset("shards/{000..099}.tar").shuffle(1000).decode("rgb").to_tuple("jpg", "cls").batched(64)
loader = wds.WebLoader(pipeline, batch_size=None, num_workers=4)
plain = DataLoader(pipeline, batch_size=None, num_workers=4)
