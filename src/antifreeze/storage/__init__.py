"""Where bytes come from: files by name, and the manifest of a dataset."""

from antifreeze.storage._listing import Listing, check_file, check_unchanged, fingerprint, list_files
from antifreeze.storage._manifest_file import MANIFEST_NAME, read_manifest, write_manifest

__all__ = [
    "Listing",
    "MANIFEST_NAME",
    "check_file",
    "check_unchanged",
    "fingerprint",
    "list_files",
    "read_manifest",
    "write_manifest",
]
