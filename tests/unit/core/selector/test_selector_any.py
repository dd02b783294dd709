"""Whatever a selector asks of whatever message, the answer is yes or no: JMS 2.0 section 3.8; J57."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.core.selector import Selector
from airflow_provider_jmsjca.errors import ConfigurationError

EXAMPLES = int(os.environ.get("JMSJCA_EXAMPLES", "300"))

_NAMES = st.sampled_from(
    [
        "a",
        "b",
        "JMSPriority",
        "JMSTimestamp",
        "JMSType",
        "JMSCorrelationID",
        "JMSMessageID",
        "JMSDeliveryMode",
    ]
)
_NUMBERS = st.sampled_from(
    ["0", "1", "-1", "2.5", "1e308", "1e-308", "9223372036854775807", "-9223372036854775808", "0x1F", "017"]
)
_STRINGS = st.sampled_from(["''", "'x'", "'1'", "'%_'", "'it''s'", "'NaN'", "'1e999'", "'0x10'", "' 5 '"])
_OPERANDS = st.recursive(
    _NAMES | _NUMBERS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+-*/"), inner).map(" ".join),
        inner.map("({})".format),
        inner.map("- {}".format),
    ),
    max_leaves=5,
)
_COMPARISONS = st.one_of(
    st.tuples(_OPERANDS, st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), _OPERANDS | _STRINGS).map(
        " ".join
    ),
    st.builds(
        "{} {} BETWEEN {} AND {}".format, _OPERANDS, st.sampled_from(["", "NOT"]), _OPERANDS, _OPERANDS
    ),
    st.builds("{} {} IN ({}, {})".format, _NAMES, st.sampled_from(["", "NOT"]), _STRINGS, _STRINGS),
    st.builds("{} {} LIKE {}".format, _NAMES, st.sampled_from(["", "NOT"]), _STRINGS),
    st.builds("{} LIKE {} ESCAPE '!'".format, _NAMES, _STRINGS),
    st.builds("{} IS {} NULL".format, _NAMES, st.sampled_from(["", "NOT"])),
    _NAMES,
)
_SELECTORS = st.recursive(
    _COMPARISONS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["AND", "OR"]), inner).map(" ".join), inner.map("NOT ({})".format)
    ),
    max_leaves=5,
)
_PROPERTIES = st.dictionaries(
    st.sampled_from("ab"),
    st.one_of(
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(),
        st.text(max_size=5),
        st.sampled_from(["1", "-0", "1e999", "true", "NaN", "Infinity", "0x1p3", "１"]),  # noqa: RUF001  # a digit that Python reads too
        st.none(),
    ),
    max_size=2,
)


@settings(max_examples=EXAMPLES, deadline=None)
@given(_SELECTORS, _PROPERTIES, st.booleans())
def test_any_selector_meets_any_message(text: str, properties: dict[str, Any], lenient: bool) -> None:
    """By the rules of JMS and by those of STOMP; written anew, as brokers get it, it means the same."""
    try:
        selector = Selector.parse(text, strings_as_numbers=lenient)
        message = JmsMessage.text("x", properties, correlation_id="c", type="t")
    except ConfigurationError:
        return
    found = selector.matches(message)
    assert found is True or found is False
    assert Selector.parse(selector.portable, strings_as_numbers=lenient).matches(message) is found
