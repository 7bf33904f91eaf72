"""Names from a list file; XML and masks beside."""

import os
import xml.etree.ElementTree as ET

from PIL import Image
from torch.utils.data import Dataset


class Scenes(Dataset):
    def __init__(self, root, image_set="train", transforms=None):
        split = os.path.join(root, "ImageSets", "Main", image_set + ".txt")
        with open(split) as file:
            names = [line.strip() for line in file.readlines()]
        self.images = [os.path.join(root, "JPEGImages", name + ".jpg") for name in names]
        self.targets = [os.path.join(root, "Annotations", name + ".xml") for name in names]
        self.transforms = transforms

    def __getitem__(self, index):
        image = Image.open(self.images[index]).convert("RGB")
        target = self.parse(ET.parse(self.targets[index]).getroot())
        if self.transforms is not None:
            image, target = self.transforms(image, target)
        return image, target

    def parse(self, node):
        children = list(node)
        if not children:
            return {node.tag: node.text.strip() if node.text else None}
        return {node.tag: [self.parse(child) for child in children]}

    def __len__(self):
        return len(self.images)
