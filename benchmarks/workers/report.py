"""The section of the report that is about workers."""

from __future__ import annotations

from statistics import median
from typing import Any

from workers.bars import bars, cpu_ms, found_of, per_s
from workers.cases import RATES, STARTS
from workers.rounds import OURS, START_LOADERS, TORCH

TITLE = "## Workers"
HOW = """\
`antifreeze.DataLoader` beside `torch.utils.data.DataLoader` (`fork`), on the same datasets. Every measurement has a
fresh process; ours and torch's run one after the other, who is first changes from round to round, and what counts is
the median of the ratios of the rounds, with their range behind. Samples of 10 ms are measured nine times in a round,
for there the two differ by less than one such pair does from the next; starts five times. The consumer takes every
batch and drops it; `torch.set_num_threads(1)`.

- **CPU** is that of the trainer, the workers and whatever stands between them, user and system, between two moments
  at which all of them are alive, after a warm-up. *direct* is `num_workers=0`: what samples and collating cost alone.
- **Supervision** is the keeper's thread (less the time in which it takes in batches and gives out tasks while the
  trainer sleeps: somebody has to), `Epoch.look` in the trainer's thread, the nursery's process, and what workers write
  down about themselves: making a batch with a board and without one, the least of 3,000 tries each.
- **Cure**: the longest wait for a batch in the second after SIGKILL, in the 3.5 seconds after SIGSTOP. Batches of 4
  samples of 5 ms each.
- **Memory** is read after a pass over the whole array. The trainer's own array is not in the sum.
- Where samples are the same few tensors again and again, torch sends no bytes after the first round: trainer and
  dataset share the memory, and a trainer that writes into a batch changes the dataset. antifreeze makes a copy.
"""


def table(head: list[str], rows: list[list[str]], right: set[int]) -> list[str]:
    marks = ["---:" if number in right else "---" for number in range(len(head))]
    return [f"| {' | '.join(row)} |" for row in (head, marks, *rows)] + [""]


def rate_table(results: dict[str, Any]) -> list[str]:
    found, rows = found_of(results), []
    for case in RATES:
        cells = [case.label]
        for loader in (OURS, TORCH):
            each = found.get(("rate", loader, case.name), [])
            cells += [f"{median(map(per_s, each)):,.4g}", f"{median(map(cpu_ms, each)):,.4g}"] if each else ["-", "-"]
            trainer = [m["trainer_cpu_s"] / m["batches"] * 1e3 for m in each]
            cells.append(f"{median(trainer):,.3g}" if trainer else "-")
        alone = found.get(("rate", "direct", case.name), [])
        rows.append([*cells, f"{median(map(cpu_ms, alone)):,.4g}" if alone else "-"])
    three = ["batches/s", "CPU ms", "of it trainer"]
    head = ["dataset", *three, *(f"torch: {word}" for word in three), "direct: CPU ms"]
    return ["### Batches", "", *table(head, rows, set(range(1, 8)))]


def start_table(results: dict[str, Any]) -> list[str]:
    found, rows = found_of(results), []
    for loader in START_LOADERS:
        cells = [loader]
        for case in STARTS:
            times = [each["first_s"] for each in found.get(("start", loader, case.name), [])]
            cells.append(f"{median(times):.2f} ({min(times):.2f} to {max(times):.2f})" if times else "-")
        rows.append(cells)
    head = ["loader", *(f"dataset {case.label}" for case in STARTS)]
    return ["### Seconds to the first batch, 4 workers", "", *table(head, rows, {1, 2})]


def memory_table(results: dict[str, Any]) -> list[str]:
    rows = []
    for (probe, loader, workers), each in sorted(found_of(results).items()):
        if probe == "memory":
            rows.append([loader, workers, f"{median(m['below_mb'] for m in each):,.0f}"])
    head = ["loader", "workers", "MB below the trainer, PSS"]
    return ["### Memory, dataset with an array of 1 GB", "", *table(head, rows, {1, 2})] if rows else []


def section(results: dict[str, Any]) -> str:
    """The whole section."""
    out = [TITLE, "", f"- command: `{results['command']}`, {results['date']}"]
    out += [f"- {name}: {value}" for name, value in results.get("machine", {}).items()]
    out += ["- versions: " + ", ".join(f"{name} {number}" for name, number in results.get("versions", {}).items())]
    others = [record["others"] for record in results["records"]]
    if others:
        text = f"{median(others):.0%} of it (median), {max(others):.0%} at most"
        out.append(f"- the machine is shared: before a measurement, others used {text}")
    out.append("")
    if results.get("quick"):
        out += ["**One short round**: a look, no verdict.", ""]
    if results.get("unfinished"):
        out += ["**Unfinished**: the run was stopped.", ""]
    found = bars(results)
    passed, failed = (sum(bar.passed is value for bar in found) for value in (True, False))
    unknown = sum(bar.verdict == "not measured" for bar in found)
    rows = [[bar.what, bar.bar, bar.measured, bar.verdict] for bar in found]
    out += [f"{passed} passed, {failed} failed, {unknown} not measured.", ""]
    out += table(["what", "bar", "measured", ""], rows, set())
    out += [HOW, *rate_table(results), *start_table(results), *memory_table(results)]
    errors = [r for r in results["records"] if "error" in r["measured"]]
    out += [f"- failed: {r['probe']} {r['what']}, {r['loader']}: {r['measured']['error']}" for r in errors]
    return "\n".join(out).rstrip() + "\n"


def spliced(text: str, new: str) -> str:
    """A report with this section in the place of the one that it had, or at its end."""
    begin = text.find(f"\n{TITLE}\n")
    if begin < 0:
        return f"{text.rstrip()}\n\n{new}"
    end = text.find("\n## ", begin + len(TITLE))
    rest = "" if end < 0 else text[end + 1 :]
    return f"{text[: begin + 1]}{new}" + (f"\n{rest}" if rest else "")
