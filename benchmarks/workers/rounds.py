"""All measurements of the worker engine, in turn, in fresh processes; what is known so far is always on disk."""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workers.cases import RATES, STARTS

BENCHMARKS = Path(__file__).resolve().parent.parent
OURS, TORCH = "antifreeze", "torch-fork"
START_LOADERS = ("torch-spawn", "torch-forkserver", "torch-fork", OURS)
MEMORY_WORKERS = (1, 2, 3, 4)
TIMEOUT_S = 180.0
QUIET, LOOK_S = 0.15, 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One probe of one loader."""

    probe: str
    loader: str
    what: str
    more: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.probe} {self.what}: {self.loader}"

    def run(self) -> dict[str, Any]:
        """Measure in a fresh process."""
        command = [sys.executable, "-m", "workers.one", self.probe, self.loader, self.what, *self.more]
        # Packages are compiled when they are installed; a checkout is not, and would be at every start.
        environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        process = subprocess.Popen(
            command,
            cwd=BENCHMARKS,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, errors = process.communicate(timeout=TIMEOUT_S)
            result: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.communicate()
            return {"error": f"timed out after {TIMEOUT_S:.0f} s"}
        except (ValueError, IndexError):
            return {"error": (errors.strip().splitlines() or [f"exit code {process.returncode}"])[-1][:300]}
        return result


def busy() -> float:
    """What share of the machine others use at the moment."""

    def read() -> tuple[int, int]:
        counts = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        return sum(counts), counts[3] + counts[4]

    total, idle = read()
    time.sleep(LOOK_S)
    total_after, idle_after = read()
    return 1 - (idle_after - idle) / max(1, total_after - total)


def quiet(patience_s: float) -> float:
    """Wait until others leave the machine alone, for so long at most; return what share of it they use."""
    stop_s = time.monotonic() + patience_s
    while (share := busy()) > QUIET and time.monotonic() < stop_s:
        pass
    return share


def plan(*, quick: bool, repeats: int) -> list[Measurement]:
    """Every measurement of every round, in the order in which they run: who is compared runs in the same minute."""
    found = []
    for number in range(1 if quick else repeats):
        found += list(one_round(number, quick=quick))
    faults = 3 if quick else 15
    found.append(Measurement(probe="cure", loader=OURS, what="kill", more=("--faults", str(faults))))
    found.append(Measurement(probe="cure", loader=OURS, what="stop", more=("--faults", str(faults // 2))))
    return found


def in_turn(loaders: tuple[str, ...], number: int) -> tuple[str, ...]:
    """The loaders in the order of that round: who is first changes from one to the next."""
    return loaders[::-1] if number % 2 else loaders


def one_round(number: int, *, quick: bool) -> Iterator[Measurement]:
    seconds = ("--seconds", "1" if quick else "2")
    for case in RATES:
        if not number:
            yield Measurement(probe="rate", loader="direct", what=case.name, more=seconds)
        for pair in range(1 if quick else case.pairs):
            for loader in in_turn((TORCH, OURS), number * case.pairs + pair):
                yield Measurement(probe="rate", loader=loader, what=case.name, more=seconds)
    for case in STARTS:
        loaders = (*START_LOADERS, "import") if case.name == "start-torch" else START_LOADERS
        for pair in range(1 if quick else case.pairs):
            for loader in in_turn(loaders, number * case.pairs + pair):
                yield Measurement(probe="start", loader=loader, what=case.name)
    for batch in ("1", "16"):
        yield Measurement(probe="watch", loader=OURS, what=batch, more=("--seconds", "3" if quick else "6"))
    if number < 3:
        for workers in MEMORY_WORKERS:
            yield Measurement(probe="memory", loader=OURS, what=str(workers))
    if number == 0 and not quick:
        for loader in ("torch-fork", "torch-spawn"):
            for workers in (1, 4):
                yield Measurement(probe="memory", loader=loader, what=str(workers))


def measure(
    *, quick: bool, repeats: int, patience_s: float, facts: dict[str, Any], save: Callable[[dict[str, Any]], None]
) -> None:
    """Run the whole plan; `save` is called with all that is known after each measurement."""
    todo = plan(quick=quick, repeats=repeats)
    results: dict[str, Any] = {
        "date": dt.datetime.now(dt.UTC).strftime("%Y-%m-%d"),
        "command": f"python benchmarks/run.py --only workers{' --quick' if quick else f' --repeats {repeats}'}",
        "quick": quick,
        **facts,
        "unfinished": True,
        "records": [],
    }
    for number, measurement in enumerate(todo, 1):
        others = quiet(patience_s)
        result = measurement.run()
        record = {"probe": measurement.probe, "loader": measurement.loader, "what": measurement.what}
        results["records"].append({**record, "others": round(others, 2), "measured": result})
        results["unfinished"] = number < len(todo)
        save(results)
        print(f"[{number}/{len(todo)}] {measurement}  {result.get('error', '')}", file=sys.stderr, flush=True)
