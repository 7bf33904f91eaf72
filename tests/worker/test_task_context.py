"""Errors of user code on their way to the trainer: which frames are shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from antifreeze.worker import UserError, failure_of


def function_in(module: str) -> Callable[[], Any]:
    """Return a function of a module that calls another one, which fails."""
    names: dict[str, Any] = {"__name__": module}
    exec("def load():\n    return decode()\n\ndef decode():\n    return 1 / 0\n", names)  # noqa: S102
    return names["load"]  # type: ignore[no-any-return]


def traceback_of(module: str) -> str:
    with pytest.raises(ZeroDivisionError) as caught:
        function_in(module)()
    error = caught.value
    error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next  # without this test
    return failure_of(UserError("dataset[0]", error)).traceback


@pytest.mark.parametrize("module", ["data", "my_antifreeze_data", "antifreeze_extras.data", "__main__", ""])
def test_a_frame_of_the_user_is_shown_whatever_its_module_is_called(module: str) -> None:
    """All that user code has called is part of what went wrong."""
    assert "in load" in traceback_of(module)
    assert "in decode" in traceback_of(module)


@pytest.mark.parametrize("module", ["antifreeze", "antifreeze.worker._programs"])
def test_frames_of_ours_that_called_it_are_not_shown(module: str) -> None:
    """The last frame is, whose ever it is."""
    assert "in load" not in traceback_of(module)
    assert "in decode" in traceback_of(module)
