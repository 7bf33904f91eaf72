"""Images with annotations, by an index of the annotation file."""

import os

from PIL import Image
from pycocotools.coco import COCO
from torch.utils.data import DataLoader, Dataset


class Detections(Dataset):
    def __init__(self, root, annotations, transforms=None):
        self.root, self.transforms = root, transforms
        self.coco = COCO(annotations)
        self.ids = sorted(self.coco.imgs.keys())

    def _load_image(self, id):
        return Image.open(os.path.join(self.root, self.coco.loadImgs(id)[0]["file_name"])).convert("RGB")

    def _load_target(self, id):
        return self.coco.loadAnns(self.coco.getAnnIds(id))

    def __getitem__(self, index):
        id = self.ids[index]
        image, target = self._load_image(id), self._load_target(id)
        if self.transforms is not None:
            image, target = self.transforms(image, target)
        return image, target

    def __len__(self):
        return len(self.ids)


def collate(batch):
    return tuple(zip(*batch, strict=True))


def main():
    loader = DataLoader(Detections("images", "train.json"), batch_size=4, num_workers=4, collate_fn=collate)
    for images, targets in loader:
        print(len(images), len(targets))


if __name__ == "__main__":
    main()
