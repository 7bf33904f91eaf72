"""All rules, over one script."""

from __future__ import annotations

from collections.abc import Iterator

from antifreeze.doctor.check import _blocking_waits, _carried, _forks, _loader_settings, _samples
from antifreeze.doctor.check._datasets import find_datasets
from antifreeze.doctor.check._division import divide
from antifreeze.doctor.check._facts import Facts
from antifreeze.doctor.check._finding import CheckFinding
from antifreeze.doctor.check._guard import main_guard
from antifreeze.doctor.check._large_lists import python_lists
from antifreeze.doctor.check._loaders import Loader, find_loaders
from antifreeze.doctor.check._script import CannotCheck, Script, silenced
from antifreeze.doctor.check._shares import duplicates


def check_script(script: Script, text: str, facts: Facts) -> tuple[list[CheckFinding], list[Loader]]:
    """Return what was found in a script, and its loaders. One finding of a kind at a place is enough."""
    loaders = find_loaders(script, facts)
    lines = text.splitlines()
    found: dict[tuple[object, int, int], CheckFinding] = {}
    try:
        for finding in _findings(script, loaders, facts):
            found.setdefault((finding.code, finding.line, finding.column), finding)
    except RecursionError as error:
        raise CannotCheck(f"{script.file}: an expression is nested too deeply") from error
    kept = [f for f in found.values() if not (0 < f.line <= len(lines) and silenced(lines[f.line - 1]))]
    return kept, loaders


def _findings(script: Script, loaders: list[Loader], facts: Facts) -> Iterator[CheckFinding]:
    datasets = find_datasets(script, loaders)
    for dataset in datasets:
        yield from _carried.carried_handles(script, dataset)
        yield from _carried.carried_globals(script, dataset)
        yield from _carried.same_random(script, dataset)
        yield from _carried.not_picklable(script, dataset)
        yield from _samples.none_samples(script, dataset)
        yield from _samples.bad_endings(script, dataset)
        yield from _blocking_waits.endless_retries(script, dataset)
        yield from _blocking_waits.no_timeouts(script, dataset)
        yield from python_lists(script, dataset, facts)
        yield from duplicates(script, dataset)
    code = divide(script, loaders, datasets)
    for loader in loaders:
        yield from _carried.passed_functions(script, loader)
        yield from _forks.libraries_after_fork(script, loader, code)
        yield from _forks.threads_after_fork(script, loader, datasets)
        yield from _forks.cuda_in_workers(script, loader, datasets)
        yield from _forks.tokenizers(script, loader, facts)
        yield from _loader_settings.batch_of_one(script, loader, datasets, facts)
        yield from _loader_settings.needs_workers(script, loader)
        yield from _loader_settings.many_workers(script, loader, facts)
    yield from _forks.sigchld(script, loaders)
    yield from main_guard(script, loaders)
