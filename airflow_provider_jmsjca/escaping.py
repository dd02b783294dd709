"""Escapes text from producers and brokers for logs, terminals and comments."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable


def escaped(text: object) -> str:
    r"""Return text with every unprintable character as a Python escape.

    The result is one line and can't control a terminal. Line feeds, control characters (C0, DEL, C1) and line
    separators become `\n`, `\x9b`, `\u2028` and the like. So do characters that change the direction of
    writing, invisible characters and lone surrogates. Backslashes stay unchanged.

    Args:
        text: The text, or an object whose `str` is escaped.
    """
    shown = str(text)
    return shown if shown.isprintable() else _replaced(shown, _python)


def escaped_lines(text: str) -> str:
    """Escape each line of a text; only line feeds separate lines."""
    return "\n".join(map(escaped, text.split("\n")))


def escaped_json(document: str) -> str:
    """Escape a JSON document: its strings get JSON escapes for the characters that `escaped` escapes.

    Args:
        document: A result of `json.dumps`; outside of strings, its characters are printable or line feeds.
    """
    return "\n".join(_replaced(line, _json) for line in document.split("\n"))


def shell_arguments(*words: str) -> str:
    """Return words quoted for a shell, as the last arguments of a command.

    If a word begins with a dash, `--` precedes all words. So the command reads none of them as an option.
    """
    return shlex.join([*(["--"] if any(each.startswith("-") for each in words) else []), *words])


def _replaced(text: str, escape: Callable[[str], str]) -> str:
    return "".join(each if each.isprintable() else escape(each) for each in text)


def _python(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def _json(character: str) -> str:
    return json.dumps(character)[1:-1]
