"""The file that records every skipped sample, one line of JSON each.

Training continues whatever happens to the file: a path that cannot be written raises when the loader is created, and
later problems (a full disk, a removed directory) are reported once.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from antifreeze.core import ConfigError, get_logger, one_line, open_to_append, write_all
from antifreeze.diagnosis._report import Skip

logger = get_logger()

_MAX_REASON_CHARS = 4_000


class SkipLog:
    """Appends to a file owned by this user; several ranks may write to the same file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Create the file if it does not exist.

        Raises:
            ConfigError: the file cannot be written: missing directory, symbolic link, pipe, other owner, full disk.
        """
        # Absolute, because the working directory may have changed by the time the first sample fails.
        self.path = Path(path).absolute()
        self._has_failed = False
        self._is_torn = False
        try:
            os.close(open_to_append(self.path))
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            hint = "pass the path of a file in an existing, writable directory"
            raise ConfigError(
                f"cannot write skip_log {str(path)!r}: {reason}", hint=hint, argument="skip_log"
            ) from error

    def add(self, skip: Skip) -> None:
        """Append a line. Never raises because of the file."""
        sample, reason = one_line(skip.sample), one_line(skip.reason, _MAX_REASON_CHARS)
        values = {"sample": sample, "reason": reason, "epoch": skip.epoch, "step": skip.step}
        try:
            handle = open_to_append(self.path)
            try:
                # A full disk may have taken part of a line, which the next line must not continue.
                start = "\n" if self._is_torn else ""
                self._is_torn = True
                write_all(handle, f"{start}{json.dumps(values)}\n".encode())
                self._is_torn = False
            finally:
                os.close(handle)
        except OSError as error:
            self._warn(error.strerror or str(error))

    def _warn(self, reason: str) -> None:
        if not self._has_failed:
            self._has_failed = True
            logger.warning(
                "antifreeze: cannot log skipped samples to %s: %s; training continues, and report() still counts them",
                self.path,
                reason,
            )


def open_skip_log(path: str | os.PathLike[str] | None) -> SkipLog | None:
    """Return the log for the argument ``skip_log``, or None if it is None."""
    return None if path is None else SkipLog(path)
