"""Options text: real Java properties, with JMSJCA's way of writing several options on one line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from airflow_provider_jmsjca.core.masking import MASK, masked_value
from airflow_provider_jmsjca.errors import ConfigurationError

_SEPARATOR_KEY = "jmsjca.sep"
_SEPARATOR_START = re.compile(r"[ \t\f\r\n]*JMSJCA\.sep[ \t\f]*[=:]", re.IGNORECASE)
_SEPARATOR_ANYWHERE = re.compile(r"JMSJCA\.sep=", re.IGNORECASE)
_LINE_END = re.compile(r"\r\n|\r|\n")
_BLANKS = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_HEX = re.compile(r"[0-9A-Fa-f]{4}")
_NO_SEPARATOR = re.compile(r"[A-Za-z0-9\\=._\r\n]")


class _EscapeError(Exception):
    """An escape sequence is invalid; the argument is this sequence."""


def read_properties(text: str) -> dict[str, str]:
    r"""Return the options in an Options text, without checking their names.

    One `key=value` a line. `:` or blanks also end a key; `#` and `!` begin a comment line; a backslash at the
    end continues the line; `\t \n \r \f \uXXXX` are escapes, any other escaped character is itself. A key
    given twice has its last value.

    `JMSJCA.sep=`, anywhere in the text, makes the character after it a line end in the whole text. This
    applies to the part before it, too. A backslash escapes the character.

    Raises:
        ConfigurationError: Lists every invalid line, with its number.

    Source: J101, J113; java.util.Properties.load.
    """
    text, unit = _split_by_separator(text)
    faults: list[str] = []
    options: dict[str, str] = {}
    for number, line in _logical_lines(text):
        raw_key, raw_value = _split(line)
        try:
            key, value = _unescape(raw_key), _unescape(raw_value)
        except _EscapeError as error:
            faults.append(
                f"options, {unit} {number}: broken escape {error}, expected \\u and four hex digits"
            )
            continue
        if not key:
            faults.append(f"options, {unit} {number}: a value without a key, expected key=value")
        elif key.lower() == _SEPARATOR_KEY:
            faults.append(
                f"options, {unit} {number}: {key}: expected JMSJCA.sep= and the separating character"
            )
        else:
            options[key] = value
    if faults:
        raise ConfigurationError(faults)
    return options


def format_options(options: Mapping[str, str]) -> str:
    """Return an Options text that reads back as these options, one a line, in their order."""
    return "\n".join(
        f"{_escape(key, is_key=True)}={_unlike_separator(_escape(value, is_key=False))}"
        for key, value in options.items()
    )


def masked_options(text: str) -> str:
    """Return the Options text with secret values masked; an invalid text is masked as a whole."""
    try:
        options = read_properties(text)
    except ConfigurationError:
        return MASK
    return format_options({key: masked_value(key, value) for key, value in options.items()})


def _split_by_separator(text: str) -> tuple[str, str]:
    start = _SEPARATOR_START.match(text) or _SEPARATOR_ANYWHERE.search(text)
    if start is None:
        return text, "line"
    separator = text[start.end() : start.end() + 1]
    if not separator or _NO_SEPARATOR.match(separator):
        given = repr(separator) if separator else "nothing"
        raise ConfigurationError(
            f"options: JMSJCA.sep: got {given}, expected a separating character after the equals sign, for "
            "example JMSJCA.sep=,JMSJCA.NoXA=true (no letter, digit, dot, underscore, = or backslash)"
        )
    pieces: list[str] = []
    current: list[str] = []
    before = text[: start.start()]
    rest = iter((before and before + separator) + text[start.end() + 1 :])
    for character in rest:
        if character == "\\":
            current += (character, next(rest, ""))
        elif character == separator:
            pieces.append("".join(current))
            current = []
        else:
            current.append(character)
    pieces.append("".join(current))
    return "\n".join(pieces), "entry"


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    waiting: list[str] = []  # the parts so far of a continued line
    first = 0
    for number, natural in enumerate(_LINE_END.split(text), start=1):
        line = natural.lstrip(_BLANKS)
        if not waiting:
            if not line or line[0] in "#!":
                continue
            first = number
        # An odd number of backslashes at the end continues the line: an even number consists of escaped ones.
        backslashes = len(line) - len(line.rstrip("\\"))
        part = line[:-1] if backslashes % 2 else line
        if part:
            waiting.append(part)
        if backslashes % 2 == 0 and waiting:
            yield first, "".join(waiting)
            waiting = []
    if waiting:
        yield first, "".join(waiting)


def _split(line: str) -> tuple[str, str]:
    index = 0
    while index < len(line) and line[index] not in "=: \t\f":
        index += 2 if line[index] == "\\" else 1
    key, rest = line[:index], line[index:].lstrip(_BLANKS)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANKS)
    return key, rest


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    index = 0
    while index < len(text):
        character = text[index]
        index += 1
        if character != "\\":
            out.append(character)
            continue
        escaped = text[index : index + 1]
        index += 1
        if escaped == "u":
            digits = _HEX.match(text, index)
            if digits is None:
                raise _EscapeError(repr(text[index - 2 : index + 4]))
            out.append(chr(int(digits[0], 16)))
            index += 4
        else:
            out.append(_ESCAPES.get(escaped, escaped))
    return _joined_surrogates("".join(out))


def _joined_surrogates(text: str) -> str:
    """Join surrogate pairs, because Java writes characters beyond U+FFFF as two escapes."""
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise _EscapeError("with half of a surrogate pair") from None


def _unlike_separator(value: str) -> str:
    return _SEPARATOR_ANYWHERE.sub(lambda found: found[0].replace("=", "\\="), value)


def _escape(text: str, *, is_key: bool) -> str:
    out: list[str] = []
    for position, character in enumerate(text):
        if character in "\t\n\r\f":
            out.append({"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}[character])
        elif (
            character == "\\"
            or (is_key and character in "=: #!")
            or (not is_key and character == " " and position == 0)
        ):
            out.append("\\" + character)
        else:
            out.append(character)
    return "".join(out)
