"""The command ``antifreeze explain [NAME]``: what a cause, an error or a finding means, and what to do about it.

It prints a section of the troubleshooting page. The page ships with the package: ``troubleshooting.md`` beside this
module is a symbolic link to the page of the documentation, and the build puts the page itself into sdist and wheel. So
there is one page, and the text that a user reads always belongs to the version that printed the name.

Of Markdown it knows what the page uses, and no more. A table of long messages does not fit a terminal, so each of its
rows becomes an item. A link keeps its text only: its page may not be installed.
"""

from __future__ import annotations

import argparse
import enum
import importlib.resources
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from antifreeze.core import one_line
from antifreeze.doctor._terminal import Paper, closest, paper_of
from antifreeze.doctor.check import MACHINE_RULES, SCRIPT_RULES, Rule

EXPLAINED, UNKNOWN = 0, 2
"""The exit codes."""
_INDENT = 6
_PAGE = "troubleshooting.md"
_SECTION = re.compile(r"^(?P<level>##|###) (?P<title>.+)\n", re.MULTILINE)
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_CODE_ROW = re.compile(r"^\| `(?P<name>[a-z0-9-]+)` \| (?P<meaning>.+?) \| (?P<action>.*?) \|$", re.MULTILINE)
_TESTS = re.compile(r"^\*\*Test\.\*\*.*?(?:\n\n|\Z)", re.MULTILINE | re.DOTALL)
"""The names of the tests behind a section: tests are not installed."""
_LINK = re.compile(r"\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\([^)\s]+\)")
_BOLD = re.compile(r"\*\*(?P<text>[^*]+)\*\*")
_ITEM = re.compile(r"^- ", re.MULTILINE)


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


def read_topics() -> dict[str, Topic]:
    """Return all topics of the installed page, by name, in the order of the page."""
    page = importlib.resources.files(__package__).joinpath(_PAGE).read_text(encoding="utf-8")
    topics: dict[str, Topic] = {}
    kind = Kind.SYMPTOM
    for level, title, text in _sections(page):
        if level == "##":
            kind = _GROUPS[title]
        if level == "###" or kind is Kind.CHECK or title == "By the warning":
            name = title.strip("`") if re.fullmatch(r"`[\w-]+`", title) else _slug_of(title)
            topics[name] = Topic(
                name=name, title=title.replace("`", ""), kind=kind, text=_TESTS.sub("", text.strip()).strip()
            )
        if kind is Kind.CHECK:
            for row in _CODE_ROW.finditer(text):
                words = f"{row['meaning']}\n\n**Fix.** {row['action']}"
                topics[row["name"]] = Topic(name=row["name"], title=row["name"], kind=kind, text=words)
    return topics


def _slug_of(title: str) -> str:
    """Return the anchor of a heading, by the rules of the sites that show the page."""
    return re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-")


def _sections(page: str) -> list[tuple[str, str, str]]:
    """Return (level, title, text) of each section. A heading inside a code block is none."""
    masked = _FENCE.sub(lambda block: re.sub(r"[^\n]", " ", block[0]), page)
    heads = list(_SECTION.finditer(masked))
    ends = [head.start() for head in heads[1:]] + [len(page)]
    return [(head["level"], head["title"], page[head.end() : end]) for head, end in zip(heads, ends, strict=True)]


def main(arguments: list[str]) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="antifreeze explain",
        description="Explain a cause, an error or a finding of `antifreeze doctor check`: symptom, mechanism and fix.",
        epilog="Exit codes: 0 explained, 2 unknown name or wrong usage.",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="for example `fork` or `WorkerDied`; none: list all")
    name = parser.parse_args(arguments).name
    topics = read_topics()
    paper = paper_of(sys.stdout)
    if name is None:
        print(_list(topics, paper), end="")
        return EXPLAINED
    topic = _find(name, topics)
    if topic is None:
        return _refuse(name, topics)
    sections = []
    for part in (topic, *_behind(topic, topics)):
        title = "".join(f"{paper.bold(line)}\n" for line in textwrap.wrap(part.title, paper.width))
        sections.append(f"{title}\n{_laid_out(part.text, paper)}")
    print("\n".join(sections), end="")
    return EXPLAINED


def _find(name: str, topics: dict[str, Topic]) -> Topic | None:
    """Return the topic of a name; upper and lower case are the same, and so are ``_``, a space and ``-``."""
    by_key = {_key(known): topic for known, topic in topics.items()}
    return by_key.get(_key(name))


def _key(name: str) -> str:
    return name.strip().strip("`").lower().replace("_", "-").replace(" ", "-")


def _behind(topic: Topic, topics: dict[str, Topic]) -> list[Topic]:
    """Return the section that explains more about a finding of ``doctor check``, if there is one."""
    rules: list[Rule[Any]] = [*SCRIPT_RULES, *MACHINE_RULES]
    sections = {rule.code: rule.section for rule in rules}
    other = _find(sections.get(topic.name, ""), topics)
    return [other] if other is not None and other.kind is not Kind.CHECK else []


def _list(topics: dict[str, Topic], paper: Paper) -> str:
    """Return all names with a summary, by kind."""
    parts = []
    for kind in Kind:
        members = [topic for topic in topics.values() if topic.kind is kind]
        rows = "".join(_entry(topic, paper) for topic in members)
        parts.append(f"{paper.bold(kind.value)}\n{rows}")
    return "\n".join([*parts, "Use `antifreeze explain NAME` for the whole section.\n"])


def _entry(topic: Topic, paper: Paper) -> str:
    if topic.kind is Kind.SYMPTOM:
        return f"  {topic.name}\n"
    paragraph = " ".join(topic.text.strip().split("\n\n")[0].split())
    first = re.split(r"(?<=[.:]) ", paragraph)[0].rstrip(":")
    summary = _laid_out(first, replace(paper, width=paper.width - _INDENT)).strip()
    return f"  {topic.name}\n{textwrap.indent(summary, ' ' * _INDENT)}\n"


def _refuse(name: str, topics: dict[str, Topic]) -> int:
    shown = one_line(name)
    print(f"antifreeze: error: unknown name {shown!r}: expected a cause, an error or a finding", file=sys.stderr)
    meant = closest(_key(name), [_key(known) for known in topics])
    known = next((known for known in topics if _key(known) == meant), "")
    hint = f"did you mean `antifreeze explain {known}`?" if known else "`antifreeze explain` lists all names"
    print(f"hint: {hint}", file=sys.stderr)
    return UNKNOWN


def _laid_out(markdown: str, paper: Paper) -> str:
    """Return Markdown laid out to the width of the paper, with a line break at its end."""
    return "\n".join(_layout(block, paper) for block in _blocks(markdown))


def _blocks(markdown: str) -> Iterator[str]:
    """Yield code blocks whole, and what is between blank lines elsewhere."""
    for part in re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL):
        if part.startswith("```"):
            yield part
        else:
            yield from (block.strip("\n") for block in re.split(r"\n\s*\n", part) if block.strip())


def _layout(block: str, paper: Paper) -> str:
    if block.startswith("```"):
        # Lines of code are left as they are: a diff that was wrapped cannot be applied.
        return "".join(f"    {line}".rstrip() + "\n" for line in block.splitlines()[1:-1])
    if block.startswith("|"):
        return "\n".join(_row(row, paper) for row in block.splitlines()[2:])
    if block.startswith("- "):
        return "".join(_wrap(item, paper, "- ", "  ") for item in _ITEM.split(block) if item)
    return _wrap(block, paper)


def _row(row: str, paper: Paper) -> str:
    """Return a row as an item: its first cell, and the others indented below."""
    first, *others = [cell.strip() for cell in re.split(r"(?<!\\)\|", row.strip().strip("|"))]
    return _wrap(first, paper, "- ", "  ") + "".join(_wrap(cell, paper, "  ", "  ") for cell in others if cell)


def _wrap(text: str, paper: Paper, first: str = "", others: str = "") -> str:
    plain = _BOLD.sub(r"\g<text>", _LINK.sub(r"\g<text>", " ".join(text.split())))
    wrapper = textwrap.TextWrapper(paper.width, first, others, break_long_words=False, break_on_hyphens=False)
    filled = wrapper.fill(plain) + "\n"
    # A bold word that starts a paragraph is its label. Colour comes last: escape sequences have no width.
    label = re.match(r"\*\*([^* ]+)\*\*", text)
    return filled.replace(label[1], paper.bold(label[1]), 1) if label else filled
