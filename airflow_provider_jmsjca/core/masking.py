"""What must never be shown: secret values in reprs, logs and errors."""

from __future__ import annotations

import re
from collections.abc import Iterable

MASK = "***"
_SECRET_WORDS = re.compile(r"pass(?:word|wd|code|phrase)|secret|token|credential|pwd", re.IGNORECASE)
# A password may hold what ends user information in a well-formed URL: libraries take it, so it counts up to
# the last `@` before the next URL. A port that is followed by one is masked too.
_USERINFO = re.compile(r"(?<=//)(?:[^\s/?@:]{0,256}+:(?:(?!://)\S){0,512}@|[^/?]*@)")
# Possessive: nothing is tried twice, however long a name or a row of blanks is. A possessive group with
# alternatives stops too late in Python before 3.11.5, so the outermost one of a value is an ordinary one.
# A quote behind the name is that of a dict's or JSON's key.
_NAME = re.compile(r"([\w.%-]++)([\"']?+\s*+[=:]\s*+)?+")
_VALUE = re.compile(r""" "[^"\n]*+" | '[^'\n]*+' | (?:[^&;,\s]++|;(?!\s))+ """, re.VERBOSE)
_PIECE = re.compile(r"[^\n]{1,1000}(?!\S)|[^\n]{1,1000}")


def is_secret(name: str) -> bool:
    """Tell whether the value under this name is masked wherever it is shown."""
    return _SECRET_WORDS.search(name) is not None


def masked_text(text: str) -> str:
    """Return text that may hold a URL or options with user information and secret values blotted out.

    Takes time in proportion to the length, whatever the text is: brokers and producers write parts of it.
    """
    text = _USERINFO.sub(f"{MASK}@", text)
    shown: list[str] = []
    done = at = 0
    while (name := _NAME.search(text, at)) is not None:
        at = name.end()
        if name[2] is None or not is_secret(name[1]):
            continue
        value = _VALUE.match(text, at)
        if value is not None:
            shown += (text[done:at], MASK)
            done = at = value.end()
    return "".join(shown) + text[done:]


def masked_error(text: str) -> str:
    """Return an exception's text with the passwords of URLs and of `name=value` in it blotted out.

    Line by line, and a long line in pieces: what a stranger's code raises may be megabytes without a blank.
    """
    if not is_secret(text) and "@" not in text:
        return text
    return _PIECE.sub(lambda piece: masked_text(piece[0]), text)


def blotted(text: str, secrets: Iterable[str]) -> str:
    """Return text from elsewhere with these very values blotted out, whatever stands around them."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, MASK)
    return text


def masked_value(name: str, value: str) -> str:
    """Return the value as it may be shown under this name."""
    return MASK if is_secret(name) else masked_text(value)
