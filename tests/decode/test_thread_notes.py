"""What a decoder thread writes down tells where its time goes: to the disk, or to decoding."""

from __future__ import annotations

import pytest

from antifreeze.decode import _thread_progress as board_module
from antifreeze.decode._thread_progress import WAIT, ThreadProgress, spent


class Machine:
    """A clock and a processor that a test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self.cpu_s, self.blocks = 100.0, 0.0, 0
        monkeypatch.setattr(board_module.time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(board_module, "_used_so_far", lambda: (self.cpu_s, self.blocks))

    def work(self, *, compute_s: float = 0.0, wait_s: float = 0.0, blocks: int = 0) -> None:
        self.now_s += compute_s + wait_s
        self.cpu_s += compute_s
        self.blocks += blocks


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_waiting_for_the_disk_is_reading_and_computing_is_decoding(machine: Machine) -> None:
    """Between two notes both may have happened."""
    note = ThreadProgress("a thread")
    for stage in ("open", "decode", "convert"):
        note.at(stage)
        machine.work(compute_s=2.0, wait_s=0.05, blocks=8)
    note.at(WAIT)

    assert spent([note]) == {"read": pytest.approx(0.15), "decode": pytest.approx(6.0)}


def test_a_short_wait_without_a_block_is_for_a_core_or_for_the_interpreter(machine: Machine) -> None:
    """A long one is for a file system that counts no blocks."""
    note = ThreadProgress("a thread")
    note.at("decode")
    machine.work(compute_s=1.0, wait_s=0.05)
    note.at("decode")
    machine.work(compute_s=1.0, wait_s=3.0)
    note.at(WAIT)

    assert spent([note]) == {"read": pytest.approx(3.0), "decode": pytest.approx(2.0)}


def test_waiting_for_room_is_neither(machine: Machine) -> None:
    """It is the training loop that takes its time."""
    note = ThreadProgress("a thread")
    machine.work(compute_s=1.0)
    note.at(WAIT)
    machine.work(wait_s=50.0, blocks=8)
    note.at("decode")

    assert spent([note]) == {"read": 0.0, "decode": 0.0}
