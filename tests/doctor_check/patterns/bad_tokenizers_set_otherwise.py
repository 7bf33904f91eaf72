"""The guard of the tokenizers, switched off in the other ways that people write."""

import os

from tokenizers import Tokenizer
from torch.utils.data import DataLoader, Dataset

os.environ.setdefault("TOKENIZERS_PARALLELISM", "1")  # finds: tokenizers-parallelism


class Texts(Dataset):
    def __init__(self, texts, tokenizer):
        self.texts, self.tokenizer = texts, tokenizer

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        return self.tokenizer.encode(self.texts[index]).ids


loader = DataLoader(Texts(["a"], Tokenizer.from_file("t.json")), batch_size=8, num_workers=2)
