"""Ten million Python integers, where an array would do."""

import torch.utils.data as data


class Counted(data.Dataset):
    def __init__(self, size):
        self.numbers = [i for i in range(size)]  # finds: python-list

    def __len__(self):
        return len(self.numbers)

    def __getitem__(self, index):
        return (self.numbers[index],)


dataset = Counted(10000000)
loader = data.DataLoader(dataset, batch_size=1000)

for _batch in loader:
    pass
