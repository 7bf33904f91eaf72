"""The guard of the tokenizers as it is, or switched on."""

import os

from tokenizers import Tokenizer
from torch.utils.data import DataLoader, Dataset

os.environ.update({"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"})
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
tokenizer = Tokenizer.from_file("t.json")
tokenizer.encode_batch(["a", "b"])


class Texts(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return tokenizer.encode("a").ids


loader = DataLoader(Texts(), batch_size=8, num_workers=2)
