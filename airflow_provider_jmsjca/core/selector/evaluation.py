"""Compiles selector trees to closures over a message: built once, run for every message."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any, TypeAlias, TypeGuard, assert_never

from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.core.message.property_reader import java_double, java_integer
from airflow_provider_jmsjca.core.message.value_types import fits_in
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
)

_ANY_RUN = object()
_ANY_ONE = object()


def like(pattern: str, escape: str | None) -> Callable[[str], bool]:
    """Return a function that matches a text: `%` matches any run of characters, `_` any one character.

    The escape character makes a following `%`, `_` or escape character literal; before any other character it
    is literal itself.

    Source: JMS 2.0 section 3.8.1.2.
    """
    segments: list[list[object]] = [[]]
    for part in _parts(pattern, escape):
        if part is _ANY_RUN:
            segments.append([])
        else:
            segments[-1].append(part)
    head, *others = segments
    if not others:
        return _whole(head)
    *middle, tail = others
    return _anchored(head, [segment for segment in middle if segment], tail)


def _parts(pattern: str, escape: str | None) -> Iterator[object]:
    position = 0
    while position < len(pattern):
        character = pattern[position]
        following = pattern[position + 1 : position + 2]
        if character == escape and following and following in {"%", "_", escape}:
            yield following
            position += 1
        elif character == "%":
            yield _ANY_RUN
        elif character == "_":
            yield _ANY_ONE
        else:
            yield character
        position += 1


def _expression(segment: list[object]) -> str:
    return "".join("." if part is _ANY_ONE else re.escape(str(part)) for part in segment)


def _whole(segment: list[object]) -> Callable[[str], bool]:
    if _ANY_ONE not in segment:
        return "".join(map(str, segment)).__eq__
    match = re.compile(_expression(segment), re.DOTALL).fullmatch
    return lambda text: match(text) is not None


def _anchored(head: list[object], middle: list[list[object]], tail: list[object]) -> Callable[[str], bool]:
    starts = re.compile(_expression(head), re.DOTALL).match
    finders = [re.compile(_expression(segment), re.DOTALL).search for segment in middle]
    ends = re.compile(_expression(tail), re.DOTALL).fullmatch
    shortest = len(head) + len(tail)
    tail_length = len(tail)

    def matches(text: str) -> bool:
        if len(text) < shortest or starts(text) is None:
            return False
        stop = len(text) - tail_length
        if ends(text, stop) is None:
            return False
        position = len(head)
        # No backtracking is needed: the leftmost match of a segment leaves the most text for later segments.
        for find in finders:
            found = find(text, position, stop)
            if found is None:
                return False
            position = found.end()
        return True

    return matches


Truth: TypeAlias = bool | None
CompareFunction: TypeAlias = Callable[[Any, Any], Truth]

_OPERATORS: dict[Comparison, Callable[[Any, Any], bool]] = {
    Comparison.EQUAL: operator.eq,
    Comparison.NOT_EQUAL: operator.ne,
    Comparison.LESS: operator.lt,
    Comparison.LESS_OR_EQUAL: operator.le,
    Comparison.GREATER: operator.gt,
    Comparison.GREATER_OR_EQUAL: operator.ge,
}


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether the value is a number; a boolean is not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def strict_comparison(comparison: Comparison) -> CompareFunction:
    """Return the comparison of JMS: it is unknown for unlike types, and only numbers have an order.

    Exact and approximate numbers compare with each other.

    JMS calls the comparison of unlike types false. The difference shows only below NOT: a message is not
    selected merely because a property has an unexpected type.

    Source: JMS 2.0 section 3.8.1.2.
    """
    operate = _OPERATORS[comparison]
    equality = comparison in {Comparison.EQUAL, Comparison.NOT_EQUAL}

    def compare(left: Any, right: Any) -> Truth:
        if is_number(left) and is_number(right):
            return operate(left, right)
        same = (isinstance(left, str) and isinstance(right, str)) or (
            isinstance(left, bool) and isinstance(right, bool)
        )
        return operate(left, right) if equality and same else None

    return compare


def converting_comparison(comparison: Comparison) -> CompareFunction:
    """Return ActiveMQ's comparison for STOMP, where all properties are strings.

    A string compared with a number is converted to the number's type, integer or double. If the conversion
    fails, the comparison is false, and `<>`, its opposite, true. Compared with a boolean, the string `true`
    in any case is true and every other string false. Two strings are ordered by their UTF-16 units. A missing
    value makes the result unknown.
    """
    if comparison is Comparison.NOT_EQUAL:
        equal = converting_comparison(Comparison.EQUAL)

        def compare_unequal(left: Any, right: Any) -> Truth:
            truth = equal(left, right)
            return None if truth is None else not truth

        return compare_unequal
    operate = _OPERATORS[comparison]

    def compare(left: Any, right: Any) -> Truth:
        if left is None or right is None:
            return None
        if isinstance(left, str):
            if isinstance(right, str):
                if comparison is Comparison.EQUAL:
                    return bool(left == right)
                return operate(_utf16(left), _utf16(right))
            left = _converted(left, right)
        elif isinstance(right, str):
            right = _converted(right, left)
        comparable = isinstance(left, (int, float)) and isinstance(right, (int, float))
        if not comparable or isinstance(left, bool) != isinstance(right, bool):
            return False
        return operate(left, right)

    return compare


def _utf16(text: str) -> bytes:
    return text.encode("utf-16-be", "surrogatepass")


def _converted(text: str, beside: object) -> bool | int | float | None:
    if isinstance(beside, bool):
        return text.lower() == "true"
    if isinstance(beside, float):
        return java_double(text)
    if isinstance(beside, int):
        return java_integer(text, 32 if fits_in(beside, 32) else 64)
    return None


def calculation(arithmetic: Arithmetic, *, real_division: bool) -> Callable[[Any, Any], int | float | None]:
    """Return an arithmetic operator with Java's promotion: two exact numbers give an exact result.

    The result is unknown if an operand is not a number, and for an exact division by zero. An exact result
    that a Java long can't hold is unknown too, and doesn't wrap around. Approximate results follow IEEE 754:
    division by zero gives an infinity or NaN.

    Args:
        arithmetic: The operator.
        real_division: Whether to divide exact numbers as doubles, as ActiveMQ does; otherwise as Java does,
            towards zero.

    Source: JMS 2.0 section 3.8.1.2.
    """
    match arithmetic:
        case Arithmetic.PLUS:
            return _guarded(operator.add)
        case Arithmetic.MINUS:
            return _guarded(operator.sub)
        case Arithmetic.TIMES:
            return _guarded(operator.mul)
        case Arithmetic.DIVIDED_BY:
            return _guarded(_double_division if real_division else _java_division)


def _guarded(operate: Callable[[Any, Any], int | float | None]) -> Callable[[Any, Any], int | float | None]:
    def calculate(left: Any, right: Any) -> int | float | None:
        if not (is_number(left) and is_number(right)):
            return None
        result = operate(left, right)
        return None if isinstance(result, int) and not fits_in(result, 64) else result

    return calculate


def _java_division(left: float, right: float) -> int | float | None:
    if isinstance(left, int) and isinstance(right, int):
        if right == 0:
            return None
        quotient = abs(left) // abs(right)
        return quotient if (left < 0) == (right < 0) else -quotient
    return _double_division(left, right)


def _double_division(left: float, right: float) -> float:
    dividend, divisor = float(left), float(right)
    if divisor:
        return dividend / divisor
    if math.isnan(dividend) or dividend == 0:
        return math.nan
    return math.copysign(math.inf, dividend) * math.copysign(1.0, divisor)


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
    """Compiles selector trees.

    Args:
        strings_as_numbers: Whether to compare as ActiveMQ does if all properties are strings; otherwise types
            are strict.
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

    def _comparison(self, comparison: Comparison) -> CompareFunction:
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
        return -value if isinstance(value, float) or fits_in(-value, 64) else None

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
