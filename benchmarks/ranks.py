"""What it costs that ranks watch each other, and how fast they name the one that stands still.

python benchmarks/ranks.py cost            # a real store, 8 to 1,024 ranks, one process in the place of all of them
python benchmarks/ranks.py names --ranks 8 # a real job under torchrun: seconds from the stall to the line in each log
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torch.distributed import PrefixStore, TCPStore

from antifreeze.distributed import Location, RankStatus, Trouble, _exchange, watch_ranks
from antifreeze.distributed._exchange import BEAT_S, EVERYBODY, RANKS_PER_S, READ_S
from antifreeze.distributed._rank_judge import Told, judge
from antifreeze.distributed._record import RankRecord, encode, make_record, take_in, to_json
from antifreeze.distributed._store import JobStore, job_key, node_key, rank_key

ROOT = Path(__file__).parents[1]
PROGRAM = ROOT / "tests/faults/rank_programs.py"
WORLDS = (8, 64, 256, 1024)
CONNECTIONS = 128
SERVER = """
import sys
from torch.distributed import TCPStore
server = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
print(server.port, flush=True)
sys.stdin.read()
"""


def cpu_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def record_of(rank: int, beat: int) -> RankRecord:
    what = f"data/train/part-{rank:05d}.parquet, row group 3, row 1234 (batch 41)"
    place = Location("worker 1 (pid 12345)", "transform", what, 1.25, "/home/me/project/train.py:123 in transform")
    trouble = Trouble(1, place, "network", "waits for a network peer") if rank == 1 else None
    standing = RankStatus(3, 1041, 2.4 if trouble else 0.0, 2.6, place, trouble)
    who = RankRecord(rank=rank, host=f"node-{rank // 8}", pid=100_000 + rank, started=123_456_789, space=4_026_531_836)
    return make_record(who, beat, standing)


def median_us(act: Callable[[], Any], clock: Callable[[], float], times: int = 50) -> float:
    taken = []
    for _ in range(times):
        began_s = clock()
        act()
        taken.append(clock() - began_s)
    return 1e6 * statistics.median(taken)


def single_calls(port: int, world: int) -> dict[str, float]:
    """Return what one call costs one client, in microseconds: of CPU, or until the store has answered."""
    cpu, wall = time.thread_time, time.perf_counter
    client = PrefixStore("bench", TCPStore("127.0.0.1", port, None, False, wait_for_workers=False))
    store = JobStore(client)
    inner = store._connected
    texts = [encode(to_json(record_of(rank, 1))) for rank in range(world)]
    for rank, text in enumerate(texts):
        store.put(rank_key(rank), text)
    keys = [rank_key(rank) for rank in range(world)]
    answer = store.fetch(keys)
    seen = take_in({}, answer, range(world), 0.0)
    return {
        "bytes of a record": statistics.mean(map(len, texts)),
        "make and encode one record, CPU": median_us(lambda: encode(to_json(record_of(1, 1))), cpu),
        "`set` one record": median_us(lambda: inner().set(keys[0], texts[0]), wall),
        "`multi_get` of all records": median_us(lambda: store.fetch(keys), wall),
        "decode all records, CPU": median_us(lambda: take_in({}, answer, range(world), 0.0), cpu),
        "judge all ranks, CPU": median_us(lambda: Told().news(judge(seen, 1.0), {}, 1.0), cpu),
    }


def whole_job(port: int, pid: int, world: int, seconds: float, *, stalled: bool) -> tuple[float, float]:
    """Play the traffic of all ranks; return the CPU seconds of the store in each second, and messages per second."""
    stores = [TCPStore("127.0.0.1", port, None, False, wait_for_workers=False) for _ in range(min(CONNECTIONS, world))]
    text = encode(to_json(record_of(1, 1)))
    keys = [rank_key(rank) for rank in range(world)]
    for key in [*keys, job_key(), node_key("node-0")]:
        stores[0].set(key, text)
    beat_s = max(BEAT_S, world / RANKS_PER_S)
    writes = [(rank, False) for rank in range(world)]
    plan = [(i * beat_s / world, "write", rank) for i, (rank, _) in enumerate(writes)]
    rounds = [(at_s + n * beat_s, what, rank) for n in range(round(seconds / beat_s)) for at_s, what, rank in plan]
    if stalled:
        reads = [(i * READ_S / world, "read", rank) for i, rank in enumerate(range(world))]
        rounds += [(a + n * READ_S, what, rank) for n in range(round(seconds / READ_S)) for a, what, rank in reads]
    rounds.sort()
    before, began_s = cpu_of(pid), time.perf_counter()
    for at_s, what, rank in rounds:
        while time.perf_counter() - began_s < at_s:
            time.sleep(0.0005)
        store = stores[rank % len(stores)]
        if what == "write":
            store.set(keys[rank], text)
        elif world <= EVERYBODY or rank == 0:
            store.multi_get(keys)
        else:
            store.multi_get([job_key(), node_key("node-0")])
    took_s = time.perf_counter() - began_s
    return (cpu_of(pid) - before) / took_s, len(rounds) / took_s


class Loader:
    """A loader in a job of some ranks, of which this process is one."""

    def __init__(self, port: int, world: int, rank: int, idle_s: float) -> None:
        self.store = TCPStore("127.0.0.1", port, None, False, wait_for_workers=False)
        self.distributed_c10d = SimpleNamespace(_get_default_store=lambda: self.store)
        self.get_rank, self.get_world_size = lambda: rank, lambda: world
        self.idle_s = idle_s

    def standing(self) -> RankStatus:
        return RankStatus(0, 7, 0.0, self.idle_s)


def own_threads(port: int, world: int, seconds: float, *, rank: int, stalled: bool) -> float:
    """Return the CPU seconds that the threads of one rank take in each second; this process does nothing else."""
    loader = Loader(port, world, rank, 5.0 if stalled else 0.1)
    _exchange.distributed_module = lambda: loader
    with watch_ranks(loader, Loader.standing):
        time.sleep(1)
        before = time.process_time()
        time.sleep(seconds)
        used = time.process_time() - before
    time.sleep(0.5)
    return used / seconds


def cost(seconds: float) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as p:
        assert p.stdout is not None
        port = int(p.stdout.readline())
        names = list(single_calls(port, 8))
        print(f"| µs, one client | {' | '.join(f'{world:,} ranks' for world in WORLDS)} |")
        print("|---" * (len(WORLDS) + 1) + "|")
        columns = [single_calls(port, world) for world in WORLDS]
        for name in names:
            print(f"| {name} | {' | '.join(f'{column[name]:,.0f}' for column in columns)} |")
        print(f"\n| the whole job | {' | '.join(f'{world:,} ranks' for world in WORLDS)} |")
        print("|---" * (len(WORLDS) + 1) + "|")
        for label, stalled in (("trains", False), ("waits", True)):
            played = [whole_job(port, p.pid, world, seconds, stalled=stalled) for world in WORLDS]
            print(f"| {label}: share of a core, store | {' | '.join(f'{cpu:.1%}' for cpu, _ in played)} |")
            for who, rank in (("rank 0", 0), ("a rank that nobody reads for", 7)):
                used = [own_threads(port, world, seconds, rank=rank, stalled=stalled) for world in WORLDS]
                print(f"| {label}: share of a core, threads of {who} | {' | '.join(f'{cpu:.1%}' for cpu in used)} |")
            print(f"| {label}: messages a second | {' | '.join(f'{rate:,.0f}' for _, rate in played)} |")
        p.kill()


# -- names ---------------------------------------------------------------------------------------------------------


def names(case: str, ranks: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        environ = {**os.environ, "OMP_NUM_THREADS": "1"}
        with (folder / "output").open("w") as output:
            job = subprocess.Popen([*command, PROGRAM, folder], env=environ, stdout=output, stderr=output)
        try:
            began_s = disturb(case, folder, ranks)
            report(case, folder, ranks, began_s)
            (folder / "stop").touch()
            print(f"  the job ended with exit code {job.wait(120)}")
        finally:
            job.kill()
            job.wait(30)


def wait_for(condition: Callable[[], object]) -> None:
    end_s = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < end_s, "waited in vain"
        time.sleep(0.01)


def text_of(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def disturb(case: str, folder: Path, ranks: int) -> float:
    """Have one rank stand still, once all train; return when that began."""
    wait_for(lambda: all(text_of(folder / f"steps-{rank}").count("\n") > 150 for rank in range(ranks)))
    if case == "stopped":
        os.kill(int(text_of(folder / f"pid-{ranks // 2}")), signal.SIGSTOP)
        return time.time()
    what = {"stuck": "sleep", "holds": "hold"}[case]
    os.mkfifo(folder / "gate")
    (folder / what).touch()
    wait_for((folder / f"{what}-begun").exists)
    return (folder / f"{what}-begun").stat().st_ctime


def report(case: str, folder: Path, ranks: int, began_s: float) -> None:
    culprit = ranks // 2
    pattern = re.compile(
        rf"^(\d+\.\d+) antifreeze: rank {culprit} of {ranks} .*(?:had no batch|silent).*$", re.MULTILINE
    )
    who = [rank for rank in range(ranks) if rank != culprit or case == "stuck"]
    found: dict[int, float] = {}

    def all_have() -> bool:
        for rank in who:
            times = [float(match[1]) - began_s for match in pattern.finditer(text_of(folder / f"log-{rank}"))]
            if any(after_s > 0 for after_s in times):  # before, on a busy machine, its start may have been spoken of
                found[rank] = min(after_s for after_s in times if after_s > 0)
        return len(found) == len(who)

    wait_for(all_have)
    if case == "stopped":
        os.kill(int(text_of(folder / f"pid-{culprit}")), signal.SIGCONT)
    if case == "holds":
        (folder / "gate").write_bytes(b"x")
    times = sorted(found.values())
    print(f"{case}, {ranks} ranks: named on {len(times)} ranks after {times[0]:.1f} to {times[-1]:.1f} s")
    wait_for(lambda: time.time() > began_s + 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["cost", "names"])
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=10.0)
    arguments = parser.parse_args()
    if arguments.what == "cost":
        cost(arguments.seconds)
    else:
        for case in ("stuck", "stopped", "holds"):
            names(case, arguments.ranks)


if __name__ == "__main__":
    main()
