"""The loop stands in a function that is called at import."""

from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, index):
        return index


def train(train_loader):
    for batch in train_loader:
        print(batch)


def main():
    loader = DataLoader(Numbers(), batch_size=10, num_workers=2, multiprocessing_context="forkserver")
    print(len(loader))
    train(loader)


main()  # finds: main-guard
