"""User code over Parquet: JPEGs of a binary column, decoded and cropped with Pillow, against what two cores can do.

python benchmarks/images.py                          # 20,000 JPEGs, written once to a temporary folder; half an hour
python benchmarks/images.py --repeats 2 --images 4000 --seconds 2      # a look
python benchmarks/images.py --only antifreeze,parent --parent ../main/src   # beside another checkout of antifreeze

Every measurement has a fresh process. ``bare`` is two processes that decode bytes that are in memory already: it is
measured before and after every loader, and rates are given as a share of the mean of the two. Machines are shared, so
CPU seconds of the process tree for each image are given as well: they depend far less on what else is running.

Memory is sampled in separate runs: anonymous and shared memory of the process tree (PSS), plus the largest resident
set of file pages of one process. Libraries are mapped by all of them, and by processes of other people as well.
"""

from __future__ import annotations

import argparse
import io
import json
import multiprocessing
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
SIZE, CROP, BATCH_SIZE, NUM_WORKERS = 256, 224, 64, 2
NUM_FILES = 20
WINDOW_NBYTES = 32 << 20
"""What a peer shuffles within: the same as antifreeze."""
TIMEOUT_S = 300.0
WARM_UP_S = 1.0
LEAST_IMAGES = 6_000
"""Two windows: less would not show what reading costs."""


# -- data --------------------------------------------------------------------------------------------------------------


def photo(seed: int) -> bytes:
    """Return a JPEG with the spectrum of a photograph: a lot of large shapes, and a little grain."""
    import numpy as np
    from PIL import Image

    random_ = np.random.default_rng(seed)
    total = np.zeros((SIZE, SIZE, 3), np.float32)
    for cells, weight in ((4, 90), (16, 45), (64, 20), (SIZE, 6)):
        shape = random_.integers(0, 256, (cells, cells, 3), np.uint8)
        large = Image.fromarray(shape).resize((SIZE, SIZE), Image.Resampling.BICUBIC)
        total += (np.asarray(large, np.float32) - 128) * (weight / 128)
    file = io.BytesIO()
    Image.fromarray(np.clip(total + 128, 0, 255).astype(np.uint8)).save(file, "JPEG", quality=85)
    return file.getvalue()


def write(folder: Path, num_images: int, group_rows: int) -> None:
    """Write the files, unless they are there."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True, exist_ok=True)
    per_file = num_images // NUM_FILES
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        for number in range(NUM_FILES):
            path = folder / f"part-{number:03}.parquet"
            if path.exists():
                continue
            labels = list(range(number * per_file, (number + 1) * per_file))
            images = pool.map(photo, labels, chunksize=50)
            table = pa.table({"image": pa.array(images, pa.binary()), "label": labels})
            pq.write_table(table, path.with_suffix(".new"), row_group_size=group_rows)
            path.with_suffix(".new").rename(path)


def read_all(folder: Path, most: int) -> list[bytes]:
    """Return some of the JPEGs."""
    import pyarrow.parquet as pq

    found: list[bytes] = []
    for path in sorted(folder.glob("*.parquet")):
        for batch in pq.ParquetFile(path).iter_batches(256, columns=["image"], use_threads=False):
            found += batch.column(0).to_pylist()
            if len(found) >= most:
                return found[:most]
    return found


# -- the work ----------------------------------------------------------------------------------------------------------


def pixels(image: bytes) -> Any:
    """Decode a JPEG and cut a random square out of it."""
    import numpy as np
    from PIL import Image

    decoded = Image.open(io.BytesIO(image)).convert("RGB")
    left, top = random.randrange(SIZE - CROP + 1), random.randrange(SIZE - CROP + 1)
    return np.array(decoded.crop((left, top, left + CROP, top + CROP)))


def transform(row: dict[str, Any]) -> dict[str, Any]:
    """What users write."""
    return {"image": pixels(row["image"]), "label": row["label"]}


def batch_of(images: list[bytes]) -> Any:
    """The same for a whole batch, for those who hand over batches."""
    import numpy as np
    import torch

    return torch.from_numpy(np.stack([pixels(image) for image in images]))


# -- loaders -----------------------------------------------------------------------------------------------------------


def antifreeze_loader(folder: Path, options: argparse.Namespace) -> Any:
    """A loader with its default settings."""
    import antifreeze as af

    arguments = {"batch_size": options.batch, "num_workers": options.workers}
    return af.StreamingDataLoader(
        af.StreamingDataset(folder, shuffle=not options.in_order, transform=transform), **arguments
    )


class BatchesOfBytes:
    """What the peers read, again and again."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder, self.options = folder, options

    def __iter__(self) -> Iterator[list[bytes]]:
        while True:
            yield from batches_of_bytes(self.folder, self.options)


def batches_of_bytes(folder: Path, options: argparse.Namespace) -> Iterator[list[bytes]]:
    """Row groups in random order, rows shuffled within a window."""
    import pyarrow.parquet as pq

    random_ = random.Random(0)
    files = sorted(folder.glob("*.parquet"))
    parts = [(file, group) for file in files for group in range(pq.ParquetFile(file).num_row_groups)]
    if not options.in_order:
        random_.shuffle(parts)
    window: list[bytes] = []
    nbytes = 0
    for file, group in parts:
        for batch in pq.ParquetFile(file).iter_batches(256, row_groups=[group], columns=["image"], use_threads=False):
            rows = batch.column(0).to_pylist()
            window += rows
            nbytes += sum(map(len, rows))
            if nbytes >= WINDOW_NBYTES:
                if not options.in_order:
                    random_.shuffle(window)
                whole = len(window) // options.batch * options.batch
                for start in range(0, whole, options.batch):
                    yield window[start : start + options.batch]
                window, nbytes = window[whole:], 0
    for start in range(0, len(window), options.batch):
        yield window[start : start + options.batch]


def nodes(folder: Path, options: argparse.Namespace) -> Iterable[Any]:
    """torchdata.nodes: one thread reads, as many threads as there are workers decode a batch at a time."""
    from torchdata.nodes import IterableWrapper, Loader, ParallelMapper

    source = IterableWrapper(BatchesOfBytes(folder, options))
    return Loader(ParallelMapper(source, batch_of, num_workers=options.workers, method="thread", in_order=True))


def spdl(folder: Path, options: argparse.Namespace) -> Iterable[Any]:
    """SPDL: the same as a pipeline."""
    from spdl.pipeline import PipelineBuilder

    builder = PipelineBuilder().add_source(BatchesOfBytes(folder, options))
    pipeline = builder.pipe(batch_of, concurrency=options.workers).add_sink(2).build(num_threads=options.workers)
    with pipeline.auto_stop():
        yield from pipeline


LOADERS: dict[str, Callable[[Path, argparse.Namespace], Any]] = {
    "antifreeze": antifreeze_loader,
    "parent": antifreeze_loader,
    "nodes": nodes,
    "spdl": spdl,
}


# -- one measurement ---------------------------------------------------------------------------------------------------


def bare_share(folder: Path, options: argparse.Namespace, ready: Any, results: Any) -> None:
    """One of the two processes of ``bare``: nothing but the work."""
    images = read_all(folder, 2_000)
    batch_of(images[: options.batch])
    ready.wait()
    began_s, cpu_s, count, start = time.perf_counter(), time.process_time(), 0, 0
    while time.perf_counter() - began_s < options.seconds or count < LEAST_IMAGES // NUM_WORKERS:
        batch_of(images[start : start + options.batch])
        count += options.batch
        start = (start + options.batch) % (len(images) - options.batch)
    results.put((count, time.perf_counter() - began_s, time.process_time() - cpu_s))


def bare(folder: Path, options: argparse.Namespace) -> dict[str, float]:
    """What two cores can do."""
    context = multiprocessing.get_context("spawn")
    ready, results = context.Barrier(NUM_WORKERS), context.Queue()
    shares = [context.Process(target=bare_share, args=(folder, options, ready, results)) for _ in range(NUM_WORKERS)]
    for share in shares:
        share.start()
    found = [results.get(timeout=TIMEOUT_S) for _ in shares]
    for share in shares:
        share.join(TIMEOUT_S)
    images = sum(count for count, _, _ in found)
    rate = sum(count / seconds for count, seconds, _ in found)
    return {"rate": rate, "cpu_us": sum(cpu for _, _, cpu in found) / images * 1e6}


def endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def first_batch(loader: Any) -> float:
    began_s = time.perf_counter()
    next(iter(loader))
    return time.perf_counter() - began_s


def rate(name: str, folder: Path, options: argparse.Namespace) -> dict[str, float]:
    """Images for each second, and CPU of the process tree for each image, in a steady state."""
    from measure import tree_cpu_s

    loader = LOADERS[name](folder, options)
    began_s = time.perf_counter()
    batches = endless(loader)
    next(batches)
    first_s = time.perf_counter() - began_s
    tree_cpu_s()
    stop_s = time.perf_counter() + WARM_UP_S
    while time.perf_counter() < stop_s:
        next(batches)
    cpu_s, began_s, images = tree_cpu_s(), time.perf_counter(), 0
    own_s = time.process_time()
    for batch in batches:
        images += len(batch["image"] if isinstance(batch, dict) else batch)
        if time.perf_counter() - began_s >= options.seconds and images >= LEAST_IMAGES:
            break
    wall_s = time.perf_counter() - began_s
    own_s, cpu_s = time.process_time() - own_s, tree_cpu_s() - cpu_s
    return {
        "rate": images / wall_s,
        "cpu_us": cpu_s / images * 1e6,
        "trainer_us": own_s / images * 1e6,
        "first_s": first_s,
    }


def prestarted(name: str, folder: Path, options: argparse.Namespace) -> dict[str, float]:
    """Seconds to the first batch, when the model was built for a while after ``prestart()``."""
    loader = LOADERS[name](folder, options)
    if hasattr(loader, "prestart"):
        loader.prestart()
        time.sleep(3.0)
    return {"first_s": first_batch(loader)}


def tree_nbytes() -> dict[str, int]:
    """Return what the process tree holds, in bytes."""
    from measure import descendants

    anonymous = shared = files = 0
    for pid in (os.getpid(), *descendants()):
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        fields = dict(line.split(":", 1) for line in (rollup.partition("\n")[2] + status).splitlines())
        if "RssFile" not in fields:  # it has just ended
            continue
        anonymous += kilobytes(fields["Pss_Anon"])
        shared += kilobytes(fields["Pss_Shmem"])
        files = max(files, kilobytes(fields["RssFile"]))
    return {"anonymous": anonymous, "shared": shared, "files": files, "total": anonymous + shared + files}


def kilobytes(text: str) -> int:
    return int(text.split()[0]) * 1024


def memory(name: str, folder: Path, options: argparse.Namespace) -> dict[str, float]:
    """Return the peak of the tree's memory, with the parts at that moment."""
    peak: dict[str, int] = {"total": 0}
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.05):
            peak = max(peak, tree_nbytes(), key=lambda found: found["total"])

    thread = threading.Thread(target=watch, daemon=True)
    loader = LOADERS[name](folder, options)
    thread.start()
    began_s = time.perf_counter()
    for _ in endless(loader):
        if time.perf_counter() - began_s >= options.seconds + 3.0:
            break
    done.set()
    thread.join(5.0)
    return {part: nbytes / 1e6 for part, nbytes in peak.items()}


def measure(probe: str, name: str, folder: Path, options: argparse.Namespace) -> dict[str, float]:
    """Make one measurement in this process."""
    if name == "bare":
        return bare(folder, options)
    import pyarrow.parquet  # noqa: F401
    import torch  # a trainer has it

    torch.set_num_threads(1)
    found: dict[str, float] = {"rate": rate, "first": prestarted, "memory": memory}[probe](name, folder, options)
    return found


# -- all measurements --------------------------------------------------------------------------------------------------


def measured(probe: str, name: str, options: argparse.Namespace) -> dict[str, float]:
    """Make one measurement in a fresh process."""
    command = [sys.executable, str(HERE), "--one", probe, name]
    for option in ("images", "group_rows", "data", "seconds", "batch", "workers"):
        command += [f"--{option.replace('_', '-')}", str(getattr(options, option))]
    command += ["--in-order"] if options.in_order else []
    paths = [str(options.parent.resolve())] if name == "parent" else []
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, env=environ)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    print(".", end="", file=sys.stderr, flush=True)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def shown(values: list[float], form: str) -> str:
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def table(names: list[str], options: argparse.Namespace) -> str:
    """Measure everything in turn, again and again, and return a table."""
    rates: dict[str, list[float]] = {name: [] for name in names}
    costs: dict[str, list[float]] = {name: [] for name in names}
    trainer: dict[str, list[float]] = {name: [] for name in names}
    firsts: dict[str, list[float]] = {name: [] for name in names}
    peaks: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    before = measured("rate", "bare", options)
    for number in range(options.repeats):
        for name in names[:: 1 if number % 2 else -1]:
            found = measured("rate", name, options)
            after = measured("rate", "bare", options)
            rates[name].append(2 * found["rate"] / (before["rate"] + after["rate"]))
            costs[name].append(2 * found["cpu_us"] / (before["cpu_us"] + after["cpu_us"]))
            trainer[name].append(found["trainer_us"])
            before = after
            firsts[name].append(measured("first", name, options)["first_s"])
            if number < options.memory_repeats:
                peaks[name].append(measured("memory", name, options))
    print(file=sys.stderr)
    lines = [
        "| loader | rate / bare | CPU per image / bare | first batch | memory, MB | anonymous + shared + files |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name in names:
        parts = max(peaks[name], key=lambda peak: peak["total"], default={})
        split = " + ".join(f"{parts[part]:.0f}" for part in ("anonymous", "shared", "files")) if parts else ""
        lines.append(
            f"| {name} | {shown(rates[name], '.2f')} | {shown(costs[name], '.2f')} | {shown(firsts[name], '.2f')} s "
            f"| {shown([peak['total'] for peak in peaks[name]], '.0f') if peaks[name] else ''} | {split} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Write the data, measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--group-rows", type=int, default=1_000)
    parser.add_argument("--batch", type=int, default=BATCH_SIZE)
    parser.add_argument("--workers", type=int, default=NUM_WORKERS)
    parser.add_argument("--in-order", action="store_true")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--memory-repeats", type=int, default=3)
    parser.add_argument("--only", default="antifreeze,nodes,spdl")
    parser.add_argument("--parent", type=Path, help="the src folder of another checkout, measured as `parent`")
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "antifreeze-images")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    folder = options.data / f"{options.images}-{options.group_rows}"
    if options.one:
        print(json.dumps(measure(*options.one, folder, options)))
        return
    write(folder, options.images, options.group_rows)
    names = options.only.split(",")
    if "parent" in names and options.parent is None:
        parser.error("`parent` needs --parent")
    print(table(names, options))


if __name__ == "__main__":
    main()
