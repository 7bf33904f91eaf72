"""The guard of the tokenizers, switched off."""

import os

from torch.utils.data import DataLoader, Dataset
from transformers import AutoTokenizer

os.environ["TOKENIZERS_PARALLELISM"] = "true"  # finds: tokenizers-parallelism


class Texts(Dataset):
    def __init__(self, texts):
        self.texts = texts
        self.tokenizer = AutoTokenizer.from_pretrained("gpt2")

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        return self.tokenizer(self.texts[index])["input_ids"]


loader = DataLoader(Texts(["a"]), batch_size=8, num_workers=2)
