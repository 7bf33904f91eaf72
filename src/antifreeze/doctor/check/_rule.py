"""What a rule is: a stable code, why it matters, and a check that yields violations."""

from __future__ import annotations

import ast
import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from antifreeze.doctor.check._facts import Facts
from antifreeze.doctor.check._loaders import DatasetClass, Loader
from antifreeze.doctor.check._script import Script


class Weight(enum.IntEnum):
    """How bad a finding is. Smaller values are shown first."""

    FREEZE = 0
    """The loader can freeze, or deliver wrong data without an error."""
    ERROR = 1
    """The job fails, often with an error that names something else."""
    WASTE = 2
    """The job works, and costs time or memory."""

    @property
    def consequence(self) -> str:
        """What to expect, for a person."""
        return ("can freeze or give wrong data", "will fail", "costs time or memory")[self]


@dataclass(frozen=True, slots=True)
class ScriptContext:
    """What the rules about scripts see."""

    script: Script
    facts: Facts
    loaders: list[Loader]
    datasets: list[DatasetClass]

    def datasets_of(self, loader: Loader) -> Iterator[DatasetClass]:
        """Yield the dataset classes that a loader reads."""
        return (dataset for dataset in self.datasets if loader in dataset.loaders)

    @property
    def forking_loaders(self) -> Iterator[Loader]:
        """The loaders whose workers are forked from the trainer."""
        return (loader for loader in self.loaders if loader.has_workers and loader.can_fork)

    @property
    def pickling_loaders(self) -> Iterator[Loader]:
        """The loaders whose workers are new interpreters."""
        return (loader for loader in self.loaders if loader.has_workers and loader.can_spawn)


@dataclass(frozen=True, slots=True)
class MachineContext:
    """What the rules about the machine see."""

    facts: Facts
    loaders: list[Loader] | None
    """The loaders of torch with workers that will run here; None: unknown, so the usual needs count."""


class Violation(NamedTuple):
    """One place that breaks a rule."""

    node: ast.AST | None
    """None: it is about the machine."""
    problem: str
    """What is wrong here, in one sentence. The rule's explanation follows it."""
    change: str
    """What to do: lines of a diff or of code, or a sentence."""


ContextT = TypeVar("ContextT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule(Generic[ContextT]):
    """One rule. Codes are public and never change their meaning."""

    code: str
    weight: Weight
    section: str
    """The section of the troubleshooting page that covers it."""
    explanation: str
    """Why it matters; printed after the problem."""
    check: Callable[[ContextT], Iterator[Violation]]

    def findings(self, context: ContextT, file: str = "") -> Iterator[CheckFinding]:
        """Yield what the check finds."""
        for node, problem, change in self.check(context):
            yield CheckFinding(
                rule=self,
                reason=f"{problem} {self.explanation}".strip(),
                change=change,
                file=file,
                line=getattr(node, "lineno", 0),
                column=getattr(node, "col_offset", -1) + 1,
            )


def rule(
    code: str, weight: Weight, explanation: str, section: str = "what-doctor-check-finds"
) -> Callable[[Callable[[ContextT], Iterator[Violation]]], Rule[ContextT]]:
    """Return a decorator that makes a rule of a check. It registers nothing."""

    def make(check: Callable[[ContextT], Iterator[Violation]]) -> Rule[ContextT]:
        return Rule(code=code, weight=weight, section=section, explanation=explanation, check=check)

    return make


ScriptRule = Rule[ScriptContext]
MachineRule = Rule[MachineContext]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckFinding:
    """One violation of a rule, ready to be rendered. Without a file it is about the machine."""

    rule: Rule[Any]
    reason: str
    change: str
    file: str = ""
    line: int = 0
    column: int = 0
    """Counted from 1, as editors do."""

    @property
    def code(self) -> str:
        """The code of the rule."""
        return self.rule.code

    @property
    def link(self) -> str:
        """The command that explains the rule."""
        return f"antifreeze explain {self.code}"

    @property
    def place(self) -> str:
        """The file with line and column, which editors and terminals can jump to."""
        return f"{self.file}:{self.line}:{self.column}" if self.file else "this machine"


def by_weight(findings: list[CheckFinding]) -> list[CheckFinding]:
    """Return each finding once, the most important first."""
    order = sorted(findings, key=lambda f: (f.rule.weight, f.file, f.line, f.column, f.code))
    return list(dict.fromkeys(order))
