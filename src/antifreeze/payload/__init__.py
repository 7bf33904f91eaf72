"""What a worker is started with: dataset, functions and settings, pickled once."""

from antifreeze.payload._gather_settings import gather_settings
from antifreeze.payload._inspection import attributes, class_members, module_members, slots
from antifreeze.payload._layout import PayloadLayout, bytes_at
from antifreeze.payload._loggers import set_logs
from antifreeze.payload._modules import own_sources
from antifreeze.payload._patches import Patch, original
from antifreeze.payload._payload import Payload, make_payload
from antifreeze.payload._pickler import dump_replacement, registered
from antifreeze.payload._process_local import received_handles, shared_handles
from antifreeze.payload._reopen import has_deferred, loading_for_forks, reopened_fds, run_reopeners
from antifreeze.payload._replacements import find_replacements, packed
from antifreeze.payload._settings import Settings, is_data, take_over
from antifreeze.payload._shared_list import SentList, SharedList, buffers_of, encode, with_buffers
from antifreeze.payload._when_imported import when_imported

__all__ = [
    "Patch",
    "Payload",
    "PayloadLayout",
    "SentList",
    "Settings",
    "SharedList",
    "attributes",
    "buffers_of",
    "bytes_at",
    "class_members",
    "dump_replacement",
    "encode",
    "find_replacements",
    "gather_settings",
    "has_deferred",
    "is_data",
    "loading_for_forks",
    "make_payload",
    "module_members",
    "original",
    "own_sources",
    "packed",
    "received_handles",
    "registered",
    "reopened_fds",
    "run_reopeners",
    "set_logs",
    "shared_handles",
    "slots",
    "take_over",
    "when_imported",
    "with_buffers",
]
