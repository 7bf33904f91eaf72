"""Draws rows per second of all loaders on the seed data, shuffled, at batch 8 and 256.

python benchmarks/plot.py benchmarks/RESULTS.json --out benchmarks/results.svg
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from cases import ANTIFREEZE, RAW
from results import Cell, Line, Record, table

OURS, THEIRS, BASE = "#0b6e99", "#b8bec6", "#5b6470"
mpl.rcParams["svg.hashsalt"] = "antifreeze"  # the same results give the same file


def best_of_groups(lines: dict[str, Line]) -> list[Line]:
    """One bar for each loader: its fastest variant; slowest first, as barh draws upwards."""
    best: dict[str, Line] = {}
    for line in lines.values():
        group = line.case.group or line.case.name
        if line.repeats and line.ratio > getattr(best.get(group), "ratio", 0.0):
            best[group] = line
    return sorted(best.values(), key=lambda line: line.ratio)


def name_of(line: Line) -> str:
    if line.case.name == RAW:
        return "pyarrow to NumPy, not shuffled"
    own = " *" if line.case.form not in {"parquet", "litdata-index"} else ""
    return (line.case.group or line.case.label) + own


def draw(axes: Axes, cell: Cell, lines: list[Line]) -> None:
    # A loader's ratio to its raw neighbour, times the raw decoder's median: all bars as if in the same minute.
    raw = next(line.rows_per_s for line in lines if line.case.name == RAW)
    rates = [line.ratio * raw for line in lines]
    colours = [{ANTIFREEZE: OURS, RAW: BASE}.get(line.case.name, THEIRS) for line in lines]
    axes.barh([name_of(line) for line in lines], rates, color=colours, height=0.72)
    axes.set_xscale("log")
    axes.set_title(f"batches of {cell.batch}", loc="left", fontsize=11)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.grid(axis="x", color="#e3e6ea", linewidth=0.8)
    axes.set_axisbelow(True)
    low, high = axes.get_xlim()
    axes.set_xlim(low, high * 3)
    for place, (line, rate) in enumerate(zip(lines, rates, strict=True)):
        weight = "bold" if line.case.name == ANTIFREEZE else "normal"
        axes.text(rate * 1.08, place, f"{rate:,.0f}", va="center", fontsize=9, weight=weight)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = Path(__file__).resolve().parent
    parser.add_argument("results", type=Path, nargs="?", default=here / "RESULTS.json")
    parser.add_argument("--out", type=Path, default=here / "results.svg", help=".svg or .png")
    options = parser.parse_args()

    results = json.loads(options.results.read_text())
    cells = table(Record.from_json(value) for value in results["records"])
    wanted = [Cell(workload="A", batch=batch, shuffle=True) for batch in (8, 256)]
    drawn = {cell: best_of_groups(cells[cell]) for cell in wanted if cell in cells}
    if not drawn:
        parser.error("the results hold no shuffled runs of workload A at batch 8 or 256")
    height = 0.3 * max(len(lines) for lines in drawn.values()) + 1.4
    figure, grid = plt.subplots(1, len(drawn), figsize=(6.4 * len(drawn), height), squeeze=False)
    for axes, (cell, lines) in zip(grid[0], drawn.items(), strict=True):
        draw(axes, cell, lines)
    figure.suptitle("Rows per second into torch tensors, shuffled (1,024 token ids a row)", x=0.01, ha="left")
    processor = results["machine"]["processor"]
    figure.text(0.01, 0.005, f"{processor}; log scale; best setting of each; * reads its own format", fontsize=8)
    figure.tight_layout(rect=(0, 0.02, 1, 1))
    figure.savefig(options.out, dpi=150, metadata={"Date": None} if options.out.suffix == ".svg" else None)
    print(options.out)


if __name__ == "__main__":
    main()
