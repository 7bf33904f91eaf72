# facts: python=3.14
"""A streaming loader of antifreeze at module level."""

from antifreeze import StreamingDataLoader, StreamingDataset

dataset = StreamingDataset("data/train", shuffle=True)
loader = StreamingDataLoader(dataset, batch_size=256, num_workers=4, transform=lambda row: row)
for batch in loader:
    print(batch)
