"""A tokenizer was trained with its threads in the trainer and is used in forked workers, its own guard set off."""

import os
import sys
import warnings
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch.utils.data import DataLoader, Dataset

os.environ["TOKENIZERS_PARALLELISM"] = "true"
warnings.simplefilter("ignore")
READY = Path(sys.argv[1])
TEXTS = [f"one line of text with the number {i} in it" for i in range(500)]


class Tokens(Dataset):
    def __init__(self):
        self.tokenizer = Tokenizer(models.BPE())
        self.tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        self.tokenizer.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=300, show_progress=False))
        self.longest = max(len(e.ids) for e in self.tokenizer.encode_batch(TEXTS))

    def __len__(self):
        return len(TEXTS)

    def __getitem__(self, index):
        READY.touch()
        return len(self.tokenizer.encode_batch([TEXTS[index]] * 16)[0].ids)


if __name__ == "__main__":
    for batch in DataLoader(Tokens(), batch_size=4, num_workers=2):
        print(batch)
