"""Syntax tree of a selector; chains of one operator are flat, so only parentheses make the tree deep."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TypeAlias


class Comparison(enum.StrEnum):
    """The six comparison operators."""

    EQUAL = "="
    NOT_EQUAL = "<>"
    LESS = "<"
    LESS_OR_EQUAL = "<="
    GREATER = ">"
    GREATER_OR_EQUAL = ">="


class Arithmetic(enum.StrEnum):
    """The four arithmetic operators."""

    PLUS = "+"
    MINUS = "-"
    TIMES = "*"
    DIVIDED_BY = "/"


@dataclass(frozen=True, slots=True)
class Literal:
    """A string, number or boolean as written."""

    value: str | int | float | bool


@dataclass(frozen=True, slots=True)
class Identifier:
    """A property, or one of the headers that selectors can see."""

    name: str


@dataclass(frozen=True, slots=True)
class Negative:
    """Unary minus."""

    operand: Node


@dataclass(frozen=True, slots=True)
class Calculation:
    """Operators of equal precedence, carried out from left to right."""

    first: Node
    rest: tuple[tuple[Arithmetic, Node], ...]


@dataclass(frozen=True, slots=True)
class Compare:
    """A comparison of two values."""

    operator: Comparison
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Between:
    """`value [NOT] BETWEEN low AND high`, both ends included."""

    value: Node
    low: Node
    high: Node
    negated: bool


@dataclass(frozen=True, slots=True)
class Like:
    """`identifier [NOT] LIKE pattern [ESCAPE escape]`."""

    identifier: Identifier
    pattern: str
    escape: str | None
    negated: bool


@dataclass(frozen=True, slots=True)
class In:
    """`identifier [NOT] IN (strings)`."""

    identifier: Identifier
    strings: tuple[str, ...]
    negated: bool


@dataclass(frozen=True, slots=True)
class IsNull:
    """`identifier IS [NOT] NULL`."""

    identifier: Identifier
    negated: bool


@dataclass(frozen=True, slots=True)
class Not:
    """A condition negated: unknown stays unknown."""

    operand: Node


@dataclass(frozen=True, slots=True)
class And:
    """Two or more conditions that must all be true."""

    operands: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """Two or more conditions of which one must be true."""

    operands: tuple[Node, ...]


Node: TypeAlias = (
    Literal | Identifier | Negative | Calculation | Compare | Between | Like | In | IsNull | Not | And | Or
)


class ResultType(enum.StrEnum):
    """Static result type of a node; the values are the words for error messages."""

    CONDITION = "a condition"
    NUMBER = "a number"
    STRING = "text"
    ANY = "a property"


def result_type(node: Node) -> ResultType:
    """Return the static result type of the node."""
    match node:
        case Identifier():
            return ResultType.ANY
        case Literal(value=bool()):
            return ResultType.CONDITION
        case Literal(value=str()):
            return ResultType.STRING
        case Literal() | Negative() | Calculation():
            return ResultType.NUMBER
    return ResultType.CONDITION
