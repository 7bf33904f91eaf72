"""Which memory is for several processes to write to."""

from __future__ import annotations

import pytest

from antifreeze.ipc._mapped_memory import _Mapping


@pytest.mark.parametrize(
    ("path", "modes", "is_shared"),
    [
        ("/dev/shm/torch_12_34_0 (deleted)", "rw-s", True),  # noqa: S108
        ("/dev/zero (deleted)", "rw-s", True),
        ("/data/flags.bin", "rw-s", True),
        ("/memfd:cache (deleted)", "rw-s", True),
        ("/data/tokens.bin", "r--s", False),
        ("/data/tokens.bin", "rw-p", False),
        ("/memfd:antifreeze-batch (deleted)", "rw-s", False),
        ("/dev/nvidiactl", "rw-s", False),
        ("/dev/dri/renderD128", "rw-s", False),
    ],
)
def test_memory_is_shared_by_how_it_is_mapped_and_what_it_is(path: str, modes: str, is_shared: bool) -> None:
    """A driver's memory, such as a pinned tensor's, belongs to whoever has it, and so does a batch."""
    assert _Mapping(0, 4096, modes, 0, 1, path).is_written_by_others is is_shared
