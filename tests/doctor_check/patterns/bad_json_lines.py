"""Python objects by the million."""

import csv
import json

import pandas as pd
from torch.utils.data import DataLoader, Dataset


class Captions(Dataset):
    def __init__(self, path):
        self.records = []
        with open(path) as file:
            for line in file:
                record = json.loads(line)
                self.records.append(record)  # finds: python-list

    def __len__(self):
        return len(self.records)

    def __getitem__(self, index):
        return self.records[index]["text"]


class Comprehended(Dataset):
    def __init__(self, path):
        with open(path) as file:
            self.records = [json.loads(line) for line in file]  # finds: python-list

    def __len__(self):
        return len(self.records)

    def __getitem__(self, index):
        return self.records[index]


class Parsed(Dataset):
    def __init__(self, path):
        rows = []
        with open(path) as file:
            for number, line in enumerate(file):
                label, text = line.split("\t")
                rows.append({"id": number, "label": int(label), "text": text})  # finds: python-list
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


class Tables(Dataset):
    def __init__(self, path):
        self.rows = pd.read_csv(path).to_dict("records")  # finds: python-list
        with open(path) as file:
            self.again = list(csv.DictReader(file))  # finds: python-list

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index], self.again[index]


loader = DataLoader(Captions("captions.jsonl"), batch_size=64, num_workers=8)
