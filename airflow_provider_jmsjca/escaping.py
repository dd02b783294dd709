"""Text that others wrote, made fit for logs, terminals and comments."""

from __future__ import annotations

import json
from collections.abc import Callable


def escaped(text: object) -> str:
    r"""Return text in which every character that isn't printable is shown as an escape of Python.

    So one text stays one line, and steers no terminal: line feeds, control characters (C0, DEL, C1), line and
    paragraph separators, characters that change the direction of writing, invisible ones and halves of
    surrogate pairs become `\n`, `\x9b`, `\u2028`, `\u202e` and the like. Backslashes stay as they are.

    Args:
        text: The text; of any other object its `str`.
    """
    return _replaced(str(text), _python)


def escaped_lines(text: str) -> str:
    """Return text of several lines with each line escaped; only line feeds end lines."""
    return "\n".join(escaped(line) for line in text.split("\n"))


def escaped_json(document: str) -> str:
    """Return a JSON document with the characters escaped in its texts that `escaped` escapes.

    Args:
        document: A result of `json.dumps`; characters between its strings are printable or line feeds.
    """
    return "\n".join(_replaced(line, _json) for line in document.split("\n"))


def _replaced(text: str, escape: Callable[[str], str]) -> str:
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else escape(each) for each in text)


def _python(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def _json(character: str) -> str:
    return json.dumps(character)[1:-1]
