"""What is read of ``/proc``, of real processes and of none."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from antifreeze.core import (
    children_of,
    own_children,
    own_descriptors,
    own_threads,
    pairs_of,
    pid_namespace,
    read_proc_file,
    stat_of,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")


def test_a_child_is_found_by_its_parent() -> None:
    """With its parent, its state, and a start that tells it from others."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        stat = stat_of(child.pid)

        assert child.pid in own_children()
        assert child.pid in list(children_of(os.getpid()))
        assert stat is not None
        assert stat.parent == os.getpid()
        assert stat.state in ("R", "S", "D")
        assert stat.start_ticks > 0


def test_a_process_that_is_gone_has_no_facts(tmp_path: Path) -> None:
    """Nor has any on a system without ``/proc``."""
    assert stat_of(7, proc=tmp_path) is None
    assert list(children_of(7, proc=tmp_path)) == []
    assert read_proc_file(tmp_path / "nothing") == ""


def test_what_this_process_has_is_seen() -> None:
    """Its descriptors, threads and namespace."""
    done = threading.Event()
    thread = threading.Thread(target=done.wait, args=(60,))
    thread.start()
    read, write = os.pipe()
    try:
        assert own_descriptors()[read].startswith("pipe:[")
        assert thread.native_id in own_threads()
        assert pid_namespace() > 0
    finally:
        done.set()
        thread.join(60)
        os.close(read)
        os.close(write)


def test_pairs_of_both_forms_are_read() -> None:
    """``status`` has colons, ``memory.events`` has none."""
    assert pairs_of("State:\tS (sleeping)\noom_kill 3\nalone\n") == {"State": "S (sleeping)", "oom_kill": "3"}
