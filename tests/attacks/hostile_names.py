"""Names that try to steer a terminal, forge a line of a log, or fill it; and a check that they did not."""

from __future__ import annotations

import random
import re

ESCAPES = {
    "colour": "\x1b[31mred\x1b[0m",
    "title": "\x1b]0;owned\x07",
    "clear": "\x1b[2J\x1b[H",
    "link": "\x1b]8;;http://evil\x1b\\x\x1b]8;;\x1b\\",
    "line": "a\n  hint: run `rm -rf /`",
    "log": "a\nERROR antifreeze: the disk is full",
    "return": "safe\rgone",
    "backspace": "ab\x08\x08xy",
    "bell": "\x07",
    "delete": "\x7f",
    "c1": "\x9b31m\x85next",
    "bidi": "\u202egnp.exe\u202c",
    "isolate": "\u2066x\u2069\u200f",
    "separators": "a\u2028b\u2029c",
    "surrogate": "\udcff\ud800",
    "invisible": "a\u200bb\ufeff\u00ad",
    "tags": "a\U000e0041\U000e0042",
    "null": "a\0b",
    "long": "x" * 1_000_000,
    "escapes": "\x1b[1m" * 50_000,
    "lines": "\n" * 100_000,
}
"""Each is a name that another person can choose; most are possible as the name of a file."""
ORDINARY = (
    "größe",
    "数据/列",
    "данные.parquet",
    "😀👩‍🚀",
    "naïve café",
    "a\u00a0b",
    "\u3000全角",
    "שלום",
    "می‌خواهم",
    "x" * 200,
)
_STEERS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\ufff9-\ufffb\U000e0000-\U000e007f]"
)
MAX_CHARS = 60_000


def assert_clean(text: str, *, most: int = MAX_CHARS) -> None:
    """Fail if a text can steer a terminal, or is long, or has a line that only a name can have put there."""
    found = _STEERS.search(text)
    assert found is None, f"{text[found.start() - 40 : found.end() + 40]!r}" if found else ""
    assert len(text) <= most
    forged = [line for line in text.splitlines() if line.startswith(("ERROR antifreeze", "  hint: run `rm"))]
    assert forged == []


def fit_for_files(name: str) -> str:
    """Return a name that a file can have."""
    return name.replace("/", "_").replace("\0", "_").replace("\ud800", "_")[:80]


def generated(seed: int) -> str:
    """Return a hostile name that nobody has thought of."""
    rng = random.Random(seed)  # noqa: S311  the same in every run
    parts = [rng.choice(list(ESCAPES.values())[:18]) for _ in range(rng.randrange(1, 4))]
    parts += [chr(rng.choice([rng.randrange(0x20), rng.randrange(0x7F, 0xA0), rng.randrange(0x2000, 0x2070)]))]
    parts += [chr(rng.randrange(0x110000)) for _ in range(rng.randrange(4))]
    rng.shuffle(parts)
    return "".join(parts)
