"""The command ``antifreeze explain [NAME]``: what a cause, an error or a finding means, and what to do about it."""

from __future__ import annotations

import argparse
import sys
import textwrap
from dataclasses import replace
from typing import Any

from antifreeze.core import one_line
from antifreeze.doctor._terminal import Paper, closest, paper_of
from antifreeze.doctor.check import MACHINE_RULES, SCRIPT_RULES, Rule
from antifreeze.doctor.explain._render_markdown import as_text
from antifreeze.doctor.explain._topics import Kind, Topic, read_topics

EXPLAINED, UNKNOWN = 0, 2
"""The exit codes."""
_INDENT = 6


def main(arguments: list[str]) -> int:
    """Run the command and return its exit code."""
    name = _parser().parse_args(arguments).name
    topics = read_topics()
    paper = paper_of(sys.stdout)
    if name is None:
        print(_list(topics, paper), end="")
        return EXPLAINED
    topic = _find(name, topics)
    if topic is None:
        return _refuse(name, topics)
    print("\n".join(_section(part, paper) for part in (topic, *_behind(topic, topics))), end="")
    return EXPLAINED


def _section(topic: Topic, paper: Paper) -> str:
    title = "".join(f"{paper.bold(line)}\n" for line in textwrap.wrap(topic.title, paper.width))
    return f"{title}\n{as_text(topic.text, paper)}"


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
    summary = as_text(topic.summary, replace(paper, width=paper.width - _INDENT)).strip()
    return f"  {topic.name}\n{textwrap.indent(summary, ' ' * _INDENT)}\n"


def _refuse(name: str, topics: dict[str, Topic]) -> int:
    shown = one_line(name)
    print(f"antifreeze: error: unknown name {shown!r}: expected a cause, an error or a finding", file=sys.stderr)
    meant = closest(_key(name), [_key(known) for known in topics])
    known = next((known for known in topics if _key(known) == meant), "")
    hint = f"did you mean `antifreeze explain {known}`?" if known else "`antifreeze explain` lists all names"
    print(f"hint: {hint}", file=sys.stderr)
    return UNKNOWN


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="antifreeze explain",
        description="Explain a cause, an error or a finding of `antifreeze doctor check`: symptom, mechanism and fix.",
        epilog="Exit codes: 0 explained, 2 unknown name or wrong usage.",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="for example `fork` or `WorkerDied`; none: list all")
    return parser
