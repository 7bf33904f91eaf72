"""The text that ``faulthandler`` writes, read back as frames."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from antifreeze.core import natural, one_line

_HEAD = re.compile(r"(?:Current thread|Thread|Stack)\b.*\(most recent call first\):")
_FRAME = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)')
# A process may run another interpreter than we do, with another standard library and another antifreeze.
_STANDARD = re.compile(
    rf"{re.escape(str(Path(os.__file__).parent))}[/\\\\]|<frozen |.*[/\\\\]lib[/\\\\]python3\.\d+t?[/\\\\]"
)
_OURS = re.compile(
    rf"{re.escape(str(Path(__file__).parents[1]))}[/\\\\]|.*[/\\\\](?:site|dist)-packages[/\\\\]antifreeze[/\\\\]"
)
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]")
_TORCH = re.compile(r"[/\\](?:site|dist)-packages[/\\]torch[/\\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One line of Python in the stack of a thread."""

    file: str
    line: int
    """0 where it is not known."""
    function: str

    def __str__(self) -> str:
        return one_line(f"{self.file}:{self.line} in {self.function}")


def parse_stack(text: str) -> tuple[Frame, ...]:
    """Return the frames of the main thread, innermost first.

    The interpreter puts new threads in front of its list, so the main thread comes last.
    """
    threads: list[list[Frame]] = [[]]
    for line in text.splitlines():
        if _HEAD.match(line):
            threads.append([])
        elif match := _FRAME.match(line):
            number = natural(match[2]) or 0
            threads[-1].append(Frame(file=match[1], line=number, function=match[3]))
    return tuple(next((frames for frames in reversed(threads) if frames), []))


def is_standard(frame: Frame) -> bool:
    """True if it belongs to Python itself."""
    return bool(_STANDARD.match(frame.file)) and not _INSTALLED.search(frame.file)


def is_ours(frame: Frame) -> bool:
    """True if it belongs to antifreeze."""
    return bool(_OURS.match(frame.file))


def is_user(frame: Frame) -> bool:
    """True if it is the user's: not Python's, not of an installed package, not ours."""
    return not (is_standard(frame) or is_ours(frame) or _INSTALLED.search(frame.file))


def user_frames(frames: tuple[Frame, ...], most: int = 3) -> tuple[Frame, ...]:
    """Return the innermost frames that say most to the user: the user's own, or else the innermost one."""
    mine = tuple(frame for frame in frames if is_user(frame))
    if mine:
        return mine[:most]
    # A dataset that was installed as a package is the user's, too; torch and antifreeze only call it.
    theirs = [f for f in frames if not is_standard(f) and not is_ours(f) and not _TORCH.search(f.file)]
    return tuple(theirs[:1]) or frames[:1]


def called_by_user(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """Return the frames of libraries that the user's innermost line has called, innermost first."""
    first = next((i for i, frame in enumerate(frames) if is_user(frame)), len(frames))
    return frames[:first]
