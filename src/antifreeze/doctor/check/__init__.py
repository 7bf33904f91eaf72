"""Before training: what on this machine and in a script will freeze or waste a loader."""

from antifreeze.doctor.check._check_command import check_machine, check_script
from antifreeze.doctor.check._facts import Facts, read_facts
from antifreeze.doctor.check._loaders import is_loader
from antifreeze.doctor.check._rule import CheckFinding, Rule, Weight, by_weight
from antifreeze.doctor.check._script import CannotCheck, parse
from antifreeze.doctor.check.rules import MACHINE_RULES, SCRIPT_RULES

__all__ = [
    "CannotCheck",
    "CheckFinding",
    "Facts",
    "MACHINE_RULES",
    "Rule",
    "SCRIPT_RULES",
    "Weight",
    "by_weight",
    "check_machine",
    "check_script",
    "is_loader",
    "parse",
    "read_facts",
]
