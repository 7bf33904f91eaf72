"""What was measured, and the numbers that follow from it: rates, ratios to the raw neighbour, medians."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Any

from cases import CASES, RAW, Case

Measured = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One question: a workload, a batch size, shuffled or not."""

    workload: str
    batch: int
    shuffle: bool

    def __str__(self) -> str:
        return f"{self.workload} batch {self.batch} {'shuffled' if self.shuffle else 'in order'}"

    @property
    def raw_batches(self) -> tuple[int, ...]:
        """Batch sizes of the raw decoder; the best of them counts.

        It is not the decoder's fault that someone wants batches of 8, or of 1.
        """
        if self.workload == "A":
            return tuple(sorted({self.batch, 256}))
        return (max(self.batch, 1024), 65_536)


def rows_per_s(measured: Measured, kind: str) -> float:
    """For antifreeze and the raw decoder: the whole pass, start and end included. A peer: the better of that and
    its rate after the first batch, so that nobody is judged by the time its processes take to start."""
    whole: float = measured["rows"] / measured["wall_s"]
    if kind != "peer" or not enough_after_first(measured):
        return whole
    return max(whole, measured["rows_after_first"] / measured["wall_after_first_s"])


def cpu_us_per_row(measured: Measured, kind: str) -> float:
    """CPU of the process tree, by the same rule."""
    whole: float = measured["cpu_s"] / max(1, measured["rows"]) * 1e6
    if kind != "peer" or not enough_after_first(measured):
        return whole
    return min(whole, measured["cpu_after_first_s"] / measured["rows_after_first"] * 1e6)


def enough_after_first(measured: Measured) -> bool:
    """Whether what came after the first batch says anything.

    A loader that had everything ready when its first batch came (Ray, on small data) would look infinitely fast.
    """
    return measured["rows_after_first"] > 0 and measured["wall_after_first_s"] > 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One loader, measured once, with the raw decoder measured just before."""

    cell: Cell
    case: str
    repeat: int
    measured: Measured
    raw: list[Measured]

    @property
    def kind(self) -> str:
        return CASES[self.case].kind

    @property
    def error(self) -> str:
        return str(self.measured.get("error", ""))

    @property
    def raw_rows_per_s(self) -> float:
        return max(rows_per_s(each, "raw") for each in self.raw)

    @property
    def raw_cpu_us(self) -> float:
        return min(cpu_us_per_row(each, "raw") for each in self.raw)

    @property
    def ratio(self) -> float:
        """Rows per second as a share of the raw neighbour's."""
        return rows_per_s(self.measured, self.kind) / self.raw_rows_per_s

    @property
    def running_ratio(self) -> float:
        """The same by the rule for peers, whoever it is: two loaders are compared by one rule."""
        return rows_per_s(self.measured, "peer") / self.raw_rows_per_s

    @property
    def cpu_ratio(self) -> float:
        """CPU per row as a multiple of the raw neighbour's."""
        return cpu_us_per_row(self.measured, self.kind) / self.raw_cpu_us

    def to_json(self) -> dict[str, Any]:
        cell = {"workload": self.cell.workload, "batch": self.cell.batch, "shuffle": self.cell.shuffle}
        return {"cell": cell, "case": self.case, "repeat": self.repeat, "measured": self.measured, "raw": self.raw}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Record:
        return cls(**{**value, "cell": Cell(**value["cell"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One loader in one cell: medians of its repeats."""

    cell: Cell
    case: Case
    repeats: int = 0
    error: str = ""
    rows_per_s: float = 0.0
    ratio: float = 0.0
    running_ratio: float = 0.0
    ratio_low: float = 0.0
    ratio_high: float = 0.0
    cpu_us: float = 0.0
    cpu_ratio: float = 0.0
    first_s: float = 0.0
    peak_mb: float = 0.0
    holds: str = ""


def line(records: list[Record]) -> Line:
    """The medians of one loader in one cell."""
    good = [record for record in records if not record.error]
    cell, case = records[0].cell, CASES[records[0].case]
    if not good:
        return Line(cell=cell, case=case, error=records[0].error)
    ratios = [record.ratio for record in good]
    return Line(
        cell=cell,
        case=case,
        repeats=len(good),
        error=next((record.error for record in records if record.error), ""),
        rows_per_s=median(rows_per_s(record.measured, record.kind) for record in good),
        ratio=median(ratios),
        running_ratio=median(record.running_ratio for record in good),
        ratio_low=min(ratios),
        ratio_high=max(ratios),
        cpu_us=median(cpu_us_per_row(record.measured, record.kind) for record in good),
        cpu_ratio=median(record.cpu_ratio for record in good),
        first_s=median(record.measured["first_s"] for record in good),
        peak_mb=median(record.measured["peak_mb"] for record in good),
        holds=", ".join(f"{name} {what}" for name, what in good[0].measured["holds"].items()),
    )


def raw_line(records: list[Record]) -> Line:
    """The raw decoder over all the neighbours of one cell."""
    best = [max(record.raw, key=lambda each: rows_per_s(each, "raw")) for record in records]
    return Line(
        cell=records[0].cell,
        case=CASES[RAW],
        repeats=len(best),
        rows_per_s=median(record.raw_rows_per_s for record in records),
        ratio=1.0,
        ratio_low=1.0,
        ratio_high=1.0,
        cpu_us=median(record.raw_cpu_us for record in records),
        cpu_ratio=1.0,
        first_s=median(each["first_s"] for each in best),
        peak_mb=median(each["peak_mb"] for each in best),
    )


def table(records: Iterable[Record]) -> dict[Cell, dict[str, Line]]:
    """All cells, each with a line for every loader and one for the raw decoder."""
    groups: dict[Cell, dict[str, list[Record]]] = {}
    for record in records:
        groups.setdefault(record.cell, {}).setdefault(record.case, []).append(record)
    result: dict[Cell, dict[str, Line]] = {}
    for cell, cases in groups.items():
        result[cell] = {name: line(each) for name, each in cases.items() if name != RAW}
        neighbours = [record for each in cases.values() for record in each if record.raw]
        if neighbours:
            result[cell][RAW] = raw_line(neighbours)
    return result
