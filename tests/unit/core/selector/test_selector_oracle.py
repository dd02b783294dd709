"""Selectors against an oracle: generated trees, written as text, and judged by the slowest plain evaluator.

The oracle knows nothing of the code under test: it follows the tables of JMS 2.0 section 3.8.1 literally.
"""

from __future__ import annotations

import math
import os
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.core.selector import Selector
from airflow_provider_jmsjca.errors import ConfigurationError
from tests.unit.core.texts import ANY_TEXT

EXAMPLES = int(os.environ.get("JMSJCA_EXAMPLES", "300"))

NAMES = ("a", "b", "c", "absent")
LONG = range(-(2**63), 2**63)

letters = st.text(alphabet="ab%_!'\n", max_size=5)
integers = st.integers(-3, 3) | st.sampled_from([2**63 - 1, -(2**63), 2**31])
doubles = st.sampled_from([0.0, 0.5, -0.5, 1.0, 2.0, 1e10, 1e308])
properties = st.fixed_dictionaries(
    {}, optional={name: integers | doubles | letters | st.booleans() | st.none() for name in "abc"}
)

names = st.sampled_from(NAMES).map(lambda name: ("name", name))
numbers = (integers | doubles).map(lambda value: ("literal", value))
texts = letters.map(lambda value: ("literal", value))
truths = st.booleans().map(lambda value: ("literal", value))
numeric = st.recursive(
    names | numbers,
    lambda inner: st.one_of(
        st.tuples(st.just("negative"), inner),
        st.tuples(st.just("calculate"), st.sampled_from("+-*/"), inner, inner),
    ),
    max_leaves=5,
)
flags = st.booleans()
predicates = st.one_of(
    st.tuples(st.just("order"), st.sampled_from(["<", "<=", ">", ">="]), numeric, numeric),
    st.tuples(st.just("equal"), flags, numeric | texts | truths, numeric | texts | truths),
    st.tuples(st.just("between"), flags, numeric, numeric, numeric),
    st.tuples(st.just("in"), flags, names, st.lists(letters, min_size=1, max_size=3)),
    st.tuples(st.just("like"), flags, names, letters, st.none() | st.just("!")),
    st.tuples(st.just("null"), flags, names),
    names,
    truths,
)
conditions = st.recursive(
    predicates,
    lambda inner: st.one_of(
        st.tuples(st.just("not"), inner),
        st.tuples(st.sampled_from(["and", "or"]), inner, inner),
    ),
    max_leaves=6,
)


def written(tree: Any) -> str:  # noqa: C901, PLR0912 - one case for each kind of node
    match tree:
        case ("name", name):
            return str(name)
        case ("literal", bool(value)):
            return str(value).upper()
        case ("literal", str(value)):
            return quoted(value)
        case ("literal", value):
            return repr(value)
        case ("negative", operand):
            return f"-({written(operand)})"
        case ("calculate" | "order", operator, left, right):
            return f"({written(left)}) {operator} ({written(right)})"
        case ("equal", negated, left, right):
            return f"({written(left)}) {'<>' if negated else '='} ({written(right)})"
        case ("between", negated, value, low, high):
            word = "NOT BETWEEN" if negated else "between"
            return f"({written(value)}) {word} ({written(low)}) AND ({written(high)})"
        case ("in", negated, name, strings):
            word = "not IN" if negated else "IN"
            return f"{written(name)} {word} ({', '.join(map(quoted, strings))})"
        case ("like", negated, name, pattern, escape):
            tail = f" escape {quoted(escape)}" if escape else ""
            return f"{written(name)} {'NOT LIKE' if negated else 'Like'} {quoted(pattern)}{tail}"
        case ("null", negated, name):
            return f"{written(name)} IS {'NOT ' if negated else ''}NULL"
        case ("not", operand):
            return f"NOT ({written(operand)})"
        case (word, left, right):
            return f"({written(left)}) {word} ({written(right)})"
    raise AssertionError(tree)


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def is_number(value: Any) -> bool:
    return type(value) in {int, float}


def judged(tree: Any, values: dict[str, Any]) -> Any:  # noqa: C901, PLR0912 - one case for each kind of node
    match tree:
        case ("name", name):
            return values.get(name)
        case ("literal", value):
            return value
        case ("negative", operand):
            return calculated("-", 0, judged(operand, values), negation=True)
        case ("calculate", operator, left, right):
            return calculated(operator, judged(left, values), judged(right, values))
        case ("order", operator, left, right):
            return ordered(operator, judged(left, values), judged(right, values))
        case ("equal", negated, left, right):
            return equal(judged(left, values), judged(right, values), negated)
        case ("between", negated, value, low, high):
            inside = ("and", ("order", ">=", value, low), ("order", "<=", value, high))
            return judged(("not", inside) if negated else inside, values)
        case ("in", negated, name, strings):
            found = judged(name, values)
            return (found in strings) != negated if type(found) is str else None
        case ("like", negated, name, pattern, escape):
            found = judged(name, values)
            return alike(found, pattern, escape) != negated if type(found) is str else None
        case ("null", negated, name):
            return (judged(name, values) is None) != negated
        case ("not", operand):
            return {True: False, False: True, None: None}[truth(operand, values)]
        case ("and", left, right):
            both = {truth(left, values), truth(right, values)}
            return False if False in both else None if None in both else True
        case ("or", left, right):
            either = {truth(left, values), truth(right, values)}
            return True if True in either else None if None in either else False
    raise AssertionError(tree)


def truth(tree: Any, values: dict[str, Any]) -> bool | None:
    value = judged(tree, values)
    return value if type(value) is bool else None


def equal(left: Any, right: Any, negated: bool) -> bool | None:
    if left is None or right is None:
        return None
    like_types = type(left) is type(right) or (is_number(left) and is_number(right))
    return (left == right) != negated if like_types else None


def ordered(operator: str, left: Any, right: Any) -> bool | None:
    if not (is_number(left) and is_number(right)):
        return None
    if math.isnan(left) or math.isnan(right):
        return False
    return {"<": left < right, ">": left > right, "<=": left <= right, ">=": left >= right}[operator]


def calculated(operator: str, left: Any, right: Any, *, negation: bool = False) -> Any:
    if not (is_number(left) and is_number(right)):
        return None
    if type(left) is int and type(right) is int:
        if operator == "/" and right == 0:
            return None
        exact = {"+": left + right, "-": left - right, "*": left * right}
        if operator == "/":
            quotient = abs(left) // abs(right)
            exact["/"] = quotient if left * right >= 0 else -quotient
        return exact[operator] if exact[operator] in LONG else None
    if negation:
        return -float(right)
    x, y = float(left), float(right)
    if operator == "/" and y == 0:
        if math.isnan(x) or x == 0:
            return math.nan
        return math.inf if (math.copysign(1, x) == math.copysign(1, y)) else -math.inf
    return {"+": lambda: x + y, "-": lambda: x - y, "*": lambda: x * y, "/": lambda: x / y}[operator]()


def alike(text: str, pattern: str, escape: str | None) -> bool:
    if not pattern:
        return not text
    if escape and pattern[0] == escape and pattern[1:2] in {"%", "_", escape}:
        return text[:1] == pattern[1] and alike(text[1:], pattern[2:], escape)
    if pattern[0] == "%":
        return any(alike(text[start:], pattern[1:], escape) for start in range(len(text) + 1))
    return bool(text) and pattern[0] in {"_", text[0]} and alike(text[1:], pattern[1:], escape)


@given(conditions, properties)
@settings(max_examples=EXAMPLES, deadline=None)
def test_the_evaluator_agrees_with_the_oracle(tree: Any, values: dict[str, Any]) -> None:
    """JMS 2.0 section 3.8.1."""
    expected = truth(tree, values)
    message = JmsMessage.empty(values)
    text = written(tree)
    assert Selector.parse(text).matches(message) is (expected is True)
    assert Selector.parse(f"NOT ({text})").matches(message) is (expected is False)


@given(conditions, properties)
@settings(max_examples=EXAMPLES, deadline=None)
def test_the_portable_spelling_means_the_same(tree: Any, values: dict[str, Any]) -> None:
    selector = Selector.parse(written(tree))
    respelled = Selector.parse(selector.portable)
    assert respelled.matches(JmsMessage.empty(values)) is selector.matches(JmsMessage.empty(values))


@given(conditions, st.dictionaries(st.sampled_from("abc"), st.text(max_size=5)))
@settings(max_examples=EXAMPLES, deadline=None)
def test_reading_strings_as_numbers_never_fails(tree: Any, values: dict[str, str]) -> None:
    message = JmsMessage(body_kind=JmsMessage.empty().body_kind, properties=values)
    selector = Selector.parse(written(tree), strings_as_numbers=True)
    negation = Selector.parse(f"NOT ({written(tree)})", strings_as_numbers=True)
    assert not (selector.matches(message) and negation.matches(message))


pieces = st.sampled_from(
    [
        *(
            "a",
            "JMSType",
            "JMSDestination",
            "$x",
            "é",
            "NULL",
            "NOT",
            "AND",
            "OR",
            "BETWEEN",
            "LIKE",
            "IN",
            "IS",
        ),
        *("ESCAPE", "TRUE", "(", ")", ",", "=", "<>", "<", ">=", "+", "-", "*", "/", "'x'", "'", "''", '"'),
        *(
            "1",
            "1.",
            ".5",
            "1e9",
            "1e999",
            "0x",
            "0xF",
            "09",
            "5L",
            "9" * 30,
            "${a}",
            "$$",
            "%",
            "\x00",
            "\ud800",
        ),
    ]
)


@given(ANY_TEXT | st.lists(pieces, max_size=40).map(" ".join) | st.lists(pieces, max_size=15).map("".join))
@settings(max_examples=EXAMPLES, deadline=None)
def test_any_text_is_a_selector_or_a_configuration_error(text: str) -> None:
    try:
        selector = Selector.parse(text)
    except ConfigurationError:
        return
    assert str(selector) == text
    assert selector.matches(JmsMessage.empty()) in {True, False}


@given(
    st.text(alphabet="ab%_!", max_size=12),
    st.text(alphabet="ab%_!", max_size=8),
    st.sampled_from([None, "!"]),
)
@settings(max_examples=EXAMPLES, deadline=None)
def test_like_agrees_with_the_oracle(text: str, pattern: str, escape: str | None) -> None:
    assume(text)
    tail = f" ESCAPE '{escape}'" if escape else ""
    selector = Selector.parse(f"s LIKE '{pattern}'{tail}")
    assert selector.matches(JmsMessage.empty({"s": text})) is alike(text, pattern, escape)
