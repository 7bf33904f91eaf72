"""Log lines are cleaned where they are made: every argument of a message is a fact, and is rendered as one line."""

from __future__ import annotations

import logging

from antifreeze.core._errors import AntifreezeError
from antifreeze.core._text import Lines, clean_block, one_line

_MAX_ARGUMENT_CHARS = 2_000


class CleanArguments(logging.Filter):
    """Cleans the arguments of log records; the template is ours, and its line breaks stay.

    An argument of type ``Lines`` has been cleaned line by line. Numbers are left as they are, for ``%d`` needs them.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Rewrite the record's arguments and its traceback; every record passes."""
        if isinstance(record.args, tuple):
            record.args = tuple(map(_clean, record.args))
        if record.exc_info and not record.exc_text:
            record.exc_text = clean_block(_FORMATTER.formatException(record.exc_info))
            # A handler that keeps records must not keep frames alive, and with them a dataset and its processes.
            record.exc_info = None
        return True


_FORMATTER = logging.Formatter()


def _clean(argument: object) -> object:
    if isinstance(argument, bool | int | float | Lines | None):
        return argument
    if isinstance(argument, AntifreezeError):  # its text was cleaned line by line
        return Lines(argument)
    return one_line(argument, _MAX_ARGUMENT_CHARS)


def get_logger() -> logging.Logger:
    """Return the logger of the package, which cleans what it is given."""
    logger = logging.getLogger("antifreeze")
    if not any(isinstance(each, CleanArguments) for each in logger.filters):
        logger.addFilter(CleanArguments())
    return logger
