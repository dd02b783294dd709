"""Selector tokens to a tree: precedence climbing, one stack frame or two for each parenthesis."""

from __future__ import annotations

import enum

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
    Sort,
    sort_of,
)
from airflow_provider_jmsjca.core.selector.tokens import (
    LONG_LIMIT,
    Token,
    TokenKind,
    shown,
    syntax_error,
    tokenize,
)
from airflow_provider_jmsjca.errors import ConfigurationError

MAX_DEPTH = 100
SELECTABLE_HEADERS = frozenset(
    {"JMSDeliveryMode", "JMSPriority", "JMSMessageID", "JMSTimestamp", "JMSCorrelationID", "JMSType"}
)


class Level(enum.IntEnum):
    """How tightly operators bind, the loosest first. Source: JMS 2.0 section 3.8.1.1."""

    OR = 1
    AND = 2
    NOT = 3
    COMPARISON = 4
    SUM = 5
    PRODUCT = 6
    SIGN = 7


_COMPARISONS = frozenset(map(str, Comparison))
_PREDICATES = frozenset({"NOT", "BETWEEN", "LIKE", "IN", "IS"})
_LEVELS: dict[str, Level] = {
    "OR": Level.OR,
    "AND": Level.AND,
    "+": Level.SUM,
    "-": Level.SUM,
    "*": Level.PRODUCT,
    "/": Level.PRODUCT,
    **dict.fromkeys(_COMPARISONS | _PREDICATES, Level.COMPARISON),
}


def parse(text: str) -> Node:
    """Return the tree of a selector that is not blank.

    Beyond JMS, `identifier = NULL` and `identifier <> NULL` are read as `IS NULL` and `IS NOT NULL`: the
    documentation of JMSJCA writes them (J182).

    Raises:
        ConfigurationError: The text is no selector: position, what was found, what was expected.

    Source: JMS 2.0 section 3.8.1.
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
        node = self._condition(start, self._expression(Level.OR))
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
            raise self._error(self._token, shown(spelling))

    def _error(self, token: Token, expected: str) -> ConfigurationError:
        end = token.kind is TokenKind.END
        found = str(token.kind) if end else shown(self._text[token.start : token.end])
        return syntax_error(self._text, token.start, f"the {found}" if end else found, expected)

    def _expression(self, level: Level) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._error(self._token, f"at most {MAX_DEPTH} levels of nesting")
        start = self._token
        left = self._prefix(level)
        # Each turn takes a looser operator than the one before, so a level never comes back.
        while (found := self._level()) is not None and found >= level:
            match found:
                case Level.OR:
                    left = Or(self._chain("OR", start, left, Level.AND))
                case Level.AND:
                    left = And(self._chain("AND", start, left, Level.NOT))
                case Level.COMPARISON:
                    left = self._comparison(start, left)
                    if self._level() is Level.COMPARISON:
                        raise self._error(self._token, "AND, OR, or the end: comparisons can't be chained")
                case _:
                    left = self._calculation(start, left, found)
        self._depth -= 1
        return left

    def _level(self) -> Level | None:
        token = self._token
        if token.kind in {TokenKind.KEYWORD, TokenKind.OPERATOR}:
            return _LEVELS.get(token.text)
        return None

    def _chain(self, word: str, start: Token, first: Node, operand_level: Level) -> tuple[Node, ...]:
        operands = [self._condition(start, first)]
        while self._take(word):
            operand_start = self._token
            operands.append(self._condition(operand_start, self._expression(operand_level)))
        return tuple(operands)

    def _calculation(self, start: Token, first: Node, level: Level) -> Node:
        self._numeric(start, first)
        rest: list[tuple[Arithmetic, Node]] = []
        operand_level = Level.PRODUCT if level is Level.SUM else Level.SIGN
        while self._level() is level:
            operator = Arithmetic(self._advance().text)
            operand_start = self._token
            rest.append((operator, self._numeric(operand_start, self._expression(operand_level))))
        return Calculation(first, tuple(rest))

    def _prefix(self, level: Level) -> Node:
        token = self._advance()
        match token.kind, token.text:
            case TokenKind.OPERATOR, "(":
                node = self._expression(Level.OR)
                self._require(")")
                return node
            case TokenKind.OPERATOR, ("+" | "-"):
                return self._signed(token)
            case TokenKind.KEYWORD, "NOT" if level <= Level.NOT:
                start = self._token
                return Not(self._condition(start, self._expression(Level.NOT)))
            case TokenKind.KEYWORD, ("TRUE" | "FALSE"):
                return Literal(token.text == "TRUE")
            case TokenKind.IDENTIFIER, _:
                return self._identifier(token)
            case ((TokenKind.STRING | TokenKind.NUMBER), _) if token.value is not None:
                if token.value == LONG_LIMIT and isinstance(token.value, int):
                    raise self._error(token, "a number in the range of a Java long")
                return Literal(token.value)
        self._index -= 1
        raise self._error(token, "an identifier, a literal, '(' or NOT" if level <= Level.NOT else "a value")

    def _signed(self, sign: Token) -> Node:
        start = self._token
        if start.kind is TokenKind.NUMBER and isinstance(start.value, (int, float)) and sign.text == "-":
            self._advance()
            return Literal(-start.value)
        operand = self._numeric(start, self._expression(Level.SIGN))
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
        right = self._expression(Level.SUM)
        if not equality:
            self._numeric(right_start, right)
        return Compare(operator, left, right)

    def _between(self, start: Token, value: Node, *, negated: bool) -> Node:
        self._numeric(start, value)
        low_start = self._token
        low = self._numeric(low_start, self._expression(Level.SUM))
        self._require("AND")
        high_start = self._token
        high = self._numeric(high_start, self._expression(Level.SUM))
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
        if sort_of(node) not in {Sort.CONDITION, Sort.ANY}:
            raise self._error(start, f"a condition, not {sort_of(node)}")
        return node

    def _numeric(self, start: Token, node: Node) -> Node:
        if sort_of(node) not in {Sort.NUMBER, Sort.ANY}:
            raise self._error(start, f"a number here, not {sort_of(node)}")
        return node
