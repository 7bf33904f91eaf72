"""A Hugging Face dataset with a tokenizer around it."""

import os

from datasets import load_dataset
from torch.utils.data import DataLoader, Dataset
from transformers import AutoTokenizer, DataCollatorWithPadding

os.environ["TOKENIZERS_PARALLELISM"] = "false"


class Sentences(Dataset):
    def __init__(self, split, tokenizer):
        self.data = load_dataset("imdb", split=split)
        self.tokenizer = tokenizer

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        row = self.data[index]
        return {**self.tokenizer(row["text"], truncation=True), "labels": row["label"]}


def main():
    tokenizer = AutoTokenizer.from_pretrained("bert-base-uncased")
    dataset = Sentences("train", tokenizer)
    collate = DataCollatorWithPadding(tokenizer)
    for batch in DataLoader(dataset, batch_size=16, shuffle=True, num_workers=4, collate_fn=collate):
        print(batch["labels"].shape)


if __name__ == "__main__":
    main()
