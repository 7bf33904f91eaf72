"""Swallows an error and returns None."""

from torch.utils.data import Dataset


class Quotients(Dataset):
    def __init__(self, numbers):
        self.numbers = numbers

    def __len__(self):
        return len(self.numbers)

    def __getitem__(self, index):
        try:
            return self.numbers[index] / 0
        except Exception as error:
            print(f"trouble in a worker: {error}")
            return None  # finds: none-sample
