"""Markdown as text for a terminal: wrapped paragraphs, lists and code blocks, and tables as lists.

It knows what the troubleshooting page uses, and no more. A table of long messages does not fit a terminal, so each of
its rows becomes an item. A link keeps its text only: its page may not be installed.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

from antifreeze.doctor._terminal import Paper

_LINK = re.compile(r"\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\([^)\s]+\)")
_BOLD = re.compile(r"\*\*(?P<text>[^*]+)\*\*")
_ITEM = re.compile(r"^- ", re.MULTILINE)


def as_text(markdown: str, paper: Paper) -> str:
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
