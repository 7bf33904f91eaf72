"""A million batches of one sample."""

import torch.utils.data as data


class Million(data.Dataset):
    def __len__(self):
        return 1000000

    def __getitem__(self, index):
        return index


dataset = Million()
loader = data.DataLoader(dataset, batch_size=1, pin_memory=False)  # finds: batch-size-1

for _batch in loader:
    pass
