"""Message selectors as JMS 2.0 section 3.8 says, types strict; tables written by hand."""

from __future__ import annotations

import itertools
import pickle
from typing import Any

import pytest

from airflow_provider_jmsjca.core.message import JmsMessage, PropertyType
from airflow_provider_jmsjca.core.selector import Selector
from airflow_provider_jmsjca.errors import CapabilityError, ConfigurationError

MESSAGE = JmsMessage.text(
    "body",
    {
        "i": 5,
        "big": 2**63 - 1,
        "low": -(2**63),
        "d": 2.5,
        "zero": 0,
        "s": "eu",
        "quote": "it's",
        "percent": "100%",
        "under": "a_b",
        "lines": "a\nb",
        "yes": True,
        "no": False,
        "digits": "5",
        "größe": 1,
        "$x": 2,
        "JMSXGroupID": "g",
        "JMS_vendor": 7,
        "nothing": None,
    },
    type="order",
    correlation_id="c1",
    message_id="ID:1",
    timestamp=1000,
    priority=7,
    persistent=False,
    delivery_count=3,
)

TRUE = (
    # Comparison
    "i = 5",
    "5 = i",
    "i <> 4",
    "i < 6",
    "i <= 5",
    "i > 4",
    "i >= 5",
    "i = 5.0",
    "d = 2.5",
    "d > 2",
    "i > d",
    "s = 'eu'",
    "'eu' = s",
    "s <> 'us'",
    "yes = TRUE",
    "no = FALSE",
    "yes <> no",
    "yes <> FALSE",
    "(i > 4) = TRUE",
    "quote = 'it''s'",
    "big = 9223372036854775807",
    "low = -9223372036854775808",
    "big > 9223372036854775806",
    # Literals in Java's forms
    "i = 5L",
    "i = 5l",
    "i = 0x5",
    "i = 0X05L",
    "i = 05",
    "2739128 = 012345670",
    "big = 0777777777777777777777",
    "low = -01000000000000000000000",
    "i = +5",
    "i = - -5",
    "i = 5.",
    "i = .5E1",
    "i = 5E0",
    "i = 50e-1",
    "i = 5f",
    "i = 5.0D",
    "zero = 0",
    "zero = -0.0",
    "zero = 00",
    "i < 7.",
    "i > .7",
    "i < 1E3",
    # Conditions
    "yes",
    "NOT no",
    "TRUE",
    "NOT FALSE",
    "yes AND NOT no",
    # Precedence: NOT, AND, OR; arithmetic before comparison; products before sums
    "TRUE OR TRUE AND FALSE",
    "NOT FALSE OR TRUE",
    "NOT i = 4",
    "NOT i = 4 AND i = 5",
    "i = 2 + 3 * 1",
    "i = (2 + 3) * 1",
    "i = 10 - 3 - 2",
    "i = 20 / 2 / 2",
    "-i = -5",
    "-i + 10 = 5",
    "2 - -3 = i",
    "2--3 = i",
    # Arithmetic: Java promotion
    "7 / 2 = 3",
    "-7 / 2 = -3",
    "7 / -2 = -3",
    "-1 / 1 = -1",
    "7 / 2.0 = 3.5",
    "1.0 / 0 > 1E308",
    "-1.0 / 0 < -1E308",
    "1 / 0.0 > 1E308",
    "big + 0.0 > 9E18",
    "1 / -0.0 < -1E308",
    "low + 1 < 0",
    "-big = low + 1",
    # BETWEEN, IN, LIKE, NULL
    "i BETWEEN 5 AND 5",
    "i BETWEEN 1 + 1 AND 2 * 3",
    "i NOT BETWEEN 6 AND 9",
    "d BETWEEN 2 AND 3 AND i = 5",
    "s IN ('us', 'eu')",
    "s NOT IN ('us')",
    "digits IN ('5')",
    "s LIKE 'eu'",
    "s LIKE 'e_'",
    "s LIKE '%u'",
    "s LIKE '%'",
    "s LIKE 'e%u'",
    "s LIKE '%e%u%'",
    "s NOT LIKE 'e'",
    "lines LIKE 'a_b'",
    "lines LIKE 'a%b'",
    "percent LIKE '100!%' ESCAPE '!'",
    "percent LIKE '100\\%' ESCAPE '\\'",
    "under LIKE 'a!_b' ESCAPE '!'",
    "quote LIKE 'it''s'",
    "s LIKE '!eu' ESCAPE '!' OR s = 'eu'",
    "missing IS NULL",
    "nothing IS NULL",
    "i IS NOT NULL",
    "JMSType IS NOT NULL",
    # J182 writes it so
    "missing = NULL",
    "i <> null",
    # Headers and names
    "JMSType = 'order'",
    "JMSCorrelationID = 'c1'",
    "JMSMessageID LIKE 'ID:%'",
    "JMSTimestamp = 1000",
    "JMSPriority BETWEEN 5 AND 9",
    "JMSDeliveryMode = 'NON_PERSISTENT'",
    "JMSXGroupID = 'g'",
    "JMSXDeliveryCount = 3",
    "JMS_vendor = 7",
    "größe = 1",
    "$x = 2",
    # Keywords in any case, white space of every kind
    "i Between 1 And 9 aNd s iN ('eu') OR missing Is nuLl",
    "\ti\n=\r\f5 ",
    # Blank selects everything
    "",
    " \t\n",
)

FALSE = (
    "i = 4",
    "i <> 5",
    "s = 'EU'",
    "s = 'eu '",
    "yes = FALSE",
    "NOT yes",
    "FALSE",
    "i NOT BETWEEN 5 AND 5",
    "i BETWEEN 6 AND 4",
    "s NOT IN ('eu', 'us')",
    "s NOT LIKE '%'",
    "s LIKE 'E%'",
    "s LIKE 'e'",
    "s LIKE ''",
    "s LIKE 'eu%u'",
    "s LIKE '%x%'",
    "s LIKE '%u%e%'",
    "under LIKE 'a!!b' ESCAPE '!'",
    "i IS NULL",
    "missing IS NOT NULL",
    "missing <> NULL",
    "TRUE AND FALSE OR FALSE",
    "(TRUE OR TRUE) AND FALSE",
    "7 / 2 = 3.5",
    # Neither more nor less than anything
    "0.0 / 0 > 0",
    "0.0 / 0 < 0",
    "0.0 / 0 / 0 > 0",
    "JMSDeliveryMode = 'PERSISTENT'",
)

UNKNOWN = (
    # A missing value
    "missing = 'x'",
    "S = 'eu'",
    "missing <> 'x'",
    "missing = missing",
    "missing > 1",
    "missing BETWEEN 1 AND 2",
    "missing NOT BETWEEN 1 AND 2",
    "missing IN ('x')",
    "missing NOT IN ('x')",
    "missing LIKE 'x'",
    "missing NOT LIKE 'x'",
    "missing",
    "missing + 1 = 2",
    "-missing = 2",
    "nothing = 0",
    # Unlike types
    "digits = 5",
    "digits <> 5",
    "digits > 4",
    "digits BETWEEN 4 AND 6",
    "i = '5'",
    "i <> '5'",
    "'5' = 5",
    "yes = 'true'",
    "yes = 1",
    "i = TRUE",
    "yes > 0",
    "s < missing",
    "s < digits",
    "yes <= yes",
    "i LIKE '5'",
    "i NOT LIKE '6'",
    "i IN ('5')",
    "i NOT IN ('6')",
    "i",
    "s",
    "s + 1 = 2",
    "1 + s = 2",
    "yes + 1 = 2",
    "-s = 1",
    # What a long can't hold
    "i / zero = 0",
    "i / 0 <> 0",
    "big + 1 > 0",
    "big * 2 > 0",
    "-low > 0",
    "low / -1 > 0",
)


@pytest.mark.parametrize("text", TRUE)
def test_selected(text: str) -> None:
    assert Selector.parse(text).matches(MESSAGE) is True


@pytest.mark.parametrize("text", FALSE)
def test_false(text: str) -> None:
    assert Selector.parse(text).matches(MESSAGE) is False
    assert Selector.parse(f"NOT ({text})").matches(MESSAGE) is True


@pytest.mark.parametrize("text", UNKNOWN)
def test_unknown_is_neither_true_nor_false(text: str) -> None:
    assert Selector.parse(text).matches(MESSAGE) is False
    assert Selector.parse(f"NOT ({text})").matches(MESSAGE) is False


@pytest.mark.parametrize(
    ("left", "right", "both", "either"),
    [
        ("TRUE", "TRUE", "T", "T"),
        ("TRUE", "FALSE", "F", "T"),
        ("TRUE", "u = 1", "U", "T"),
        ("FALSE", "TRUE", "F", "T"),
        ("FALSE", "FALSE", "F", "F"),
        ("FALSE", "u = 1", "F", "U"),
        ("u = 1", "TRUE", "U", "T"),
        ("u = 1", "FALSE", "F", "U"),
        ("u = 1", "u = 2", "U", "U"),
    ],
)
def test_the_tables_of_and_and_or(left: str, right: str, both: str, either: str) -> None:
    """JMS 2.0 tables 3-4 and 3-5."""

    def truth(text: str) -> str:
        if Selector.parse(text).matches(MESSAGE):
            return "T"
        return "F" if Selector.parse(f"NOT ({text})").matches(MESSAGE) else "U"

    assert truth(f"{left} AND {right}") == both
    assert truth(f"{left} OR {right}") == either


ERRORS = (
    ("i = ", 5, "the end of the selector", "a value"),
    ("(i = 1", 7, "the end of the selector", "')'"),
    ("i = 1)", 6, "')'", "an operator, or the end"),
    ("()", 2, "')'", "an identifier, a literal"),
    ("AND i = 1", 1, "'AND'", "an identifier, a literal, '(' or NOT"),
    ("i = 1 AND", 10, "the end of the selector", "an identifier, a literal"),
    ("i = = 1", 5, "'='", "a value"),
    ("i = 1 = 2", 7, "'='", "comparisons can't be chained"),
    ("i = 1 j = 2", 7, "'j'", "an operator, or the end"),
    ("i == 1", 3, "'=='", "="),
    ("i != 1", 3, "'!='", "<>"),
    ('s = "eu"', 5, "'\"'", "single quotes around text"),
    ("i = 1 && s = 'x'", 7, "'&&'", "AND"),
    ("i = 1 # no", 7, "'#'", "an identifier, literal or operator"),
    ("s = 'eu", 5, "a string literal that isn't closed", "a second single quote"),
    ("s = 'it's'", 10, "a string literal that isn't closed", "a second single quote"),
    ("s > 'a'", 5, "\"'a'\"", "a number here, not text"),
    ("'a' < s", 1, "\"'a'\"", "a number here, not text"),
    ("yes > TRUE", 7, "'TRUE'", "a number here, not a condition"),
    ("s BETWEEN 'a' AND 'b'", 11, "\"'a'\"", "a number here, not text"),
    ("i + 'x' = 1", 5, "\"'x'\"", "a number here, not text"),
    ("5", 1, "'5'", "a condition, not a number"),
    ("'x'", 1, "\"'x'\"", "a condition, not text"),
    ("NOT 5", 5, "'5'", "a condition, not a number"),
    ("i = 1 OR 2 + 3", 10, "'2'", "a condition, not a number"),
    ("i = NOT TRUE", 5, "'NOT'", "a value"),
    ("s LIKE 5", 8, "'5'", "a string literal"),
    ("s LIKE t", 8, "'t'", "a string literal"),
    ("s LIKE 'x' ESCAPE 'ab'", 19, "\"'ab'\"", "a string literal of one character"),
    ("s LIKE 'x' ESCAPE ''", 19, "\"''\"", "a string literal of one character"),
    ("'s' LIKE 's'", 1, "\"'s'\"", "an identifier in front of LIKE"),
    ("i + 1 IS NULL", 1, "'i'", "an identifier in front of IS NULL"),
    ("5 IN ('5')", 1, "'5'", "an identifier in front of IN"),
    ("s IN ()", 7, "')'", "a string literal"),
    ("s IN ('a' 'b')", 11, "\"'b'\"", "',' or ')'"),
    ("s IN (1)", 7, "'1'", "a string literal"),
    ("s IN 'a'", 6, "\"'a'\"", "'('"),
    ("s NOT 'a'", 7, "\"'a'\"", "BETWEEN, LIKE or IN after NOT"),
    ("i IS 5", 6, "'5'", "'NULL'"),
    ("i BETWEEN 1 OR 2", 13, "'OR'", "'AND'"),
    ("NULL = 5", 1, "'NULL'", "an identifier, a literal"),
    ("5 = NULL", 1, "'5'", "an identifier in front of = NULL"),
    ("i > NULL", 5, "'NULL'", "a value"),
    ("i = 9223372036854775808", 5, "'9223372036854775808'", "range of a Java long"),
    ("i = -9223372036854775809", 6, "'9223372036854775809'", "range of a Java long"),
    (f"i = -{'9' * 23}", 6, f"'{'9' * 23}'", "range of a Java long"),
    ("i = 0x8000000000000000", 5, "'0x8000000000000000'", "range of a Java long"),
    ("i = 1E400", 5, "'1E400'", "range of a Java double"),
    ("i = 08", 5, "'08'", "an octal number"),
    ("i = 5x", 6, "'x'", "a blank or operator after the number"),
    ("i = 0xG", 6, "'x'", "a blank or operator after the number"),
    ("JMSDestination = 'x'", 1, "'JMSDestination'", "one of the headers JMSCorrelationID"),
    ("JMSExpiration > 1", 1, "'JMSExpiration'", "one of the headers"),
    ("jmsType = 'x' AND JMStype = 'x'", 19, "'JMStype'", "one of the headers"),
    ("s = ${region}", 5, "'${'", "no parameter"),
    ("a\u0000b = 1", 2, "'\\x00'", "an identifier, literal or operator"),
)


@pytest.mark.parametrize(("text", "position", "found", "expected"), ERRORS)
def test_errors_say_where_what_and_what_was_expected(
    text: str, position: int, found: str, expected: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Selector.parse(text)
    shown = text.replace("\0", " ")
    first = str(caught.value).removesuffix(f": {shown[: position - 1]}«»{shown[position - 1 :]}")
    assert first != str(caught.value)
    assert first.startswith(f"message selector, position {position}: found {found}, expected ")
    assert expected in first.partition(", expected ")[2]


def test_a_long_selector_is_shown_in_part() -> None:
    with pytest.raises(ConfigurationError) as caught:
        Selector.parse("a = 1 AND " * 50 + "b = ? AND " + "c = 1 AND " * 50 + "TRUE")
    assert str(caught.value).endswith(f": …1 AND {'a = 1 AND ' * 4}b = «»? AND c = 1 AND c = 1 AND…")


@pytest.mark.parametrize(("length", "shown"), [(40, "j" * 40), (41, "j" * 40 + "…")])
def test_a_long_token_is_shown_in_part(length: int, shown: str) -> None:
    with pytest.raises(ConfigurationError, match=f"found '{shown}', expected"):
        Selector.parse(f"i = 1 {'j' * length}")


@pytest.mark.parametrize(
    "text",
    [
        "(" * 100 + "TRUE" + ")" * 100,
        "(" * 5000 + "TRUE" + ")" * 5000,
        "(TRUE) AND " * 50 + "(" * 100 + "TRUE" + ")" * 100,
        "NOT " * 5000 + "TRUE",
        "i = " + "- " * 5000 + "5",
        "(i = 1 OR " * 5000 + "TRUE" + ")" * 5000,
    ],
)
def test_deep_nesting_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="at most 100 levels of nesting"):
        Selector.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "(" * 99 + "TRUE" + ")" * 99,
        "FALSE OR " * 20_000 + "TRUE",
        "TRUE AND " * 20_000 + "TRUE",
        "i = 5" + " + 0" * 20_000,
        "s IN (" + "'x', " * 20_000 + "'eu')",
        "s = 'eu' OR s = '" + "x" * 100_000 + "'",
    ],
)
def test_long_selectors_are_fine(text: str) -> None:
    assert Selector.parse(text).matches(MESSAGE)


def test_no_pattern_takes_long() -> None:
    message = JmsMessage.empty({"s": "a" * 20_000})
    assert not Selector.parse("s LIKE '" + "%a" * 30 + "%b'").matches(message)
    assert not Selector.parse("s LIKE '" + "%a_" * 30 + "b'").matches(message)


@pytest.mark.parametrize("text", [None, b"i = 1", 5])
def test_what_is_no_text_is_refused(text: Any) -> None:
    with pytest.raises(ConfigurationError, match="expected text, not"):
        Selector.parse(text)


def test_nothing_happens_for_values_a_property_should_not_have() -> None:
    message = JmsMessage(body_kind=MESSAGE.body_kind, properties={"b": b"x"})  # type: ignore[dict-item]  # on purpose
    for text in ("b = 'x'", "b = 1", "b > 1", "b", "b + 1 = 2", "b LIKE 'x'", "b IN ('x')"):
        assert Selector.parse(text).matches(message) is False
        assert Selector.parse(text, strings_as_numbers=True).matches(message) is False


def test_a_selector_is_its_text() -> None:
    selector = Selector.parse("i = 5")
    assert str(selector) == "i = 5"
    assert selector == Selector.parse("i = 5")
    assert selector != Selector.parse("i = 5", strings_as_numbers=True)
    assert hash(selector) == hash(Selector.parse("i = 5"))
    restored = pickle.loads(pickle.dumps(selector))  # noqa: S301 - our own bytes
    assert restored == selector
    assert restored.matches(MESSAGE)


def test_narrow_types_compare_by_value() -> None:
    message = JmsMessage.empty({"f": 0.1}, property_types={"f": PropertyType.FLOAT})
    assert Selector.parse("f = 0.1f").matches(message)
    assert not Selector.parse("f = 0.1").matches(message)


CONVERTING = (
    # A string beside a literal is read as a double, whichever number the literal is
    ({"n": "3"}, "n > 2", True),
    ({"n": "3"}, "n = 3", True),
    ({"n": "3"}, "n = 3.0", True),
    ({"n": "3.5"}, "n > 2", True),
    ({"n": "3.5"}, "3 < n AND NOT (n <= 3)", True),
    ({"n": "3.5"}, "n = 3 OR n <> 3", True),
    ({"n": "3.5"}, "n BETWEEN 3 AND 4", True),
    ({"n": "3.5"}, "n > 2.0", True),
    ({"n": "-3.5"}, "n < -3", True),
    ({"n": "3000000000"}, "n > 2", True),
    ({"n": "9223372036854775808"}, "n > 2147483648", True),
    ({"n": "007"}, "n = 7", True),
    ({"n": "+3"}, "n = 3", True),
    ({"n": " 3"}, "n = 3", True),
    # Beside a whole number that no double holds, or a calculated one, as that number's type
    ({"n": "9007199254740993"}, "n = 9007199254740993", True),
    ({"n": "9007199254740992"}, "n = 9007199254740993", False),
    ({"n": "9007199254740992"}, "n = 9007199254740992", True),
    ({"n": "9007199254740993"}, "n = 9007199254740992", False),
    ({"n": "9007199254740992.0"}, "n = 9007199254740992", False),
    ({"n": "9007199254740991.0"}, "n = 9007199254740991", True),
    ({"n": "3.5"}, "n > 1 + 1", False),
    ({"n": "3"}, "n > 1 + 1", True),
    ({"n": "2147483647"}, "n > 1 + 1", True),
    ({"n": "2147483648"}, "n > 1 + 1", False),
    ({"n": "2147483648"}, "n > 2147483646 + 1", False),
    ({"n": "2147483649"}, "n > 2147483647 + 1", True),
    ({"n": "9223372036854775807"}, "n > 9007199254740992", True),
    ({"n": "9223372036854775808"}, "n > 9007199254740992", False),
    ({"n": " 3"}, "n = 1 + 2", False),
    ({"n": " 3 "}, "n = 3.0", True),
    ({"n": "3d"}, "n = 3.0", True),
    ({"n": "Infinity"}, "n > 1E300", True),
    # One that can't be read makes it false, and its opposite true
    ({"n": "abc"}, "n = 3", False),
    ({"n": "abc"}, "n <> 3", True),
    ({"n": "abc"}, "n > 3", False),
    ({"n": "abc"}, "NOT (n > 3)", True),
    ({"n": ""}, "n <> 3", True),
    # Booleans
    ({"b": "TRUE"}, "b = TRUE", True),
    ({"b": "true"}, "b = true", True),
    ({"b": "hello"}, "b = FALSE", True),
    ({"b": "hello"}, "b <> TRUE", True),
    ({"b": "true"}, "b", False),
    ({"b": "true"}, "NOT b", True),
    # Text
    ({"s": "b", "t": "a"}, "s > t", True),
    ({"s": "\ue000", "t": "\U0001f600"}, "s > t", True),
    ({"s": "a"}, "s = 'a'", True),
    ({"s": "b"}, "s = 'a'", False),
    ({"s": "b"}, "s <> 'a'", True),
    ({"s": "3"}, "s LIKE '3'", True),
    # A header that is a number
    ({}, "JMSPriority = '4'", True),
    ({}, "JMSPriority LIKE '4'", False),
    ({}, "JMSPriority NOT LIKE '4'", True),
    # Unknown stays unknown
    ({}, "n > 2", False),
    ({}, "NOT (n > 2)", False),
    ({}, "NOT (n = 2)", False),
    ({}, "NOT (n LIKE 'a')", False),
    ({}, "n NOT LIKE 'a'", False),
    # Division as ActiveMQ does it
    ({"n": "3.5"}, "n = 7 / 2", True),
)


@pytest.mark.parametrize(("properties", "text", "expected"), CONVERTING)
def test_strings_read_as_numbers(properties: dict[str, str], text: str, expected: bool) -> None:
    """The rule for STOMP; tests/broker compares it with a live ActiveMQ."""
    selector = Selector.parse(text, strings_as_numbers=True)
    assert selector.matches(JmsMessage.empty(properties)) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a = 1 and b=2 or not c = 3", "((a = 1.0) AND (b = 2.0)) OR (NOT (c = 3.0))"),
        ("not a = 'x'", "NOT (a = 'x')"),
        ("a = null or b <> NULL", "(a IS NULL) OR (b IS NOT NULL)"),
        ("5 > a", "a < 5.0"),
        ("a = 9007199254740991", "a = 9.007199254740991E15"),
        ("a = 9007199254740992", "a = 9007199254740992"),
        ("-9007199254740992 < a", "a > (-9007199254740992)"),
        ("flag = TRUE AND JMSPriority > 4", "(flag = TRUE) AND (JMSPriority > 4)"),
        ("a = 2 + 1 OR a + 1 = 3", "(a = (2 + 1)) OR ((a + 1) = 3)"),
        ("a < b", "a < b"),
        ("1 < 2", "1 < 2"),
        ("TRUE = flag", "flag = TRUE"),
        ("a between -1 and 2*3", "a BETWEEN (-1.0) AND (2 * 3)"),
        ("a not like 'it''s!%' escape '!'", "a NOT LIKE 'it''s!%' ESCAPE '!'"),
        ("a not in ('x','y')", "a NOT IN ('x', 'y')"),
        ("a--3 = 1e10", "(a - (-3)) = 1.0E10"),
        ("-a = 0x10", "(- a) = 16"),
        ("  ", ""),
    ],
)
def test_the_portable_spelling(text: str, expected: str) -> None:
    assert Selector.parse(text).portable == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("region = 'eu'", "region = 'eu'"),
        (
            "type = 'x'",
            "((their_type IS NOT NULL) AND (their_type = 'x')) OR ((their_type IS NULL) AND (type = 'x'))",
        ),
        ("a = 'type'", "a = 'type'"),
    ],
)
def test_a_property_is_looked_for_under_either_name(text: str, expected: str) -> None:
    assert Selector.parse(text).portable_with({"type": "their_type", "id": "their_id"}) == expected


@pytest.mark.parametrize("text", ["type = 'x'", "type IS NULL", "NOT (type LIKE 'x%') OR id IN ('x')"])
def test_under_either_name_a_selector_means_the_same(text: str) -> None:
    selector = Selector.parse(text)
    respelled = Selector.parse(selector.portable_with({"type": "their_type", "id": "their_id"}))
    for type_, id_ in itertools.product((None, "x", "y"), repeat=2):
        own = {name: value for name, value in (("type", type_), ("id", id_)) if value is not None}
        expected = selector.matches(JmsMessage.text("", own))
        for renamed in ((), ("type",), ("id",), ("type", "id")):
            sent = {f"their_{name}" if name in renamed else name: value for name, value in own.items()}
            assert respelled.matches(JmsMessage.text("", sent)) is expected


def test_a_selector_with_too_many_other_names_is_refused() -> None:
    names = "abcde"
    others = {name: f"their_{name}" for name in names}
    assert "their_d" in Selector.parse("a = b AND c = d AND x = y").portable_with(others), "four are not"
    text = " AND ".join(f"{name} = 'x'" for name in names)
    with pytest.raises(CapabilityError, match="a, b, c, d, e are also names of headers"):
        Selector.parse(text).portable_with(others)
