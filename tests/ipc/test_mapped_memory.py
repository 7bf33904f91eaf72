"""Anonymous shared memory: mapped without a descriptor, gone with its last view."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antifreeze.ipc import create, map_bytes
from antifreeze.ipc._mapped_memory import lease, rounded


def mapped() -> int:
    gc.collect()
    return Path("/proc/self/maps").read_text().count("antifreeze-test")


def num_fds() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


@pytest.mark.parametrize("nbytes", [0, 1, 4096, 5_000_000])
def test_memory_lives_as_long_as_a_view_of_it(nbytes: int) -> None:
    """And needs no descriptor for it."""
    before, fds = mapped(), num_fds()
    fd = create("antifreeze-test", nbytes)
    memory = map_bytes(fd, nbytes)
    os.close(fd)
    memory[...] = 5
    view = memory.view(np.int8)[nbytes // 2 :]
    del memory

    assert num_fds() == fds
    assert (view == 5).all()
    assert mapped() == before + 1
    del view
    assert mapped() == before


def test_two_mappings_are_the_same_memory_and_a_private_one_is_not() -> None:
    """A private one sees what was there, and keeps what it writes to itself."""
    fd = create("antifreeze-test", 10_000)
    one, two, private = map_bytes(fd, 10_000), map_bytes(fd, 10_000), map_bytes(fd, 10_000, "c")
    os.close(fd)
    one[:] = 1
    assert (two == 1).all()
    assert (private == 1).all()
    private[:] = 2

    assert (one == 1).all()
    assert (two == 1).all()


def test_the_memory_of_a_peer_cannot_be_cut_short() -> None:
    """Who reads behind the end would be killed by SIGBUS."""
    fd = create("antifreeze-test", 10_000)
    for size in (0, 20_000):
        with pytest.raises(PermissionError):
            os.ftruncate(fd, size)
    os.close(fd)


def test_memory_that_cannot_be_had_is_an_error_with_its_size() -> None:
    """Not a crash."""
    fd = create("antifreeze-test", 10)
    with pytest.raises(OSError, match="cannot map"):
        map_bytes(fd, 1 << 62)
    os.close(fd)


def test_a_lease_ends_with_its_last_view() -> None:
    """However the views were made from each other; the memory itself goes on."""
    import weakref

    memory = np.zeros(1000, np.uint8)
    array = lease(memory)
    ended = []
    weakref.finalize(array, ended.append, 1)
    view = array[5:].view(np.uint8).reshape(5, -1).T
    del array
    gc.collect()
    assert not ended
    del view
    gc.collect()
    assert ended


@given(st.integers(0, 1 << 45))
def test_sizes_are_rounded_up_by_a_quarter_at_most(nbytes: int) -> None:
    """So that a batch that is a little larger fits again, and little is wasted."""
    size = rounded(nbytes)

    assert nbytes <= size <= max(nbytes * 1.25 + 1, nbytes + 4096)
    assert size % 4096 == 0 or nbytes < 1
