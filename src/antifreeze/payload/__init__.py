"""What a worker is started with: dataset, functions and settings, pickled once."""

from antifreeze.payload._modules import own_sources, when_imported
from antifreeze.payload._payload import Payload, PayloadLayout, load_payload, make_payload
from antifreeze.payload._pickler import find_patches
from antifreeze.payload._reducers import shared_handles
from antifreeze.payload._reopen import has_deferred, loading_for_forks, reopened_fds, run_reopeners
from antifreeze.payload._replacements import Patch
from antifreeze.payload._settings import Settings, gather_settings, set_logs, take_over

__all__ = [
    "Patch",
    "Payload",
    "PayloadLayout",
    "Settings",
    "find_patches",
    "gather_settings",
    "has_deferred",
    "load_payload",
    "loading_for_forks",
    "make_payload",
    "own_sources",
    "reopened_fds",
    "run_reopeners",
    "set_logs",
    "shared_handles",
    "take_over",
    "when_imported",
]
