"""Limits of the system that are exhausted: the error names the limit that it is about, and how to raise it."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
import sys

import pytest

from antifreeze.core import limit_hint

SCRIPT = """
import os, resource, sys
import numpy as np
import antifreeze as af

class Large:
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return np.zeros(100_000)

if __name__ == "__main__":
    which, limit = getattr(resource, sys.argv[1]), int(sys.argv[2])
    resource.setrlimit(which, (limit, resource.getrlimit(which)[1]))
    try:
        for _ in af.DataLoader(Large(), num_workers=2, batch_size=2):
            pass
    except af.AntifreezeError as error:
        print("hint:", error.hint)
"""


def run(*arguments: str) -> str:
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=90, check=False)
    assert "hint: " in done.stdout, (done.stdout, done.stderr[-2000:])
    return done.stdout


@pytest.mark.parametrize("limit", [0, 1000, 100_000])
def test_a_limit_on_the_size_of_files_is_named(limit: int) -> None:
    """It holds for shared memory: for the payload in the trainer, and for a batch in a worker."""
    hint = run(sys.executable, "-c", SCRIPT, "RLIMIT_FSIZE", str(limit))

    assert "`ulimit -f unlimited`" in hint
    assert f"{limit} bytes" in hint
    assert "ulimit -n" not in hint


# The limit on processes does not hold for root. Another user may not be able to read the interpreter: hence the rights.
RIGHTS = "-all,+dac_override,+dac_read_search"
OTHER_USER = [
    "setpriv",
    "--reuid=54321",
    f"--inh-caps={RIGHTS}",
    f"--ambient-caps={RIGHTS}",
    f"--bounding-set={RIGHTS}",
]


def can_be_another_user() -> bool:
    if os.getuid() or not shutil.which("setpriv"):
        return False
    done = subprocess.run([*OTHER_USER, sys.executable, "-c", "import numpy"], capture_output=True, check=False)
    return done.returncode == 0


@pytest.mark.parametrize("limit", [1, 4, 5, 6, 7])
def test_a_limit_on_processes_is_named(limit: int) -> None:
    """Whether a thread, the fork server, a branch of it or a worker is the one too many."""
    if not can_be_another_user():
        pytest.skip("needs root and setpriv, to run as a user that the limit holds for")
    hint = run(*OTHER_USER, sys.executable, "-c", SCRIPT, "RLIMIT_NPROC", str(limit))

    assert f"`ulimit -u`, which is {limit}" in hint
    assert "pids limit" in hint
    assert "ulimit -n" not in hint


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EMFILE, "`ulimit -n 4096`"),
        (errno.ENFILE, "`ulimit -n 4096`"),
        (errno.EAGAIN, "`ulimit -u`"),
        (errno.EFBIG, "`ulimit -f unlimited`"),
        (errno.ENOMEM, "free memory"),
        (errno.ENOSPC, "free space"),
        (errno.EDQUOT, "free space"),
    ],
)
def test_each_limit_has_its_own_hint(number: int, words: str) -> None:
    """One that is right for it, and no other."""
    hint = limit_hint(OSError(number, "x"))

    assert words in hint
    assert sum(f"ulimit -{letter}" in hint for letter in "nuf") <= 1


def test_other_errors_have_none() -> None:
    """A hint that is wrong is worse than none."""
    assert limit_hint(OSError(errno.ENOENT, "x")) == limit_hint(OSError("x")) == ""


def test_a_limit_is_shown_as_it_is() -> None:
    """Also if there is none."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert (str(soft) if soft != resource.RLIM_INFINITY else "not set") in limit_hint(OSError(errno.EMFILE, "x"))
