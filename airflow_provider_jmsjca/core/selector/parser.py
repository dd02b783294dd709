"""Parses selectors into trees: precedence climbing, with one or two stack frames per parenthesis."""

from __future__ import annotations

import enum
import math
import re
from dataclasses import dataclass

from airflow_provider_jmsjca.core.message.identifiers import (
    RESERVED_WORDS,
    is_identifier_part,
    is_identifier_start,
)
from airflow_provider_jmsjca.core.message.value_types import as_float32
from airflow_provider_jmsjca.core.selector.syntax import (
    And,
    Arithmetic,
    Between,
    Calculation,
    Compare,
    Comparison,
    Identifier,
    In,
    IsNull,
    Like,
    Literal,
    Negative,
    Node,
    Not,
    Or,
    ResultType,
    result_type,
)
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
        value: Value of a string literal or number. `LONG_LIMIT` is valid only after a minus sign.
    """

    kind: TokenKind
    text: str
    start: int
    end: int
    value: str | int | float | None = None


def syntax_error(text: str, position: int, found: str, expected: str) -> ConfigurationError:
    """Return an error with the position (from 1), the token found there, and the expected form.

    The text ends with the selector, or with its part around the position, where «» marks the position.
    """
    begin = max(0, position - _EXCERPT_BEFORE)
    end = min(len(text), position + _EXCERPT_AFTER)
    marked = f"{text[begin:position]}«»{text[position:end]}"
    excerpt = "".join(character if character.isprintable() else " " for character in marked)
    before = "…" if begin else ""
    after = "…" if end < len(text) else ""
    return ConfigurationError(
        f"message selector, position {position + 1}: found {found}, expected {expected}: "
        f"{before}{excerpt}{after}"
    )


def quoted_token(spelling: str) -> str:
    """Return a token as error messages show it."""
    cut = spelling if len(spelling) <= _LONGEST_SHOWN_TOKEN else f"{spelling[:_LONGEST_SHOWN_TOKEN]}…"
    return repr(cut)


def tokenize(text: str) -> list[Token]:
    """Return the tokens of a selector; the last one is of the kind `END`.

    Numbers have Java's forms: decimal, hexadecimal and octal integers, with or without `L`; floating point
    with or without `F` or `D`. A hexadecimal number is never negative.

    Raises:
        ConfigurationError: A character or literal that is invalid in selectors.

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
        raise syntax_error(text, position, quoted_token("${"), "no parameter: this one was given no value")
    if is_identifier_start(character):
        return _word(text, position)
    pair = character + following
    hint = _FOREIGN_SPELLINGS.get(pair) or _FOREIGN_SPELLINGS.get(character)
    if hint:
        raise syntax_error(
            text, position, quoted_token(pair if pair in _FOREIGN_SPELLINGS else character), hint
        )
    match = _OPERATOR.match(text, position)
    if match is None:
        raise syntax_error(text, position, quoted_token(character), "an identifier, literal or operator")
    return Token(TokenKind.OPERATOR, match.group(), position, match.end())


def _word(text: str, start: int) -> Token:
    end = start + 1
    while end < len(text) and is_identifier_part(text[end]):
        end += 1
    word = text[start:end]
    keyword = word.upper()
    # Some non-ASCII letters have an ASCII upper case (the long s); they are not part of keywords.
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
            raise syntax_error(
                text, start, quoted_token(match.group()), "a number in the range of a Java double"
            )
    else:
        match = _EXACT.match(text, start)
        if match is None:  # unreachable: a digit stands here, or a full stop and a digit
            raise syntax_error(text, start, quoted_token(text[start]), "a number")
        value = _exact_value(text, start, match.group().rstrip("lL"), hexadecimal=hexadecimal)
    end = match.end()
    if end < len(text) and is_identifier_part(text[end]):
        raise syntax_error(text, end, quoted_token(text[end]), "a blank or operator after the number")
    return Token(TokenKind.NUMBER, match.group(), start, end, value)


def _exact_value(text: str, start: int, digits: str, *, hexadecimal: bool) -> int:
    significant = (digits[2:] if hexadecimal else digits).lstrip("0") or "0"
    octal = not hexadecimal and len(digits) > 1 and digits.startswith("0")
    if octal and not set(significant) <= set("01234567"):
        raise syntax_error(text, start, quoted_token(digits), "an octal number, or no zero in front")
    base = 16 if hexadecimal else 8 if octal else 10
    value = int(significant, base) if len(significant) <= _MOST_LONG_DIGITS else LONG_LIMIT + 1
    if value > LONG_LIMIT:
        raise syntax_error(text, start, quoted_token(digits), "a number in the range of a Java long")
    return value


MAX_DEPTH = 100
SELECTABLE_HEADERS = frozenset(
    {"JMSDeliveryMode", "JMSPriority", "JMSMessageID", "JMSTimestamp", "JMSCorrelationID", "JMSType"}
)


class Precedence(enum.IntEnum):
    """Precedence of operators, the lowest first. Source: JMS 2.0 section 3.8.1.1."""

    OR = 1
    AND = 2
    NOT = 3
    COMPARISON = 4
    SUM = 5
    PRODUCT = 6
    SIGN = 7


_COMPARISONS = frozenset(map(str, Comparison))
_PREDICATES = frozenset({"NOT", "BETWEEN", "LIKE", "IN", "IS"})
_LEVELS: dict[str, Precedence] = {
    "OR": Precedence.OR,
    "AND": Precedence.AND,
    "+": Precedence.SUM,
    "-": Precedence.SUM,
    "*": Precedence.PRODUCT,
    "/": Precedence.PRODUCT,
    **dict.fromkeys(_COMPARISONS | _PREDICATES, Precedence.COMPARISON),
}


def parse(text: str) -> Node:
    """Return the tree of a selector that is not blank.

    Beyond JMS, `identifier = NULL` and `identifier <> NULL` are read as `IS NULL` and `IS NOT NULL`, because
    the documentation of JMSJCA uses them.

    Raises:
        ConfigurationError: The text is not a selector; the error gives the position, the token found and the
            expected form.

    Source: JMS 2.0 section 3.8.1; J182.
    """
    return _Parser(text).selector()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = tokenize(text)
        self._index = 0
        self._depth = 0

    def selector(self) -> Node:
        start = self._token
        node = self._condition(start, self._expression(Precedence.OR))
        if self._token.kind is not TokenKind.END:
            raise self._error(self._token, "an operator, or the end of the selector")
        return node

    @property
    def _token(self) -> Token:
        return self._tokens[self._index]

    def _advance(self) -> Token:
        token = self._tokens[self._index]
        self._index += 1
        return token

    def _at(self, *spellings: str) -> bool:
        token = self._token
        return token.kind in {TokenKind.KEYWORD, TokenKind.OPERATOR} and token.text in spellings

    def _take(self, *spellings: str) -> bool:
        if self._at(*spellings):
            self._index += 1
            return True
        return False

    def _require(self, spelling: str) -> None:
        if not self._take(spelling):
            raise self._error(self._token, quoted_token(spelling))

    def _error(self, token: Token, expected: str) -> ConfigurationError:
        end = token.kind is TokenKind.END
        found = str(token.kind) if end else quoted_token(self._text[token.start : token.end])
        return syntax_error(self._text, token.start, f"the {found}" if end else found, expected)

    def _expression(self, level: Precedence) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._error(self._token, f"at most {MAX_DEPTH} levels of nesting")
        start = self._token
        left = self._prefix(level)
        # Each iteration handles an operator of lower precedence than the one before, and all of that level.
        while (found := self._level()) is not None and found >= level:
            match found:
                case Precedence.OR:
                    left = Or(self._chain("OR", start, left, Precedence.AND))
                case Precedence.AND:
                    left = And(self._chain("AND", start, left, Precedence.NOT))
                case Precedence.COMPARISON:
                    left = self._comparison(start, left)
                    if self._level() is Precedence.COMPARISON:
                        raise self._error(self._token, "AND, OR, or the end: comparisons can't be chained")
                case _:
                    left = self._calculation(start, left, found)
        self._depth -= 1
        return left

    def _level(self) -> Precedence | None:
        token = self._token
        if token.kind in {TokenKind.KEYWORD, TokenKind.OPERATOR}:
            return _LEVELS.get(token.text)
        return None

    def _chain(self, word: str, start: Token, first: Node, operand_level: Precedence) -> tuple[Node, ...]:
        operands = [self._condition(start, first)]
        while self._take(word):
            operand_start = self._token
            operands.append(self._condition(operand_start, self._expression(operand_level)))
        return tuple(operands)

    def _calculation(self, start: Token, first: Node, level: Precedence) -> Node:
        self._numeric(start, first)
        rest: list[tuple[Arithmetic, Node]] = []
        operand_level = Precedence.PRODUCT if level is Precedence.SUM else Precedence.SIGN
        while self._level() is level:
            operator = Arithmetic(self._advance().text)
            operand_start = self._token
            rest.append((operator, self._numeric(operand_start, self._expression(operand_level))))
        return Calculation(first, tuple(rest))

    def _prefix(self, level: Precedence) -> Node:
        token = self._advance()
        match token.kind, token.text:
            case TokenKind.OPERATOR, "(":
                node = self._expression(Precedence.OR)
                self._require(")")
                return node
            case TokenKind.OPERATOR, ("+" | "-"):
                return self._signed(token)
            case TokenKind.KEYWORD, "NOT" if level <= Precedence.NOT:
                start = self._token
                return Not(self._condition(start, self._expression(Precedence.NOT)))
            case TokenKind.KEYWORD, ("TRUE" | "FALSE"):
                return Literal(token.text == "TRUE")
            case TokenKind.IDENTIFIER, _:
                return self._identifier(token)
            case ((TokenKind.STRING | TokenKind.NUMBER), _) if token.value is not None:
                if token.value == LONG_LIMIT and isinstance(token.value, int):
                    raise self._error(token, "a number in the range of a Java long")
                return Literal(token.value)
        raise self._error(
            token, "an identifier, a literal, '(' or NOT" if level <= Precedence.NOT else "a value"
        )

    def _signed(self, sign: Token) -> Node:
        start = self._token
        if start.kind is TokenKind.NUMBER and isinstance(start.value, (int, float)) and sign.text == "-":
            self._advance()
            return Literal(-start.value)
        operand = self._numeric(start, self._expression(Precedence.SIGN))
        return operand if sign.text == "+" else Negative(operand)

    def _identifier(self, token: Token) -> Identifier:
        name = token.text
        header = name.startswith("JMS") and not name.startswith(("JMSX", "JMS_", "JMSJCA"))
        if header and name not in SELECTABLE_HEADERS:
            expected = f"a property, or one of the headers {', '.join(sorted(SELECTABLE_HEADERS))}"
            raise self._error(token, expected)
        return Identifier(name)

    def _comparison(self, start: Token, left: Node) -> Node:
        if self._at(*_COMPARISONS):
            return self._compare(start, left)
        if self._take("IS"):
            negated = self._take("NOT")
            self._require("NULL")
            return IsNull(self._named(start, left, "IS NULL"), negated)
        negated = self._take("NOT")
        if self._take("BETWEEN"):
            return self._between(start, left, negated=negated)
        if self._take("LIKE"):
            return self._like(start, left, negated=negated)
        if self._take("IN"):
            return self._in(start, left, negated=negated)
        raise self._error(self._token, "BETWEEN, LIKE or IN after NOT")

    def _compare(self, start: Token, left: Node) -> Node:
        operator = Comparison(self._advance().text)
        equality = operator in {Comparison.EQUAL, Comparison.NOT_EQUAL}
        if equality and self._take("NULL"):
            return IsNull(self._named(start, left, f"{operator} NULL"), operator is Comparison.NOT_EQUAL)
        if not equality:
            self._numeric(start, left)
        right_start = self._token
        right = self._expression(Precedence.SUM)
        if not equality:
            self._numeric(right_start, right)
        return Compare(operator, left, right)

    def _between(self, start: Token, value: Node, *, negated: bool) -> Node:
        self._numeric(start, value)
        low_start = self._token
        low = self._numeric(low_start, self._expression(Precedence.SUM))
        self._require("AND")
        high_start = self._token
        high = self._numeric(high_start, self._expression(Precedence.SUM))
        return Between(value, low, high, negated)

    def _like(self, start: Token, left: Node, *, negated: bool) -> Node:
        identifier = self._named(start, left, "LIKE")
        pattern = self._string()
        escape: str | None = None
        if self._take("ESCAPE"):
            escape_token = self._token
            escape = self._string()
            if len(escape) != 1:
                raise self._error(escape_token, "a string literal of one character")
        return Like(identifier, pattern, escape, negated)

    def _in(self, start: Token, left: Node, *, negated: bool) -> Node:
        identifier = self._named(start, left, "IN")
        self._require("(")
        strings = [self._string()]
        while self._take(","):
            strings.append(self._string())
        if not self._take(")"):
            raise self._error(self._token, "',' or ')'")
        return In(identifier, tuple(strings), negated)

    def _string(self) -> str:
        token = self._token
        if token.kind is not TokenKind.STRING or not isinstance(token.value, str):
            raise self._error(token, "a string literal")
        self._advance()
        return token.value

    def _named(self, start: Token, node: Node, operator: str) -> Identifier:
        if not isinstance(node, Identifier):
            raise self._error(start, f"an identifier in front of {operator}")
        return node

    def _condition(self, start: Token, node: Node) -> Node:
        if result_type(node) not in {ResultType.CONDITION, ResultType.ANY}:
            raise self._error(start, f"a condition, not {result_type(node)}")
        return node

    def _numeric(self, start: Token, node: Node) -> Node:
        if result_type(node) not in {ResultType.NUMBER, ResultType.ANY}:
            raise self._error(start, f"a number here, not {result_type(node)}")
        return node
