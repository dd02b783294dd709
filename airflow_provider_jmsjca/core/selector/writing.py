"""Writes selector trees as text that every broker interprets as JMS does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, Final, assert_never

from airflow_provider_jmsjca.core.message.property_reader import java_float_text
from airflow_provider_jmsjca.core.selector.syntax import (
    And,
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
)

_MIRRORED = {
    Comparison.LESS: Comparison.GREATER,
    Comparison.LESS_OR_EQUAL: Comparison.GREATER_OR_EQUAL,
    Comparison.GREATER: Comparison.LESS,
    Comparison.GREATER_OR_EQUAL: Comparison.LESS_OR_EQUAL,
}

_EXACT_DOUBLES: Final = 2**53


def with_alternate_names(node: Node, others: Mapping[str, str]) -> Node:
    """Return a selector that reads some properties under another name, or else under their own name.

    Each property in `others` that the selector uses doubles the size of the result.

    Args:
        node: The selector.
        others: Name of a property -> its other name, which is read first.
    """
    for name in dict.fromkeys(names_in(node)):
        if other := others.get(name):
            there = Identifier(other)
            node = Or(
                (
                    And((IsNull(identifier=there, negated=True), _renamed(node, name, other))),
                    And((IsNull(identifier=there, negated=False), node)),
                )
            )
    return node


def names_in(node: object) -> Iterator[str]:
    """Yield the name of each identifier, once per occurrence."""
    if isinstance(node, Identifier):
        yield node.name
    elif isinstance(node, tuple):
        for each in node:
            yield from names_in(each)
    elif is_dataclass(node):
        for field in fields(node):
            yield from names_in(getattr(node, field.name))


def _renamed(node: Any, name: str, other: str) -> Any:
    if isinstance(node, Identifier):
        return Identifier(other) if node.name == name else node
    if isinstance(node, tuple):
        return tuple(_renamed(each, name, other) for each in node)
    if is_dataclass(node) and not isinstance(node, type):
        return replace(
            node, **{field.name: _renamed(getattr(node, field.name), name, other) for field in fields(node)}
        )
    return node


def with_doubles(node: Any) -> Any:
    """Return a selector with doubles for the whole numbers beside properties: `n > 2` becomes `n > 2.0`.

    Brokers convert the text of a property to the literal's type of number. Compared with `2` they can't
    convert `3.5`, so a message with a number sent as text over STOMP would not be selected. For properties
    that are numbers, `2` and `2.0` are equivalent. Numbers without an exact double are kept.
    """
    match node:
        case Compare(left=left, right=right):
            return replace(node, left=_beside(right, left), right=_beside(left, right))
        case Between(value=value, low=low, high=high):
            return replace(node, low=_beside(value, low), high=_beside(value, high))
        case Not(operand):
            return Not(with_doubles(operand))
        case And(operands) | Or(operands):
            return replace(node, operands=tuple(map(with_doubles, operands)))
    return node


def _beside(other: Node, node: Node) -> Node:
    if not isinstance(other, Identifier) or other.name.startswith("JMS"):
        return node
    match node:
        case Literal(int(value)) if not isinstance(value, bool) and abs(value) < _EXACT_DOUBLES:
            return Literal(float(value))
    return node


def write(node: Node) -> str:  # noqa: C901, PLR0912 - one case for each kind of node
    """Return an equivalent selector in the part of the grammar that brokers agree on.

    Every operand other than a literal or identifier is parenthesized, identifiers precede literals, and
    nothing is compared with NULL by `=`.
    """
    match node:
        case Or():
            return " OR ".join(map(_operand, node.operands))
        case And():
            return " AND ".join(map(_operand, node.operands))
        case Not():
            return f"NOT {_operand(node.operand)}"
        case Compare():
            return _compare(node)
        case Between():
            low, high = _operand(node.low), _operand(node.high)
            return f"{_operand(node.value)} {_not(node.negated)}BETWEEN {low} AND {high}"
        case Like():
            escape = "" if node.escape is None else f" ESCAPE {string_literal(node.escape)}"
            return f"{node.identifier.name} {_not(node.negated)}LIKE {string_literal(node.pattern)}{escape}"
        case In():
            strings = ", ".join(map(string_literal, node.strings))
            return f"{node.identifier.name} {_not(node.negated)}IN ({strings})"
        case IsNull():
            return f"{node.identifier.name} IS {_not(node.negated)}NULL"
        case Calculation():
            rest = "".join(f" {operator} {_operand(operand)}" for operator, operand in node.rest)
            return f"{_operand(node.first)}{rest}"
        case Negative():
            return f"- {_operand(node.operand)}"
        case Literal():
            return _literal(node.value)
        case Identifier():
            return node.name
        case _:
            assert_never(node)


def string_literal(text: str) -> str:
    """Return text as a selector literal, its single quotes doubled."""
    return "'" + text.replace("'", "''") + "'"


def _compare(node: Compare) -> str:
    left, operator, right = node.left, node.operator, node.right
    # Literals are moved to the right side. Otherwise ActiveMQ evaluates `3 <> missing` as true, and a boolean
    # literal before a text stops its deliveries.
    if isinstance(left, Literal) and not isinstance(right, Literal):
        left, operator, right = right, _MIRRORED.get(operator, operator), left
    return f"{_operand(left)} {operator} {_operand(right)}"


def _operand(node: Node) -> str:
    if isinstance(node, Identifier) or (isinstance(node, Literal) and not _is_negative(node.value)):
        return write(node)
    return f"({write(node)})"


def _is_negative(value: str | float) -> bool:
    return not isinstance(value, (str, bool)) and str(value).startswith("-")


def _literal(value: str | float) -> str:
    match value:
        case bool():
            return "TRUE" if value else "FALSE"
        case str():
            return string_literal(value)
        case int():
            return str(value)
    return java_float_text(value)


def _not(negated: bool) -> str:
    return "NOT " if negated else ""
