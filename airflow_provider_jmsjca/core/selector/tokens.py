"""Selector text to tokens, and errors that point into the text."""

from __future__ import annotations

import enum
import math
import re
from dataclasses import dataclass

from airflow_provider_jmsjca.core.identifiers import RESERVED_WORDS, is_identifier_part, is_identifier_start
from airflow_provider_jmsjca.core.value_types import as_float32
from airflow_provider_jmsjca.errors import ConfigurationError

LONG_LIMIT = 1 << 63

_EXCERPT_BEFORE, _EXCERPT_AFTER = 50, 25
_LONGEST_SHOWN_TOKEN = 40
_MOST_LONG_DIGITS = 22  # of the octal form, the longest of the three
_WHITESPACE = frozenset(" \t\n\r\f")
_FLOATING = re.compile(
    r"(?:(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+|[0-9]+(?=[fFdD]))([fFdD]?)"
)
_EXACT = re.compile(r"(?:0[xX][0-9a-fA-F]+|[0-9]+)[lL]?")
_STRING = re.compile(r"'(?:[^']|'')*'")
_OPERATOR = re.compile(r"<>|<=|>=|[=<>+\-*/(),]")
_FOREIGN_SPELLINGS = {"!=": "<>", "==": "=", '"': "single quotes around text", "||": "OR", "&&": "AND"}


class TokenKind(enum.StrEnum):
    """The kinds of token; the values are the words for error messages."""

    KEYWORD = "keyword"
    IDENTIFIER = "identifier"
    STRING = "string literal"
    NUMBER = "number"
    OPERATOR = "operator"
    END = "end of the selector"


@dataclass(frozen=True, slots=True)
class Token:
    """One token.

    Attributes:
        text: The upper-case word for keywords, the spelling otherwise; empty at the end.
        start: Index of its first character.
        end: Index after its last character.
        value: What a string literal or number means. `LONG_LIMIT` can only stand behind a minus sign.
    """

    kind: TokenKind
    text: str
    start: int
    end: int
    value: str | int | float | None = None


def syntax_error(text: str, position: int, found: str, expected: str) -> ConfigurationError:
    """Return an error that names the position (from 1), what was found there, and what was expected.

    Its last line points at the position under the selector, or the part of it around the position.
    """
    begin = max(0, position - _EXCERPT_BEFORE)
    end = min(len(text), position + _EXCERPT_AFTER)
    excerpt = "".join(character if character.isprintable() else " " for character in text[begin:end])
    before = "…" if begin else ""
    after = "…" if end < len(text) else ""
    return ConfigurationError(
        f"message selector, position {position + 1}: found {found}, expected {expected}\n"
        f"    {before}{excerpt}{after}\n"
        f"    {' ' * (len(before) + position - begin)}^"
    )


def shown(spelling: str) -> str:
    """Return a token as error messages show it."""
    cut = spelling if len(spelling) <= _LONGEST_SHOWN_TOKEN else f"{spelling[:_LONGEST_SHOWN_TOKEN]}…"
    return repr(cut)


def tokenize(text: str) -> list[Token]:
    """Return the tokens of a selector; the last one is of the kind `END`.

    Numbers have Java's forms: decimal, hexadecimal and octal integers, with or without `L`; floating point
    with or without `F` or `D`. A hexadecimal number is never negative.

    Raises:
        ConfigurationError: A character or literal no selector has.

    Source: JMS 2.0 section 3.8.1.1.
    """
    tokens: list[Token] = []
    position = 0
    while position < len(text):
        character = text[position]
        if character in _WHITESPACE:
            position += 1
            continue
        token = _token_at(text, position, character)
        tokens.append(token)
        position = token.end
    tokens.append(Token(TokenKind.END, "", position, position))
    return tokens


def _token_at(text: str, position: int, character: str) -> Token:
    following = text[position + 1 : position + 2]
    if character in "0123456789" or (character == "." and following and following in "0123456789"):
        return _number(text, position)
    if character == "'":
        match = _STRING.match(text, position)
        if match is None:
            raise syntax_error(text, position, "a string literal that isn't closed", "a second single quote")
        value = match.group()[1:-1].replace("''", "'")
        return Token(TokenKind.STRING, match.group(), position, match.end(), value)
    if character + following == "${":
        raise syntax_error(text, position, shown("${"), "no parameter: this one was given no value")
    if is_identifier_start(character):
        return _word(text, position)
    pair = character + following
    hint = _FOREIGN_SPELLINGS.get(pair) or _FOREIGN_SPELLINGS.get(character)
    if hint:
        raise syntax_error(text, position, shown(pair if pair in _FOREIGN_SPELLINGS else character), hint)
    match = _OPERATOR.match(text, position)
    if match is None:
        raise syntax_error(text, position, shown(character), "an identifier, literal or operator")
    return Token(TokenKind.OPERATOR, match.group(), position, match.end())


def _word(text: str, start: int) -> Token:
    end = start + 1
    while end < len(text) and is_identifier_part(text[end]):
        end += 1
    word = text[start:end]
    keyword = word.upper()
    # Some letters outside ASCII have an upper case inside it (the long s): they spell no keyword.
    if keyword in RESERVED_WORDS and word.isascii():
        return Token(TokenKind.KEYWORD, keyword, start, end)
    return Token(TokenKind.IDENTIFIER, word, start, end)


def _number(text: str, start: int) -> Token:
    value: float
    match = _FLOATING.match(text, start)
    hexadecimal = text[start : start + 2] in {"0x", "0X"}
    if match is not None and not hexadecimal:
        value = float(match.group().rstrip("fFdD"))
        if match.group(1) in {"f", "F"}:
            value = as_float32(value)
        if math.isinf(value):
            raise syntax_error(text, start, shown(match.group()), "a number in the range of a Java double")
    else:
        match = _EXACT.match(text, start)
        if match is None:  # unreachable: a digit stands here, or a full stop and a digit
            raise syntax_error(text, start, shown(text[start]), "a number")
        value = _exact_value(text, start, match.group().rstrip("lL"), hexadecimal=hexadecimal)
    end = match.end()
    if end < len(text) and is_identifier_part(text[end]):
        raise syntax_error(text, end, shown(text[end]), "a blank or operator after the number")
    return Token(TokenKind.NUMBER, match.group(), start, end, value)


def _exact_value(text: str, start: int, digits: str, *, hexadecimal: bool) -> int:
    significant = (digits[2:] if hexadecimal else digits).lstrip("0") or "0"
    octal = not hexadecimal and len(digits) > 1 and digits.startswith("0")
    if octal and not set(significant) <= set("01234567"):
        raise syntax_error(text, start, shown(digits), "an octal number, or no zero in front")
    base = 16 if hexadecimal else 8 if octal else 10
    value = int(significant, base) if len(significant) <= _MOST_LONG_DIGITS else LONG_LIMIT + 1
    if value > LONG_LIMIT:
        raise syntax_error(text, start, shown(digits), "a number in the range of a Java long")
    return value
