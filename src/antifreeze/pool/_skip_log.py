"""The file that names every sample that was left out, one line of JSON each.

Whatever happens to the file, training continues: what is wrong with it is raised when the loader is made, and what
goes wrong later (a full disk, a folder that was removed) is reported once.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from antifreeze.core import ConfigError, get_logger, one_line, open_to_append, write_all
from antifreeze.diagnosis import Skip

logger = get_logger()

_MAX_REASON_CHARS = 4_000


class SkipLog:
    """Appends to a file of this user; several ranks may write to the same one."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Create the file if there is none.

        Raises:
            ConfigError: it cannot be written: no such folder, a link, a pipe, another user's file, a full disk.
        """
        # Absolute, for the working directory may be another one when the first sample fails.
        self.path = Path(path).absolute()
        self._has_failed = False
        self._is_torn = False
        try:
            os.close(open_to_append(self.path))
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            hint = "name a file in an existing folder that you can write to"
            raise ConfigError(
                f"skip_log={str(path)!r} cannot be written: {reason}", hint=hint, argument="skip_log"
            ) from error

    def add(self, skip: Skip) -> None:
        """Add a line. Never raises for what is wrong with the file."""
        sample, reason = one_line(skip.sample), one_line(skip.reason, _MAX_REASON_CHARS)
        values = {"sample": sample, "reason": reason, "epoch": skip.epoch, "step": skip.step}
        try:
            handle = open_to_append(self.path)
            try:
                # A disk that is full takes a part of a line, and the next one must not continue it.
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
                "antifreeze: skipped samples cannot be logged to %s: %s; training continues, and report() counts them",
                self.path,
                reason,
            )


def open_skip_log(path: str | os.PathLike[str] | None) -> SkipLog | None:
    """Return the log that an argument ``skip_log`` names, if it names one."""
    return None if path is None else SkipLog(path)
