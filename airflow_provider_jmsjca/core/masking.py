"""Masks secret values in reprs, logs, errors and dead letters.

Parts of the text are untrusted: a producer controls the content and length of text quoted in a handler's
exception. So the search also finds secrets inside of other masked text. No text makes it slow: the time is
linear in the length of the text.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias
from urllib.parse import quote, quote_plus, unquote

MASK: Final = "***"

_Span: TypeAlias = tuple[int, int]
# Names and texts are decoded this many times, because a URL may be the value of an option of another URL.
_ENCODINGS: Final = 2
_SECRET_WORDS = re.compile(
    r"pass(?:word|wd|code|phrase)|secret|token|credential|pwd|authorization|cookie"
    r"|(?:api|access|account|private|shared)[-_.]?key|amz[-_.]signature|(?<![a-z])sig(?![a-z])",
    re.IGNORECASE,
)
# In each text with something to mask: an encoded character, a URL, a token or a secret name.
_MAY_HOLD_SECRETS = re.compile(f"%|//|bearer|{_SECRET_WORDS.pattern}", re.IGNORECASE)
# Names of HTTP headers, whose values may contain blanks.
_HEADER_WORDS = re.compile(r"authorization|cookie", re.IGNORECASE)
_BEARER = re.compile(r"(?<![a-z])bearer\s++(?P<value>[\w.~+/=-]{8,}+)", re.IGNORECASE)

# User information of URLs. Libraries accept passwords with characters such as `/` and `@`, so a password
# extends to the last `@` before a blank or the next URL. This also masks a port if an `@` follows.
_USER = re.compile(r"(?<=//)[^\s/?@:]*+:")
_END_OF_URL = re.compile(r"\s|://")
_USER_WITH_BLANKS = re.compile(r"(?<=//)[^/?\n]*@")

# Quantifiers are possessive, so that long names and runs of blanks cause no backtracking. Groups with
# alternatives are not, because Python before 3.11.5 matches too much with a possessive group.
_NAME = re.compile(r"[\w.%-]++")
# Text between a name and its value. A quote may follow the key of a dict or JSON object, with backslashes if
# the JSON is itself quoted.
_SEPARATOR = re.compile(r"""\\{0,8}+["']?+\s*+[=:]\s*+ | ["']\s++value\s*+=\s*+ """, re.VERBOSE)
_LONGEST_TAG: Final = 200
_REST_OF_TAG = re.compile(rf"[^<>]{{0,{_LONGEST_TAG}}}+(?<!/)>")
_OPENING_QUOTE = re.compile(r"""\\{0,8}+["']""")
_QUOTED = re.compile(r""" "[^"\\]*+(?:\\.[^"\\]*+)*" | '[^'\\]*+(?:\\.[^'\\]*+)*' """, re.VERBOSE | re.DOTALL)
_BEHIND_A_QUOTE = re.compile(r"[^\s&;,}\])><\"']*+")
_YAML_HEAD = re.compile(r"[|>][-+0-9]{0,2}+[ \t]*+\n")
_YAML_BLOCK = re.compile(r"([ \t]++)[^\n]*+(?:\n\1[^\n]*+)*")
_WORD = re.compile(
    r""" (?: [^&;,\s]++ | ;(?!\s) | &(?!(?:amp;)?[\w.%-]*+=) | ,(?!\s|["']|[\w.%-]*+[=:]) )+ """, re.VERBOSE
)
_LINE = re.compile(r"[^\n]++")
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})")


def is_secret(name: str) -> bool:
    """Return whether values under this name, which may be percent-encoded, are masked in all output."""
    for _ in range(_ENCODINGS):
        if _SECRET_WORDS.search(name) is not None:
            return True
        if "%" not in name:
            return False
        name = unquote(name)
    return _SECRET_WORDS.search(name) is not None


def masked_text(text: str) -> str:
    """Return text with user information of URLs and values of secret names masked.

    Finds `name=value`, `name: value`, quoted values, values on the next line, JSON and YAML. Also finds URLs
    (also percent-encoded), HTTP headers such as `Authorization`, bearer tokens, and elements and attributes
    of XML. In doubt, more is masked. The time is linear in the length for any text.
    """
    if _MAY_HOLD_SECRETS.search(text) is None:
        return text
    shown: list[str] = []
    done = -1
    for start, end in sorted(_spans(text)):
        if start == end:
            continue
        if start > done:
            shown += (text[max(done, 0) : start], MASK)
        done = max(done, end)
    return "".join(shown) + text[max(done, 0) :]


def mask_values(text: str, secrets: Iterable[str]) -> str:
    """Return untrusted text with the given values masked in any context.

    Values are found in plain and in percent-encoded form.
    """
    for secret in secrets:
        if secret:
            for form in dict.fromkeys((secret, quote(secret, safe=""), quote(secret), quote_plus(secret))):
                text = text.replace(form, MASK)
    return text


def masked_value(name: str, value: str) -> str:
    """Return the value in a form safe to show under this name."""
    return MASK if is_secret(name) else masked_text(value)


def _spans(text: str) -> Iterator[_Span]:
    """Yield the spans of secrets; spans may overlap."""
    yield from _user_information(text)
    yield from _Values(text).spans()
    decoded, places = text, array("q", range(len(text) + 1 if "%" in text else 0))
    for _ in range(_ENCODINGS):
        if _ESCAPE.search(decoded) is None:
            return
        decoded, places = _decoded(decoded, places)
        for start, end in _Values(decoded).spans():
            yield places[start], places[end]


def _user_information(text: str) -> Iterator[_Span]:
    at = 0
    while (user := _USER.search(text, at)) is not None:
        url_end = _END_OF_URL.search(text, user.end())
        end = len(text) if url_end is None else url_end.start()
        last = text.rfind("@", user.end(), end)
        if last >= 0:
            yield user.start(), last
        at = end
    for found in _USER_WITH_BLANKS.finditer(text):
        yield found.start(), found.end() - 1


class _Values:
    """Finds the values of secret names, including those nested in other values.

    A value extends to the end of its word, line, block or element. Several values may have the same end, so
    each end is cached, and no text is scanned twice.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._word_end = self._line_end = self._block_end = self._element_end = 0

    def spans(self) -> Iterator[_Span]:
        for bearer in _BEARER.finditer(self._text):
            yield bearer.span("value")
        for name in _NAME.finditer(self._text):
            if not is_secret(name[0]):
                continue
            separator = _SEPARATOR.match(self._text, name.end())
            if separator is not None:
                yield separator.end(), self._value_end(name[0], separator.end())
                continue
            tag = _REST_OF_TAG.match(self._text, name.end())
            if tag is not None and _is_in_opening_tag(self._text, name.start()):
                yield tag.end(), self._content_end(tag.end())

    def _value_end(self, name: str, start: int) -> int:
        if (quoted := _quoted_end(self._text, start)) is not None:
            return quoted
        if (head := _YAML_HEAD.match(self._text, start)) is not None:
            if head.end() >= self._block_end:
                self._block_end = _end(_YAML_BLOCK, self._text, head.end())
            return self._block_end
        if _HEADER_WORDS.search(name) is not None:
            if start >= self._line_end:
                self._line_end = _end(_LINE, self._text, start)
            return self._line_end
        if start >= self._word_end:
            self._word_end = _end(_WORD, self._text, start)
        return self._word_end

    def _content_end(self, start: int) -> int:
        if self._element_end < start:
            closing = self._text.find("</", start)
            self._element_end = len(self._text) if closing < 0 else closing
        return self._element_end


def _end(pattern: re.Pattern[str], text: str, start: int) -> int:
    found = pattern.match(text, start)
    return start if found is None else found.end()


def _is_in_opening_tag(text: str, place: int) -> bool:
    tag = text[max(0, place - _LONGEST_TAG) : place].rpartition("<")
    return tag[1] == "<" and not tag[2].startswith("/") and ">" not in tag[2]


def _quoted_end(text: str, start: int) -> int | None:
    """Return the end of the quoted value that begins here; `None` if it isn't quoted."""
    opening = _OPENING_QUOTE.match(text, start)
    if opening is None:
        return None
    if len(opening[0]) > 1:  # the quote has backslashes, because the whole text is quoted
        closing = text.find(opening[0], opening.end())
        if closing < 0:
            return None
        end = closing + len(opening[0])
    else:
        quoted = _QUOTED.match(text, start)
        if quoted is None:
            return None
        end = quoted.end()
    return _end(_BEHIND_A_QUOTE, text, end)


def _decoded(text: str, places: array[int]) -> tuple[str, array[int]]:
    """Return percent-encoded text decoded byte by byte.

    Args:
        text: The text.
        places: For each character of `text`, the position in the original text; then the position of the end.

    Returns:
        The decoded text, and its characters' positions in the original text, in the form of `places`.
    """
    pieces: list[str] = []
    found = array("q")
    done = 0
    for escape in _ESCAPE.finditer(text):
        pieces += (text[done : escape.start()], chr(int(escape[1], 16)))
        found += places[done : escape.start() + 1]
        done = escape.end()
    pieces.append(text[done:])
    return "".join(pieces), found + places[done:]
