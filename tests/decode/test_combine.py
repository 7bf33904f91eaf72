"""Several sources of blocks as one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from antifreeze.decode._combine import one_after_the_other, side_by_side


class Source:
    """Two empty blocks, each of which takes a second to decode."""

    def __init__(self) -> None:
        self._made = 0

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        if self._made == 2:
            raise StopIteration
        self._made += 1
        return SimpleNamespace(num_rows=0)

    def spent(self) -> dict[str, float]:
        return {"decode": float(self._made)}

    def close(self) -> None:
        pass


def test_what_was_spent_by_sources_that_have_ended_counts() -> None:
    """Each is dropped when the next one begins."""
    blocks = one_after_the_other(iter([Source, Source]))
    seconds = [blocks.spent().get("decode", 0.0) for _ in blocks]

    assert seconds == [1.0, 2.0, 3.0, 4.0]
    assert blocks.spent() == {"decode": 4.0}


def test_what_is_spent_by_sources_at_the_same_time_adds_up() -> None:
    sources: list[Any] = [Source(), Source()]
    blocks = side_by_side(sources)
    assert list(blocks) == []

    assert blocks.spent() == {"decode": sum(source.spent()["decode"] for source in sources)}
