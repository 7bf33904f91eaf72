"""None for what cannot be read, and a collate function that leaves it out: consistent, if not pretty."""

from PIL import Image
from torch.utils.data import DataLoader, Dataset, default_collate


class Downloads(Dataset):
    def __init__(self, paths):
        self.paths = paths

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        try:
            return Image.open(self.paths[index]).convert("RGB")
        except OSError:
            return None


def only_good(batch):
    batch = [sample for sample in batch if sample is not None]
    return default_collate(batch)


loader = DataLoader(Downloads(["a.jpg"]), batch_size=8, num_workers=2, collate_fn=only_good)
