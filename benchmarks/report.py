"""Writes the results as Markdown."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from bars import Bar, bars
from cases import ANTIFREEZE, CASES, RAW, version
from convert import SUBSET
from results import Cell, Line, Record, table
from workers import report as workers_report

HOW = """\
Every loader runs in a fresh process, all of them in turn, and the whole round is repeated (for those that the first
round did not show to be three times behind antifreeze); each is preceded by a
measurement of the raw decoder at most half a minute old, and what counts is the ratio to that neighbour. Numbers
are medians, with the range of the ratio over the repeats behind. The consumer counts rows and reads one byte of
each tensor; CPU is that of the whole process tree.

- **raw** is `pq.ParquetFile(file).iter_batches(n, use_threads=False)` in two threads over disjoint files, every
  column to NumPy, nothing handed over. At batch 8 it also runs with batches of 256 and the better counts (workload
  B: batches of at least 1,024, and of 65,536). It never shuffles, also where the loaders do.
- **antifreeze** and **raw** are measured over a whole pass, start and end included (workload B: at most 10 s).
  A **peer** is measured until some seconds after its first batch, and gets the better of its rate from the start
  and its rate after the first batch: nobody is judged by the time that processes take to start. Where antifreeze is
  compared with a peer, both are taken by that rule.
- The decode written by hand, behind torch, torchdata.nodes and SPDL, does a little less than antifreeze: its batches
  are read-only views, and without shuffling it delivers two interleaved halves of the data, not the order of the files.
- Peers that read their own format do not decode Parquet; the row-by-row ones read a subset of the rows.
"""


def machine() -> dict[str, str]:
    """What it ran on."""
    model = next(
        (row.partition(":")[2].strip() for row in _lines("/proc/cpuinfo") if row.startswith("model name")),
        platform.processor() or platform.machine(),
    )
    memory_kb = next((int(row.split()[1]) for row in _lines("/proc/meminfo") if row.startswith("MemTotal")), 0)
    cores = len(os.sched_getaffinity(0))
    return {
        "processor": f"{model}, {cores} cores",
        "memory": f"{memory_kb / 1e6:.0f} GB",
        "system": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}",
        "Python": platform.python_version(),
    }


def versions() -> dict[str, str]:
    """Every package that a case needs."""
    names = {"torch", "numpy", "pyarrow", *(name for case in CASES.values() for name in case.packages)}
    return {name: version(name) or "not installed" for name in sorted(names, key=str.lower)}


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def markdown_table(head: list[str], rows: list[list[str]], right: set[int]) -> list[str]:
    marks = ["---:" if number in right else "---" for number in range(len(head))]
    return [f"| {' | '.join(row)} |" for row in ([*head], marks, *rows)] + [""]


def loader_row(line: Line, best_ratio: float) -> list[str]:
    note = line.case.note
    if line.case.form in SUBSET:
        note = f"{note}, first {SUBSET[line.case.form]:,} rows at most"
    name = f"**{line.case.label}**" if line.case.name in {ANTIFREEZE, RAW} else line.case.label
    if not line.repeats:
        return [name, "-", "-", "-", "-", "-", "-", line.error]
    if line.error:
        note = f"{note}; once: {line.error}".removeprefix("; ")
    spread = "" if line.repeats == 1 or line.case.name == RAW else f" ({line.ratio_low:.2g} to {line.ratio_high:.2g})"
    return [
        name,
        f"{line.rows_per_s:,.0f}",
        f"{line.ratio:.3f}{spread}" if line.ratio < 0.1 else f"{line.ratio:.2f}{spread}",
        f"{best_ratio / line.running_ratio:,.2f} x" if best_ratio and line.case.name not in {ANTIFREEZE, RAW} else "",
        f"{line.cpu_ratio:,.2f}",
        f"{line.first_s:.2f}",
        f"{line.peak_mb:,.0f}",
        note,
    ]


def cell_section(cell: Cell, lines: dict[str, Line]) -> list[str]:
    head = ["loader", "rows/s", "of raw", "antifreeze is", "CPU per row, of raw", "first batch s", "peak MB", ""]
    order = sorted(lines.values(), key=lambda line: -line.ratio)
    ours = lines.get(ANTIFREEZE)
    best_ratio = ours.running_ratio if ours is not None and ours.repeats else 0.0
    rows = [loader_row(line, best_ratio) for line in order]
    title = f"### Workload {cell.workload}, batch {cell.batch}, {'shuffled' if cell.shuffle else 'in order'}"
    return [title, "", *markdown_table(head, rows, {1, 2, 3, 4, 5, 6})]


def bars_section(all_bars: list[Bar]) -> list[str]:
    rows = [[bar.what, bar.bar, bar.measured, bar.verdict] for bar in all_bars]
    passed, failed = (sum(bar.passed is value for bar in all_bars) for value in (True, False))
    unknown = sum(bar.verdict == "not measured" for bar in all_bars)
    text = f"{passed} passed, {failed} failed, {unknown} not measured."
    return ["## The bars", "", text, "", *markdown_table(["what", "bar", "measured", ""], rows, set())]


def markdown(results: dict[str, Any]) -> str:
    """The whole report."""
    records = [Record.from_json(value) for value in results["records"]]
    cells = table(records)
    out = ["# Benchmark results", ""]
    out += [f"- {name}: {value}" for name, value in results["machine"].items()]
    out += [f"- data: {results['data']}", f"- command: `{results['command']}`, {results['date']}"]
    out += ["- versions: " + ", ".join(f"{name} {number}" for name, number in results["versions"].items()), ""]
    if not results["full_size"]:
        out += ["**Smaller data than the bars speak of**: a look, no verdict.", ""]
    if results.get("unfinished"):
        out += [f"**Unfinished**: {results['unfinished']}", ""]
    out += bars_section(bars(cells, results.get("probes", {})))
    out += ["## All loaders", "", HOW]
    for cell, lines in cells.items():
        out += cell_section(cell, lines)
    if absent := results.get("not_installed"):
        out += ["## Not installed", "", *(f"- {name}: not installed: {why}" for name, why in absent.items()), ""]
    held = {line.case.label: line.holds for lines in cells.values() for line in lines.values() if line.holds}
    out += ["## What a batch holds", "", *(f"- {label}: {holds}" for label, holds in held.items()), ""]
    if "workers" in results:
        out += [workers_report.section(results["workers"])]
    return "\n".join(out)
