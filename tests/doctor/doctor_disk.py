"""Keeps a small disk that jobs may freeze, until its stdin is closed or it is late: ``doctor_disk.py IMAGE FOLDER``.

It is a process of its own, in a session of its own, so that the disk is thawed and taken away whatever becomes of those
who use it: nothing that waits for a frozen disk can be killed.
"""

from __future__ import annotations

import select
import signal
import subprocess
import sys
import time
from pathlib import Path

NBYTES = 16 << 20
LIMIT_S = 240.0
LEAVE_S = 45.0
"""Within this whoever uses the disk has to end once it is thawed."""


def run(*command: str) -> int:
    """Run a program; return its exit code."""
    return subprocess.run(
        command, stdout=sys.stderr, stderr=subprocess.DEVNULL, timeout=LEAVE_S, check=False
    ).returncode


def main() -> int:
    """Make the disk, wait, and take it away."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    image, folder = sys.argv[1:]
    with Path(image).open("wb") as file:
        file.truncate(NBYTES)
    if run("mkfs.ext4", "-q", "-F", image) or run("mount", "-o", "loop", image, folder):
        return 1
    try:
        print("mounted", flush=True)
        select.select([sys.stdin], [], [], LIMIT_S)
    finally:
        code = take_away(folder)
        Path(image).unlink()
    return code


def take_away(folder: str) -> int:
    """Thaw the disk again and again until nobody uses it any more."""
    end_s = time.monotonic() + LEAVE_S
    while True:
        run("fsfreeze", "--unfreeze", folder)  # fails if it is not frozen
        if run("umount", folder) == 0:
            return 0
        if time.monotonic() > end_s:
            return run("umount", "--lazy", folder)
        time.sleep(0.1)


if __name__ == "__main__":
    sys.exit(main())
