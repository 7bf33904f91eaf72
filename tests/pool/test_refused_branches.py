"""A branch of the fork server that could not be forked costs a restart, never a freeze."""

from __future__ import annotations

import os

import pytest

import antifreeze as af
from antifreeze.ipc import Channel, pair
from antifreeze.pool import _servers
from antifreeze.pool._servers import Server, tokens


def test_a_branch_that_is_gone_before_it_is_told_anything_is_no_freeze(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel refuses to fork it, and its end of the socket is closed at once: workers load for themselves."""

    def branch(self: Server, title: str, process_name: str, streams: list[int]) -> Server:
        ours, theirs = pair()
        theirs.close()
        for fd in streams:
            os.close(fd)
        return Server(title, Channel(ours), token=next(tokens))

    monkeypatch.setattr(_servers.Server, "branch", branch)
    loader = af.DataLoader([[1.5], [2.5], [3.5]], num_workers=1, timeout=60)

    assert [float(batch[0]) for batch in loader] == [1.5, 2.5, 3.5]
