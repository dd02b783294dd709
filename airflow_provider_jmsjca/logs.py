"""Loggers with records that producers and brokers cannot forge. May import `escaping`."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Mapping
from typing import Any

from airflow_provider_jmsjca.escaping import escaped


def safe_logger(name: str) -> logging.Logger:
    """Return a logger that escapes its records: each is one line without control characters.

    Message ids, destinations and errors contain text from producers and brokers. A line feed in such text
    would start a line that looks like a separate record. A traceback keeps its lines. They are indented, so
    that none of them looks like a record.

    Args:
        name: The logger's name.
    """
    logger = logging.getLogger(name)
    logger.addFilter(_escape)  # a logger has the same filter once, however often it is added
    return logger


class _Escaped:
    """An argument of a record, escaped when the record is formatted."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __str__(self) -> str:
        return escaped(self._value)

    def __repr__(self) -> str:
        return escaped(repr(self._value))


def _escape(record: logging.LogRecord) -> bool:
    record.msg = escaped(record.msg)
    if isinstance(record.args, Mapping):
        record.args = {name: _argument(value) for name, value in record.args.items()}
    elif record.args:
        record.args = tuple(map(_argument, record.args))
    if record.exc_info and record.exc_info[1] is not None and not record.exc_text:
        lines = "".join(traceback.format_exception(record.exc_info[1])).rstrip("\n")
        record.exc_text = "\n  ".join(map(escaped, lines.split("\n")))
    return True


def _argument(value: Any) -> Any:
    """Return an argument of a record, escaped unless it is safe; numbers stay numbers for `%d`."""
    plain = (
        value is None or isinstance(value, int | float) or (isinstance(value, str) and value.isprintable())
    )
    return value if plain else _Escaped(value)
