"""Before training: what on this machine and in a script will freeze or waste a loader."""

from antifreeze.doctor.check._check import check_script
from antifreeze.doctor.check._facts import Facts
from antifreeze.doctor.check._finding import CheckFinding, Code, Weight, by_weight
from antifreeze.doctor.check._loaders import is_loader
from antifreeze.doctor.check._machine import check_machine
from antifreeze.doctor.check._read_facts import read_facts
from antifreeze.doctor.check._script import CannotCheck, parse

__all__ = [
    "CannotCheck",
    "Code",
    "Facts",
    "CheckFinding",
    "Weight",
    "by_weight",
    "check_machine",
    "check_script",
    "is_loader",
    "parse",
    "read_facts",
]
