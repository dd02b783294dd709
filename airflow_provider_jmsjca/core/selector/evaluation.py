"""Selector trees to closures over a message: built once, run for every message."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, TypeAlias, assert_never

from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.core.selector.like import like
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
from airflow_provider_jmsjca.core.selector.values import (
    Compared,
    Truth,
    calculation,
    converting_comparison,
    is_number,
    strict_comparison,
)
from airflow_provider_jmsjca.core.value_types import fits

Value: TypeAlias = Callable[[JmsMessage], Any]
Condition: TypeAlias = Callable[[JmsMessage], Truth]

_HEADERS: dict[str, Value] = {
    "JMSDeliveryMode": lambda message: "PERSISTENT" if message.persistent else "NON_PERSISTENT",
    "JMSPriority": attrgetter("priority"),
    "JMSMessageID": attrgetter("message_id"),
    "JMSTimestamp": attrgetter("timestamp"),
    "JMSCorrelationID": attrgetter("correlation_id"),
    "JMSType": attrgetter("type"),
}


class Compiler:
    """Compiles trees for one way of comparing.

    Args:
        strings_as_numbers: Compare as ActiveMQ does where all properties are strings; otherwise types are
            strict.
    """

    def __init__(self, *, strings_as_numbers: bool) -> None:
        self._converting = strings_as_numbers

    def condition(self, node: Node) -> Condition:
        """Return a function that tells whether a message fulfils the condition; `None` is unknown."""
        match node:
            case And():
                return _all([self.condition(operand) for operand in node.operands])
            case Or():
                return _any([self.condition(operand) for operand in node.operands])
            case Not():
                return _not(self.condition(node.operand))
            case Compare():
                return self._compare(node)
            case Between():
                return self._between(node)
            case Like():
                return self._like(node)
            case In():
                return _in(_property(node.identifier.name), frozenset(node.strings), negated=node.negated)
            case IsNull():
                return _is_null(_property(node.identifier.name), negated=node.negated)
            case Literal() | Identifier() | Negative() | Calculation():
                return self._truth(self.value(node))
            case _:
                assert_never(node)

    def value(self, node: Node) -> Value:
        """Return a function that reads or calculates a value; `None` is unknown."""
        match node:
            case Literal():
                constant = node.value
                return lambda _: constant
            case Identifier():
                return _property(node.name)
            case Negative():
                return _negative(self.value(node.operand))
            case Calculation():
                steps = [
                    (calculation(operator, real_division=self._converting), self.value(operand))
                    for operator, operand in node.rest
                ]
                return _calculation(self.value(node.first), steps)
            case _:
                return self.condition(node)

    def _comparison(self, comparison: Comparison) -> Compared:
        return converting_comparison(comparison) if self._converting else strict_comparison(comparison)

    def _compare(self, node: Compare) -> Condition:
        compare = self._comparison(node.operator)
        left = self.value(node.left)
        if isinstance(node.right, Literal):
            constant = node.right.value
            if not self._converting and isinstance(node.left, Identifier) and isinstance(constant, str):
                return _text_equality(left, constant, negated=node.operator is Comparison.NOT_EQUAL)
            return lambda message: compare(left(message), constant)
        right = self.value(node.right)
        return lambda message: compare(left(message), right(message))

    def _between(self, node: Between) -> Condition:
        value, low, high = self.value(node.value), self.value(node.low), self.value(node.high)
        below = self._comparison(Comparison.LESS)
        above = self._comparison(Comparison.GREATER)
        from_low = self._comparison(Comparison.GREATER_OR_EQUAL)
        to_high = self._comparison(Comparison.LESS_OR_EQUAL)
        if node.negated:
            return _any(
                [
                    lambda message: below(value(message), low(message)),
                    lambda message: above(value(message), high(message)),
                ]
            )
        return _all(
            [
                lambda message: from_low(value(message), low(message)),
                lambda message: to_high(value(message), high(message)),
            ]
        )

    def _like(self, node: Like) -> Condition:
        read = _property(node.identifier.name)
        matches = like(node.pattern, node.escape)
        negated = node.negated
        unlike_type = negated if self._converting else None

        def evaluate(message: JmsMessage) -> Truth:
            value = read(message)
            if isinstance(value, str):
                return matches(value) is not negated
            return None if value is None else unlike_type

        return evaluate

    def _truth(self, read: Value) -> Condition:
        unlike_type = False if self._converting else None

        def evaluate(message: JmsMessage) -> Truth:
            value = read(message)
            if isinstance(value, bool):
                return value
            return None if value is None else unlike_type

        return evaluate


def _property(name: str) -> Value:
    header = _HEADERS.get(name)
    if header is not None:
        return header
    if name == "JMSXDeliveryCount":
        # The provider sets this one; transports report it as an attribute.
        return lambda message: message.properties.get(name, message.delivery_count)
    return lambda message: message.properties.get(name)


def _text_equality(read: Value, constant: str, *, negated: bool) -> Condition:
    def evaluate(message: JmsMessage) -> Truth:
        value = read(message)
        if isinstance(value, str):
            return (value == constant) is not negated
        return None

    return evaluate


def _in(read: Value, strings: frozenset[str], *, negated: bool) -> Condition:
    def evaluate(message: JmsMessage) -> Truth:
        value = read(message)
        return (value in strings) is not negated if isinstance(value, str) else None

    return evaluate


def _is_null(read: Value, *, negated: bool) -> Condition:
    return lambda message: (read(message) is None) is not negated


def _negative(read: Value) -> Value:
    def evaluate(message: JmsMessage) -> int | float | None:
        value: object = read(message)
        if not is_number(value):
            return None
        return -value if isinstance(value, float) or fits(-value, 64) else None

    return evaluate


def _calculation(first: Value, steps: list[tuple[Callable[[Any, Any], int | float | None], Value]]) -> Value:
    def evaluate(message: JmsMessage) -> int | float | None:
        result: int | float | None = first(message)
        for calculate, operand in steps:
            if result is None:
                return None
            result = calculate(result, operand(message))
        return result

    return evaluate


def _not(condition: Condition) -> Condition:
    def evaluate(message: JmsMessage) -> Truth:
        truth = condition(message)
        return None if truth is None else not truth

    return evaluate


def _all(conditions: list[Condition]) -> Condition:
    def evaluate(message: JmsMessage) -> Truth:
        result: Truth = True
        for condition in conditions:
            truth = condition(message)
            if truth is False:
                return False
            if truth is None:
                result = None
        return result

    return evaluate


def _any(conditions: list[Condition]) -> Condition:
    def evaluate(message: JmsMessage) -> Truth:
        result: Truth = False
        for condition in conditions:
            truth = condition(message)
            if truth:
                return True
            if truth is None:
                result = None
        return result

    return evaluate
