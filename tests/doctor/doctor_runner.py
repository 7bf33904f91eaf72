"""Runs jobs, several at once, for most of their time is spent waiting: ``doctor_runner.py FOLDER SCRIPT:NAME ...``.

It is a process of its own, so that a test which leaves a process behind is still noticed. When its stdin is closed, it
begins no more jobs and ends those that run; nothing else ends it, for jobs have sessions of their own and would stay.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from doctor_jobs import FROZEN, HEALTHY, Job, running

LIMIT_S = 120
AT_ONCE = 4
over = threading.Event()


def diagnose(job: Job, folder: Path) -> None:
    """Run the doctor on a job and write down what it says."""
    if over.is_set():
        return
    home = folder / f"{job.script}-{job.name}"
    home.mkdir()
    try:
        with running(job, home) as process:
            command = [sys.executable, "-m", "antifreeze", "doctor", str(process.pid), "--json"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
            ended = "" if process.poll() is None else "the job ended while it was looked at"
        said = {"output": done.stdout, "errors": done.stderr + ended, "code": done.returncode}
    except BaseException:  # noqa: BLE001  border: the test fails with it
        said = {"output": "", "errors": traceback.format_exc(), "code": -1}
    path = folder / f"{job.script}:{job.name}.new"
    path.write_text(json.dumps(said))
    path.rename(path.with_suffix(".json"))


def main() -> None:
    """Run all jobs that are named."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # not SIG_IGN, which jobs would inherit
    folder = Path(sys.argv[1])
    jobs = {f"{job.script}:{job.name}": job for job in (*FROZEN, *HEALTHY)}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for name in sys.argv[2:]:
            pool.submit(diagnose, jobs[name], folder)
        sys.stdin.read()
        over.set()


if __name__ == "__main__":
    main()
