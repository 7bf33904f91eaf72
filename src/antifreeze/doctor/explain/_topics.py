"""The sections of the troubleshooting page, by the name that errors, warnings and the doctor print.

The page ships with the package: ``troubleshooting.md`` beside this module is a symbolic link to the page of the
documentation, and the build puts the page itself into sdist and wheel. So there is one page, and the text that a user
reads always belongs to the version that printed the name.
"""

from __future__ import annotations

import enum
import importlib.resources
import re
from dataclasses import dataclass

PAGE = "troubleshooting.md"

_SECTION = re.compile(r"^(?P<level>##|###) (?P<title>.+)\n", re.MULTILINE)
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_CODE_ROW = re.compile(r"^\| `(?P<name>[a-z0-9-]+)` \| (?P<meaning>.+?) \| (?P<action>.*?) \|$", re.MULTILINE)


class Kind(enum.Enum):
    """What a topic explains. The value is the heading of its group in the list of topics."""

    CAUSE = "causes of a stall or a lost worker"
    ERROR = "errors"
    CHECK = "findings of `antifreeze doctor check`"
    SYMPTOM = "symptoms"


_GROUPS = {
    "By what you see": Kind.SYMPTOM,
    "By the warning": Kind.SYMPTOM,
    "By the error": Kind.ERROR,
    "Causes": Kind.CAUSE,
    "Other errors": Kind.ERROR,
    "What `doctor check` finds": Kind.CHECK,
}
"""The sections of the page, by their headings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """One name that can be explained."""

    name: str
    title: str
    """The heading of the section, without Markdown."""
    kind: Kind
    text: str
    """The section, as Markdown, without its heading."""

    @property
    def summary(self) -> str:
        """The first sentence of the section, for the list of topics."""
        if self.kind is Kind.SYMPTOM:
            return self.title
        paragraph = " ".join(self.text.strip().split("\n\n")[0].split())
        return re.split(r"(?<=[.:]) ", paragraph)[0].rstrip(":")


def read_topics() -> dict[str, Topic]:
    """Return all topics of the installed page, by name, in the order of the page."""
    page = importlib.resources.files(__package__).joinpath(PAGE).read_text(encoding="utf-8")
    topics: dict[str, Topic] = {}
    kind = Kind.SYMPTOM
    for level, title, text in _sections(page):
        if level == "##":
            kind = _GROUPS[title]
        if level == "###" or kind is Kind.CHECK or title == "By the warning":
            name = title.strip("`") if re.fullmatch(r"`[\w-]+`", title) else slug_of(title)
            topics[name] = Topic(name=name, title=title.replace("`", ""), kind=kind, text=_for_users(text))
        if kind is Kind.CHECK:
            for row in _CODE_ROW.finditer(text):
                words = f"{row['meaning']}\n\n**Fix.** {row['action']}"
                topics[row["name"]] = Topic(name=row["name"], title=row["name"], kind=kind, text=words)
    return topics


def _for_users(text: str) -> str:
    """Return a section without the names of the tests behind it: tests are not installed."""
    return re.sub(r"^\*\*Test\.\*\*.*?(?:\n\n|\Z)", "", text.strip(), flags=re.MULTILINE | re.DOTALL).strip()


def slug_of(title: str) -> str:
    """Return the anchor of a heading, by the rules of the sites that show the page."""
    return re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-")


def _sections(page: str) -> list[tuple[str, str, str]]:
    """Return (level, title, text) of each section. A heading inside a code block is none."""
    masked = _FENCE.sub(lambda block: re.sub(r"[^\n]", " ", block[0]), page)
    heads = list(_SECTION.finditer(masked))
    ends = [head.start() for head in heads[1:]] + [len(page)]
    return [(head["level"], head["title"], page[head.end() : end]) for head, end in zip(heads, ends, strict=True)]
