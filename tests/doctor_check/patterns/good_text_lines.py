"""Labelled lines of a text file, with a vocabulary; padded by a collator."""

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset


class Reviews(Dataset):
    def __init__(self, path, vocabulary):
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
        self.pairs = [line.split("\t", 1) for line in lines]
        self.vocabulary = vocabulary

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, index):
        label, text = self.pairs[index]
        ids = [self.vocabulary.get(word, 0) for word in text.split()]
        return torch.tensor(ids), int(label)


class PadCollate:
    def __call__(self, batch):
        texts, labels = zip(*batch, strict=True)
        return pad_sequence(list(texts), batch_first=True), torch.tensor(labels)


def make(path):
    return DataLoader(Reviews(path, {}), batch_size=32, num_workers=2, collate_fn=PadCollate())
