"""Measures antifreeze, its peers and the raw decoder in turn, and writes a report.

python benchmarks/run.py                            # everything: more than an hour
python benchmarks/run.py --quick                    # small data, once: a look, no verdict
python benchmarks/run.py --only antifreeze --workload A --batch 256 --repeats 5
python benchmarks/run.py --only workers             # `antifreeze.DataLoader` beside torch's: three quarters of an hour
python benchmarks/run.py --report-only              # the report again, from the JSON
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import probes
import report
from cases import ANTIFREEZE, CASES, RAW, Case
from data import NUM_FILES, ROWS_PER_FILE, Data, add_options
from results import Cell, Measured, Record, cpu_us_per_row, rows_per_s
from workers import report as workers_report
from workers import rounds as workers_rounds

HERE = Path(__file__).resolve().parent
BATCHES = {"A": (8, 256), "B": (1, 64, 1024)}
QUICK_ROWS_PER_FILE = 5_000
LONGEST_B_S = 10.0
FAR_BEHIND = 3.0
SAME_MINUTE_S = 30.0
WORKERS = "workers"
WORKERS_REPEATS = 5


class Progress:
    """One line that stays in place on a terminal; one line for each measurement elsewhere."""

    def __init__(self, total: int) -> None:
        self.total, self.done, self.began_s = total, 0, time.monotonic()
        self.live = sys.stderr.isatty()

    def say(self, text: str) -> None:
        left_s = (time.monotonic() - self.began_s) / max(1, self.done) * (self.total - self.done)
        left = f"about {left_s / 60:.0f} min left" if self.done else "starting"
        line = f"[{self.done}/{self.total}] {text} ({left})"
        print(
            f"\r\x1b[K{line[:150]}" if self.live else line, end="" if self.live else "\n", file=sys.stderr, flush=True
        )

    def end(self) -> None:
        if self.live:
            print(file=sys.stderr)


class Bench:
    """The measurements, one after the other; what is known so far is always on disk."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.data = ["--data", str(options.data), "--rows-per-file", str(options.rows_per_file)]
        self.raw_batches: dict[Cell, tuple[int, ...]] = {}
        self.last_raw: dict[Cell, tuple[float, list[Measured]]] = {}
        self.failed: set[tuple[Cell, str]] = set()
        self.results: dict[str, Any] = {
            "date": dt.datetime.now(dt.UTC).strftime("%Y-%m-%d"),
            "command": command_text(options),
            "data": data_text(options),
            "full_size": options.rows_per_file == ROWS_PER_FILE,
            "machine": report.machine(),
            "versions": report.versions(),
            "not_installed": {},
            "records": [],
            "probes": {},
            "unfinished": "the run was stopped",
            **{name: value for name, value in known(options).items() if name == WORKERS},
        }

    def measure(self, case: Case, cell: Cell, batch: int) -> Measured:
        """One case in a fresh process."""
        seconds = self.options.seconds
        if case.kind != "peer":
            seconds = 0.0 if cell.workload == "A" else LONGEST_B_S
        command = [sys.executable, str(HERE / "measure.py"), case.name, *self.data, "--workload", cell.workload]
        command += ["--batch", str(batch), "--seconds", str(seconds), "--timeout", str(self.options.timeout)]
        if cell.shuffle and case.kind != "raw":
            command.append("--shuffle")
        # The inner time limit also ends the case's own children; the outer one is for the worst case only.
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            answer, _ = process.communicate(timeout=self.options.timeout + 60)
            result: Measured = json.loads(answer.strip().splitlines()[-1])
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return {"error": f"timed out after {self.options.timeout + 60:.0f} s"}
        except (ValueError, IndexError):
            return {"error": f"no result, exit code {process.returncode}"}
        return result

    def raw(self, cell: Cell) -> list[Measured]:
        """The raw decoder at each batch size that may be its best, measured within the last minute."""
        if cell in self.last_raw and time.monotonic() - self.last_raw[cell][0] < SAME_MINUTE_S:
            return self.last_raw[cell][1]
        batches = self.raw_batches.get(cell, cell.raw_batches)
        found = {batch: self.measure(CASES[RAW], cell, batch) for batch in batches}
        good = {batch: each for batch, each in found.items() if "error" not in each}
        if not good:
            raise RuntimeError(f"the raw decoder failed: {found}")
        if cell not in self.raw_batches:
            # A batch size that is far behind on both counts is not tried again.
            rate = max(rows_per_s(each, "raw") for each in good.values())
            cpu = min(cpu_us_per_row(each, "raw") for each in good.values())
            self.raw_batches[cell] = tuple(
                batch
                for batch, each in good.items()
                if rows_per_s(each, "raw") > rate / 1.3 or cpu_us_per_row(each, "raw") < cpu * 1.3
            )
        self.last_raw[cell] = (time.monotonic(), list(good.values()))
        return self.last_raw[cell][1]

    def prepare(self, cases: list[Case], workloads: list[str]) -> list[Case]:
        """Make the data each case reads; return the cases that can run."""
        ready = []
        for case in cases:
            if missing := case.missing():
                self.results["not_installed"][case.label] = missing
                print(f"{case.label}: not installed: {missing}", file=sys.stderr)
                continue
            ready.append(case)
            for workload in workloads:
                if workload in case.workloads:
                    command = [sys.executable, str(HERE / "data.py"), *self.data]
                    command += ["--workload", workload, "--formats", "parquet", case.form]
                    done = subprocess.run(command, capture_output=True, text=True, check=False)
                    for row in done.stderr.splitlines():
                        if row.startswith("made "):
                            print(row, file=sys.stderr)
                    if done.returncode:
                        print(f"{case.label}: no data: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return ready

    def round(self, cells: list[Cell], cases: list[Case], repeat: int, progress: Progress) -> None:
        """Every cell, every case, each behind a raw measurement of the same minute."""
        for cell in cells:
            for case in cases:
                if cell.workload not in case.workloads:
                    continue
                if (cell, case.name) not in self.failed and not (repeat and self.far_behind(cell, case)):
                    progress.say(f"round {repeat + 1}, {cell}: {case.label}")
                    raw = self.raw(cell)
                    measured = raw[0] if case.name == RAW else self.measure(case, cell, cell.batch)
                    record = Record(cell=cell, case=case.name, repeat=repeat, measured=measured, raw=raw)
                    if record.error:
                        self.failed.add((cell, case.name))
                    if not progress.live:
                        print(f"    {record.error or f'{record.ratio:.3f} of raw'}", file=sys.stderr, flush=True)
                    self.results["records"].append(record.to_json())
                    self.save()
                progress.done += 1

    def far_behind(self, cell: Cell, case: Case) -> bool:
        """Whether the first round has settled it: more rounds go to those that are near."""
        records = [Record.from_json(each) for each in self.results["records"]]
        ratios = {r.case: r.ratio for r in records if r.cell == cell and r.repeat == 0 and not r.error}
        return ratios.get(case.name, 0.0) * FAR_BEHIND < ratios.get(ANTIFREEZE, 0.0)

    def probe(self, progress: Progress) -> None:
        """First batch, memory, import."""
        repeats = 1 if self.options.quick else max(5, self.options.repeats)
        progress.say("time to first batch")
        self.results["probes"]["first"] = probes.first_batches(self.data, repeats)
        progress.say("peak memory")
        self.results["probes"]["memory"] = probes.memory_peaks(self.data, min(3, repeats))
        progress.say("import")
        self.results["probes"]["import"] = probes.import_time()
        self.save()

    def save(self) -> None:
        self.options.json.parent.mkdir(parents=True, exist_ok=True)
        self.options.json.write_text(json.dumps(self.results, indent=1))


def known(options: argparse.Namespace) -> dict[str, Any]:
    """What an earlier run has left: the Parquet loaders and the workers are measured apart and kept side by side."""
    return json.loads(options.json.read_text()) if options.json.exists() else {}


def measure_workers(options: argparse.Namespace) -> None:
    """Measure the worker engine; put its part of the results in the place of the earlier one, and leave the rest."""

    def save(results: dict[str, Any]) -> None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({**known(options), WORKERS: results}, indent=1))
        text = options.out.read_text() if options.out.exists() else "# Benchmark results\n"
        options.out.write_text(workers_report.spliced(text, workers_report.section(results)))

    versions = {name: report.version(name) for name in ("antifreeze", "torch", "numpy", "cloudpickle")}
    facts = {"machine": report.machine(), "versions": versions}
    patience_s = options.patience
    workers_rounds.measure(quick=options.quick, repeats=options.repeats, patience_s=patience_s, facts=facts, save=save)


def command_text(options: argparse.Namespace) -> str:
    """The command, without the places that mean something only on this machine."""
    words = ["python benchmarks/run.py"]
    if options.quick:
        words.append("--quick")
    words += [f"--{name} {value}" for name in ("only", "batch") if (value := getattr(options, name))]
    words += [f"--{name} {getattr(options, name)}" for name in ("workload", "repeats", "seconds")]
    return " ".join(words)


def data_text(options: argparse.Namespace) -> str:
    data = Data(root=options.data, rows_per_file=options.rows_per_file)
    return f"A: {NUM_FILES} files of {options.rows_per_file:,} rows; B: {data.rows_b:,} rows of two numbers"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--only", help=f"{WORKERS}, or cases, separated by commas: {', '.join(CASES)}")
    parser.add_argument("--workload", default="A,B")
    parser.add_argument("--batch", help="batch sizes, separated by commas")
    parser.add_argument("--order", choices=["both", "shuffled", "in-order"], default="both")
    parser.add_argument("--repeats", type=int, help=f"rounds; default 3, for {WORKERS} {WORKERS_REPEATS}")
    parser.add_argument("--seconds", type=float, default=2.5, help="how long a peer is measured after its first batch")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds after which a case is given up")
    parser.add_argument(
        "--patience", type=float, default=5.0, help="wait so long for others to leave the machine alone"
    )
    parser.add_argument("--quick", action="store_true", help="small data, one round")
    parser.add_argument("--no-probes", action="store_true", help="leave out first batch, memory and import")
    parser.add_argument("--out", type=Path, default=HERE / "RESULTS.md")
    parser.add_argument("--json", type=Path, help="default: beside --out, .json")
    parser.add_argument("--report-only", action="store_true", help="write --out from an earlier --json")
    options = parser.parse_args()
    options.json = options.json or options.out.with_suffix(".json")
    options.with_workers = options.only in (None, WORKERS)
    options.repeats = options.repeats or (WORKERS_REPEATS if options.only == WORKERS else 3)
    if options.quick:
        options.repeats = 1
        if options.rows_per_file == ROWS_PER_FILE:
            options.rows_per_file = QUICK_ROWS_PER_FILE
    if unknown := set((options.only or "").split(",")) - set(CASES) - {"", WORKERS}:
        parser.error(f"unknown cases: {', '.join(sorted(unknown))}")
    return options


def cells_of(options: argparse.Namespace) -> list[Cell]:
    """Workload B is measured in order only."""
    orders = {"both": (False, True), "shuffled": (True,), "in-order": (False,)}[options.order]
    wanted = [int(batch) for batch in options.batch.split(",")] if options.batch else None
    return [
        Cell(workload=workload, batch=batch, shuffle=shuffle)
        for workload in options.workload.split(",")
        for batch in wanted or BATCHES[workload]
        for shuffle in (orders if workload == "A" else (False,))
    ]


def main() -> None:
    options = parse()
    if options.report_only:
        options.out.write_text(report.markdown(json.loads(options.json.read_text())))
        return
    if options.only != WORKERS:
        measure_loaders(options)
    if options.with_workers:
        measure_workers(options)
    print(f"{options.out}\n{options.json}")


def measure_loaders(options: argparse.Namespace) -> None:
    """The Parquet loaders."""
    bench, cells = Bench(options), cells_of(options)
    # Raw is everybody's neighbour; it is a case of its own only when asked for.
    names = options.only.split(",") if options.only else [name for name in CASES if name != RAW]
    if len(names) > 1 and RAW in names:
        names.remove(RAW)
    cases = bench.prepare([CASES[name] for name in names], options.workload.split(","))
    total = options.repeats * sum(cell.workload in case.workloads for cell in cells for case in cases)
    progress = Progress(total)
    try:
        for repeat in range(options.repeats):
            bench.round(cells, cases, repeat, progress)
        if not options.no_probes and ANTIFREEZE in {case.name for case in cases}:
            bench.probe(progress)
        del bench.results["unfinished"]
    except KeyboardInterrupt:
        print("\nstopped; the report holds what was measured", file=sys.stderr)
    finally:
        progress.end()
        bench.save()
        options.out.write_text(report.markdown(bench.results))


if __name__ == "__main__":
    main()
