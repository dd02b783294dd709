"""How selectors compare and calculate: Java numbers, strict types, or strings read as numbers.

Everywhere `None` stands for unknown, which is also what a missing property is.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, TypeAlias, TypeGuard

from airflow_provider_jmsjca.core.java_numbers import java_double, java_integer
from airflow_provider_jmsjca.core.selector.syntax import Arithmetic, Comparison
from airflow_provider_jmsjca.core.value_types import fits

Truth: TypeAlias = bool | None
Compared: TypeAlias = Callable[[Any, Any], Truth]

_OPERATORS: dict[Comparison, Callable[[Any, Any], bool]] = {
    Comparison.EQUAL: operator.eq,
    Comparison.NOT_EQUAL: operator.ne,
    Comparison.LESS: operator.lt,
    Comparison.LESS_OR_EQUAL: operator.le,
    Comparison.GREATER: operator.gt,
    Comparison.GREATER_OR_EQUAL: operator.ge,
}


def is_number(value: object) -> TypeGuard[int | float]:
    """Tell whether the value is a number (a boolean is none)."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def strict_comparison(comparison: Comparison) -> Compared:
    """Return the comparison of JMS: unlike types make it unknown, and only numbers have an order.

    Exact and approximate numbers compare with each other.

    Source: JMS 2.0 section 3.8.1.2, which calls the comparison of unlike types false; unknown differs from
    that only below NOT, where it keeps a message from matching because a property has an unexpected type.
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


def converting_comparison(comparison: Comparison) -> Compared:
    """Return the comparison of ActiveMQ for STOMP, whose properties are all strings.

    A string beside a number is read as that number's type: as an integer beside an integer, as a double
    beside a double; one that can't be read makes the comparison false (and `<>`, its opposite, true). Beside
    a boolean the string `true`, in any case, is true and every other string false. Two strings have an order:
    that of their UTF-16 units. A missing value makes it unknown.
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
        return java_integer(text, 32 if fits(beside, 32) else 64)
    return None


def calculation(arithmetic: Arithmetic, *, real_division: bool) -> Callable[[Any, Any], int | float | None]:
    """Return an arithmetic operator with Java's promotion: exact with exact stays exact.

    The result is unknown with anything that is no number, for an exact division by zero, and where a Java
    long can't hold an exact result (never a wrapped number). Approximate results follow IEEE 754: division by
    zero gives an infinity or NaN.

    Args:
        arithmetic: Which operator.
        real_division: Divide exact numbers as doubles, as ActiveMQ does; otherwise as Java, towards zero.

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
        return None if isinstance(result, int) and not fits(result, 64) else result

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
