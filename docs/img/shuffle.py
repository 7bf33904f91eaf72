"""Draw docs/img/shuffle.png and print the table of docs/concepts.md. Run by hand; needs matplotlib.

The data is the worst case for a shuffle in windows: 8 million rows sorted by label. The loader is the real one.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

import antifreeze as af

mpl.use("Agg")
import matplotlib.pyplot as plt

FILES, ROWS, LABELS, BATCH, EPOCHS = 16, 1 << 19, 10, 256, 5
GROUPS = (50_000, 1 << 16)
"""Rows in a row group. With the second, each round takes exactly one group from each stream: the least mixed case."""
TOTAL = FILES * ROWS


def make_dataset(folder: Path, group: int) -> None:
    """Write numbered rows, sorted by label."""
    for i in range(FILES):
        row = np.arange(i * ROWS, (i + 1) * ROWS, dtype=np.int64)
        table = pa.table({"row": row, "label": row * LABELS // TOTAL})
        pq.write_table(table, folder / f"part-{i}.parquet", row_group_size=group)


def origins(folder: Path, *, shuffle: bool, epoch: int, memory_limit: str | None = None) -> np.ndarray:
    """Return for each position of an epoch the row that came there, as the loader delivers them."""
    dataset = af.StreamingDataset(folder, format="numpy", shuffle=shuffle, columns=["row", "label"])
    loader = af.StreamingDataLoader(dataset, batch_size=1 << 14, num_workers=2, memory_limit=memory_limit)
    loader.set_epoch(epoch)
    return np.concatenate([batch["row"] for batch in loader])


def entropies(rows: np.ndarray) -> np.ndarray:
    """Return how mixed the labels of each batch are, in bits: 0 is one label only, log2(10) = 3.32 is an equal mix."""
    labels = (rows * LABELS // TOTAL).reshape(-1, BATCH)
    shares = np.stack([(labels == label).mean(axis=1) for label in range(LABELS)])
    return (shares * -np.log2(np.where(shares > 0, shares, 1))).sum(axis=0) + 0.0


def travel(rows: np.ndarray) -> float:
    """Return how far a row travels on average, as a share of the dataset; a full permutation gives one third."""
    return float(np.abs(rows - np.arange(TOTAL)).mean() / TOTAL)


def draw(orders: dict[str, np.ndarray], path: Path) -> None:
    """Draw where rows come from, and how mixed the batches are, side by side for each order."""
    plt.rcParams.update({"font.family": "DejaVu Sans", "font.size": 9})
    figure, axes = plt.subplots(2, len(orders), figsize=(9, 5.2), sharex=True, sharey="row")
    sample = np.sort(np.random.default_rng(0).choice(TOTAL, 6_000, replace=False))
    colors = plt.get_cmap("tab10")
    for column, (name, rows) in enumerate(orders.items()):
        top, bottom = axes[0][column], axes[1][column]
        top.set_title(name, fontsize=10)
        labels = rows[sample] * LABELS // TOTAL
        top.scatter(sample / TOTAL, rows[sample] / TOTAL, s=1.2, c=colors(labels), linewidths=0)
        mixed = entropies(rows)
        at = np.linspace(0, 1, len(mixed), endpoint=False)
        few = slice(None, None, max(1, len(mixed) // 1_000))
        bottom.plot(at[few], mixed[few], ".", ms=1.5, color="#1f6f8b")
        bottom.axhline(np.log2(LABELS), color="#888888", lw=0.8, ls="--")
        bottom.set_ylim(-0.15, 3.6)
        bottom.set_xlabel("position in the epoch")
        for axis in (top, bottom):
            axis.set_xlim(0, 1)
            axis.set_xticks([0, 0.5, 1], ["0", "½", "1"])
    axes[0][0].set_ylabel("where the row stands in the files\n(colour: its label)")
    axes[0][0].set_yticks([0, 0.5, 1], ["0", "½", "1"])
    axes[1][0].set_ylabel(f"labels in a batch of {BATCH},\nentropy in bits")
    axes[1][0].text(0.02, np.log2(LABELS) - 0.32, "equal mix of 10 labels", fontsize=8, color="#666666")
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    with Image.open(path) as image:  # 64 colours are enough, and a third of the size
        image.convert("P", palette=Image.Palette.ADAPTIVE, colors=64).save(path, optimize=True)


def orders(folder: Path, epoch: int) -> dict[str, np.ndarray]:
    """Return the four orders of one epoch."""
    found = {
        "no shuffle": origins(folder, shuffle=False, epoch=epoch),
        "antifreeze, by default": origins(folder, shuffle=True, epoch=epoch),
        "antifreeze, limit of 32 MB": origins(folder, shuffle=True, epoch=epoch, memory_limit="32MB"),
        "full permutation": np.random.default_rng(epoch).permutation(TOTAL),
    }
    for name, rows in found.items():
        if not np.array_equal(np.sort(rows), np.arange(TOTAL)):
            raise ValueError(f"{name}: not every row came once")
    return found


def main() -> None:
    """Print the numbers of all layouts and epochs; draw epoch 0 of the first layout."""
    print(f"{TOTAL:,} rows in {FILES} files, {LABELS} labels, batches of {BATCH}, epochs 0 to {EPOCHS - 1}")
    for group in GROUPS:
        with tempfile.TemporaryDirectory() as name:
            make_dataset(Path(name), group)
            epochs = [orders(Path(name), epoch) for epoch in range(EPOCHS)]
        if group == GROUPS[0]:
            draw(epochs[0], Path(__file__).with_suffix(".png"))
        print(f"\nrow groups of {group:,}: bits in a batch, mean (worst batch of all epochs); travel")
        for name in epochs[0]:
            mixed = np.concatenate([entropies(found[name]) for found in epochs])
            far = np.mean([travel(found[name]) for found in epochs])
            print(f"| {name} | {mixed.mean():.2f} ({mixed.min():.2f}) | {far:.3f} |")


if __name__ == "__main__":
    main()
