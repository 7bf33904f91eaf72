"""The bars of the worker engine, each with what was measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

from bars import Bar
from workers.cases import RATES, STARTS, Case
from workers.rounds import MEMORY_WORKERS, OURS, TORCH

Found = dict[tuple[str, str, str], list[dict[str, Any]]]
WORKERS = "2 workers"


def found_of(results: dict[str, Any]) -> Found:
    """What was measured without an error, by probe, loader and case; one entry for each round."""
    found: Found = {}
    for record in results.get("records", []):
        if "error" not in record["measured"]:
            key = (record["probe"], record["loader"], record["what"])
            found.setdefault(key, []).append(record["measured"])
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratios:
    """Ours and the other's, round by round."""

    ours: list[float]
    theirs: list[float]
    ratios: list[float]

    @property
    def middle(self) -> float:
        return median(self.ratios)

    @property
    def spread(self) -> str:
        return f"{min(self.ratios):.2f} to {max(self.ratios):.2f}"


def cpu_ms(measured: dict[str, Any]) -> float:
    return measured["cpu_s"] / measured["batches"] * 1e3


def per_s(measured: dict[str, Any]) -> float:
    return measured["batches"] / measured["wall_s"]


def compare(found: Found, case: Case, number: Any, *, less: bool) -> Ratios | None:
    """How many times better ours is. Rounds of which one half failed are left out at the end."""
    ours = [number(each) for each in found.get(("rate", OURS, case.name), [])]
    theirs = [number(each) for each in found.get(("rate", TORCH, case.name), [])]
    pairs = list(zip(ours, theirs, strict=False))
    if not pairs:
        return None
    return Ratios(ours=ours, theirs=theirs, ratios=[b / a if less else a / b for a, b in pairs])


def rate_bars(found: Found) -> Iterator[Bar]:
    for case in RATES:
        cpu, rate = compare(found, case, cpu_ms, less=True), compare(found, case, per_s, less=False)
        what = f"{case.label}, {WORKERS}"
        for ratios, least, unit, bar in (
            (cpu, case.less_cpu, "ms CPU a batch", "≥ {} x less CPU a batch than torch"),
            (rate, case.rate, "batches/s", "≥ {} x torch's batches/s"),
        ):
            if least is None and (case.reported or (case.less_cpu is None and case.rate is None)):
                bar = f"reported: {unit}"
            elif least is None:
                continue
            bar = bar.format(f"{least:g}" if least else "")
            if ratios is None:
                yield Bar(what=what, bar=bar, measured="-", passed=None)
                continue
            sides = f"{median(ratios.ours):,.4g} against {median(ratios.theirs):,.4g} {unit}"
            text = f"{ratios.middle:.2f} x ({ratios.spread}): {sides}"
            yield Bar(what=what, bar=bar, measured=text, passed=None if least is None else ratios.middle >= least)


def start_bars(found: Found) -> Iterator[Bar]:
    for case, most in zip(STARTS, (0.35, 0.8), strict=True):
        times = {
            loader: [each["first_s"] for each in found.get(("start", loader, case.name), [])]
            for loader in (OURS, "torch-spawn", "torch-fork")
        }
        what = f"start of 4 workers to the first batch, dataset {case.label}"
        bar = f"< {most} x torch `spawn`"
        if not all(times.values()):
            yield Bar(what=what, bar=bar, measured="-", passed=None)
            continue
        ratios = [a / b for a, b in zip(times[OURS], times["torch-spawn"], strict=False)]
        sides = f"{median(times[OURS]):.2f} s against {median(times['torch-spawn']):.2f} s"
        text = f"{median(ratios):.2f} x ({min(ratios):.2f} to {max(ratios):.2f}): {sides}"
        yield Bar(what=what, bar=bar, measured=text, passed=median(ratios) < most)
        if alone := [each["first_s"] for each in found.get(("start", "import", case.name), [])]:
            over, bar, most_s = _over(times[OURS], alone), "no slower than `import torch` in a new process + 0.3 s", 0.3
            text = f"import {_spread(over)}; the import takes {median(alone):.2f} s"
        else:
            over, bar, most_s = _over(times[OURS], times["torch-fork"]), "no slower than torch `fork` + 1 s", 1.0
            text = f"fork {_spread(over)}; fork takes {median(times['torch-fork']):.2f} s"
        yield Bar(what=what, bar=bar, measured=text, passed=median(over) <= most_s)


def _over(ours: list[float], theirs: list[float]) -> list[float]:
    return [a - b for a, b in zip(ours, theirs, strict=False)]


def _spread(over: list[float]) -> str:
    return f"{median(over):+.2f} s ({min(over):+.2f} to {max(over):+.2f})"


def memory_bars(found: Found) -> Iterator[Bar]:
    sums = {n: [each["below_mb"] for each in found.get(("memory", OURS, str(n)), [])] for n in MEMORY_WORKERS}
    what = "memory (PSS), dataset with an array of 1 GB, without torch, 1 to 4 workers"
    first, last = sums[MEMORY_WORKERS[0]], sums[MEMORY_WORKERS[-1]]
    bars = ("< 60 MB for each added worker", "< 1.05 GB in total for the array")
    if not (first and last):
        yield from (Bar(what=what, bar=bar, measured="-", passed=None) for bar in bars)
        return
    added = (median(last) - median(first)) / (MEMORY_WORKERS[-1] - MEMORY_WORKERS[0])
    text = f"{added:.0f} MB; nursery and workers together: " + ", ".join(
        f"{median(values):,.0f} MB with {n}" for n, values in sums.items() if values
    )
    yield Bar(what=what, bar=bars[0], measured=text, passed=added < 60)
    shared = [each["array_below_mb"] for n in MEMORY_WORKERS for each in found.get(("memory", OURS, str(n)), [])]
    text = f"{max(shared):,.0f} MB in all workers together, at most (beside the trainer's own array)"
    yield Bar(what=what, bar=bars[1], measured=text, passed=max(shared) < 1050)


def cure_bars(found: Found) -> Iterator[Bar]:
    for fault, most, words in (("kill", 0.2, "killed"), ("stop", 3.5, "stopped, `stall_limit=2`")):
        what, bar = f"one of 2 workers is {words}: longest wait for a batch", f"median < {most} s"
        rounds = found.get(("cure", OURS, fault), [])
        if not rounds:
            yield Bar(what=what, bar=bar, measured="-", passed=None)
            continue
        gaps = [gap for each in rounds for gap in each["gaps_s"]]
        calm = median(gap for each in rounds for gap in each["undisturbed_s"])
        text = (
            f"{median(gaps):.3f} s ({min(gaps):.3f} to {max(gaps):.3f}, {len(gaps)} faults); undisturbed {calm:.3f} s"
        )
        yield Bar(what=what, bar=bar, measured=text, passed=median(gaps) < most)


PARTS = ("keeper", "look", "nursery", "notes")


def watch_bars(found: Found) -> Iterator[Bar]:
    for batch in ("1", "16"):
        what, bar = f"CPU of supervision at 1,000 batches of {batch} a second, {WORKERS}", "< 1 % of one core"
        rounds = found.get(("watch", OURS, batch), [])
        if not rounds:
            yield Bar(what=what, bar=bar, measured="-", passed=None)
            continue
        sums = [sum(each[part] for part in PARTS) * 100 for each in rounds]
        parts = ", ".join(f"{part} {median(each[part] for each in rounds) * 100:.2f}" for part in PARTS)
        text = f"{median(sums):.2f} % ({min(sums):.2f} to {max(sums):.2f}): {parts}"
        yield Bar(what=what, bar=bar, measured=text, passed=median(sums) < 1.0)


def bars(results: dict[str, Any]) -> list[Bar]:
    """All bars, in the order of the requirement."""
    found = found_of(results)
    return [
        *cure_bars(found),
        *watch_bars(found),
        *rate_bars(found),
        *start_bars(found),
        *memory_bars(found),
    ]
