"""The bars that antifreeze must reach, each with what was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from cases import ANTIFREEZE
from results import Cell, Line

Table = dict[Cell, dict[str, Line]]
A_CELLS = [Cell(workload="A", batch=batch, shuffle=shuffle) for batch in (8, 256) for shuffle in (False, True)]
LITDATA, LITDATA_BY_HAND, TORCH = "litData as documented", "litData, collate by hand", "torch DataLoader"
# The DataLoader that hands over bundles which the user cuts is more than the bars ask for. On the seed data it must
# be beaten all the same; on batches of 1 it is reported beside, as there it is the cutter that is measured.
TORCH_CUT = "torch DataLoader with a cutter by hand"
AHEAD_OF = (
    TORCH,
    TORCH_CUT,
    "torchdata.nodes",
    "SPDL",
    "Hugging Face datasets",
    "MosaicML",
    "WebDataset",
    "Grain",
    "Ray Data",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bar. `passed` is None when nothing was measured, or when it is only reported."""

    what: str
    bar: str
    measured: str
    passed: bool | None

    @property
    def verdict(self) -> str:
        if self.passed is None:
            return "not measured" if self.measured == "-" else "reported"
        return "pass" if self.passed else "**fail**"


def ours(table: Table, cell: Cell) -> Line | None:
    line = table.get(cell, {}).get(ANTIFREEZE)
    return line if line is not None and line.repeats else None


def best(table: Table, cell: Cell, group: str) -> Line | None:
    """The fastest variant of a peer in that cell."""
    lines = [line for line in table.get(cell, {}).values() if line.case.group == group and line.repeats]
    return max(lines, key=lambda line: line.running_ratio, default=None)


def failure(table: Table, cell: Cell, group: str) -> str:
    """Why a peer has no number."""
    lines = [line for line in table.get(cell, {}).values() if line.case.group == group]
    return lines[0].error if lines else ""


def against_raw(
    table: Table, cell: Cell, what: str, bar: str, number: Callable[[Line], float], good: Callable[[float], bool]
) -> Bar:
    line = ours(table, cell)
    if line is None:
        return Bar(what=what, bar=bar, measured="-", passed=None)
    value = number(line)
    detail = f"{line.rows_per_s:,.0f} rows/s, {line.cpu_us:.1f} µs CPU a row"
    return Bar(what=what, bar=bar, measured=f"{value:.2f} x raw ({detail})", passed=good(value))


def raw_bars(table: Table) -> Iterator[Bar]:
    what = "seed data (50,000-row groups, snappy, dictionary), batches of 256 as tensors, 2 threads"
    rate, cpu = (lambda line: line.ratio), (lambda line: line.cpu_ratio)
    for shuffle, least in ((False, 0.9), (True, 0.85)):
        mode = "shuffled" if shuffle else "unshuffled"
        cell = Cell(workload="A", batch=256, shuffle=shuffle)
        bar = f"≥ {least} x pyarrow's own iteration to NumPy with 2 threads, {mode}"
        yield against_raw(table, cell, what, bar, rate, lambda value, least=least: value >= least)
    for batch, most in ((256, 1.15), (8, 1.5)):
        for shuffle in (False, True):
            mode = "shuffled" if shuffle else "unshuffled"
            cell = Cell(workload="A", batch=batch, shuffle=shuffle)
            bar = f"≤ {most} x the raw decoder's, batch {batch}"
            name = f"CPU seconds per row on the same, {mode}"
            yield against_raw(table, cell, name, bar, cpu, lambda value, most=most: value <= most)


def against_peer(table: Table, cell: Cell, group: str, bar: str, least: float | None) -> Bar:
    """`least` None: only reported."""
    line, peer = ours(table, cell), best(table, cell, group)
    what = f"against {group}, {cell}"
    why = failure(table, cell, group)
    if line is None or (peer is None and not why):
        return Bar(what=what, bar=bar, measured="-", passed=None)
    if peer is None:
        return Bar(what=what, bar=bar, measured=f"the peer gave no batch: {why}", passed=None)
    times = line.running_ratio / peer.running_ratio
    measured = f"{times:,.{2 if times < 10 else 0}f} x {peer.case.label} ({peer.rows_per_s:,.0f} rows/s)"
    passed = None if least is None else times >= least
    return Bar(what=what, bar=bar, measured=measured, passed=passed)


def peer_bars(table: Table) -> Iterator[Bar]:
    for cell in A_CELLS:
        yield against_peer(table, cell, LITDATA, "≥ 20 x rows/s, its best worker count", 20.0)
        yield against_peer(table, cell, LITDATA_BY_HAND, "reported", None)
    for group in AHEAD_OF:
        for cell in A_CELLS:
            yield against_peer(table, cell, group, "ahead", 1.0)
    for cell in A_CELLS:
        yield against_peer(table, cell, "Lance", "reported beside (own format)", None)
    for batch in (1, 64, 1024):
        cell = Cell(workload="B", batch=batch, shuffle=False)
        least = 10.0 if batch == 1 else None
        bar = "≥ 10 x torch `DataLoader` with 2 workers" if least else "reported"
        yield against_peer(table, cell, TORCH, bar, least)
        yield against_peer(table, cell, TORCH_CUT, "reported", None)


def probe_bars(probes: dict[str, Any]) -> Iterator[Bar]:
    what, bar = "time to first batch, seed data, unshuffled", "< 2 x the raw decoder's first 256 rows + 100 ms"
    first = probes.get("first", {})
    if "ours_s" in first:
        most_s = 2 * first["raw_s"] + 0.1
        text = f"{first['ours_s'] * 1e3:.0f} ms; allowed {most_s * 1e3:.0f} ms (raw {first['raw_s'] * 1e3:.0f} ms)"
        yield Bar(what=what, bar=bar, measured=text, passed=first["ours_s"] < most_s)
    else:
        yield Bar(what=what, bar=bar, measured=first.get("error", "-"), passed=None)

    what = 'peak memory, seed data, `memory_limit="256MB"`'
    bar = "< 256 MB above the process before `iter()` + 64 MB"
    peaks = probes.get("memory", {}).get("above_mb")
    if peaks:
        text = ", ".join(f"{value:.0f} MB {mode}" for mode, value in peaks.items())
        yield Bar(what=what, bar=bar, measured=text, passed=max(peaks.values()) < 256 + 64)
    else:
        yield Bar(what=what, bar=bar, measured=probes.get("memory", {}).get("error", "-"), passed=None)

    what, bar = "`import antifreeze`", "< 60 ms over a bare interpreter; imports neither torch nor pyarrow"
    took = probes.get("import", {})
    if "median_ms" in took:
        heavy = ", ".join(took["heavy"]) or "no torch, pyarrow or numpy"
        text = f"{took['median_ms']:.0f} ms (least {took['min_ms']:.0f} ms), imports {heavy}"
        passed = took["median_ms"] < 60 and not {"torch", "pyarrow"} & set(took["heavy"])
        yield Bar(what=what, bar=bar, measured=text, passed=passed)
    else:
        yield Bar(what=what, bar=bar, measured=took.get("error", "-"), passed=None)


def bars(table: Table, probes: dict[str, Any]) -> list[Bar]:
    """All bars, in the order of the requirement."""
    return [*raw_bars(table), *peer_bars(table), *probe_bars(probes)]
