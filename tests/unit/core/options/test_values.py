"""Values of options: J51, J54, J61, J63, I13."""

from __future__ import annotations

import contextlib
import os
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.options import (
    OPTIONS,
    OPTIONS_BY_NAME,
    OptionType,
    duration_text,
    read_value,
)
from airflow_provider_jmsjca.errors import ConfigurationError, PoisonMessageError
from tests.unit.core.texts import ANY_TEXT

EXAMPLES = int(os.environ.get("JMSJCA_EXAMPLES", "300"))


@pytest.mark.parametrize(
    ("name", "given_value", "expected"),
    [
        ("hold_until_ack", "1", True),
        ("hold_until_ack", "TRUE", True),
        ("hold_until_ack", 0, False),
        ("batch_size", " 10 ", 10),
        ("batch_size", 10, 10),
        ("destination_type", "javax.jms.Queue", "queue"),
        ("destination_type", "jakarta.jms.Topic", "topic"),
        ("destination_type", "Queue", "queue"),
        ("concurrency_mode", "CC", "cc"),
        ("concurrency_mode", "multi-receiver", "sync"),
        ("acknowledge_mode", "Dups-ok-acknowledge", "dups_ok_acknowledge"),
        ("acknowledge_mode", "AUTO_ACKNOWLEDGE", "auto_acknowledge"),
        ("subscription_durability", "NonDurable", "non_durable"),
        ("transaction_attribute", "NotSupported", "not_supported"),
        ("in_doubt_events", "FailOnStartUp", "fail_on_startup"),
        ("in_doubt_events", "FailOnStartup", "fail_on_startup"),
        ("in_doubt_events", "LogError", "log_error"),
        ("redelivery_move_kind", "auto", "same"),
        ("distributed_destination_connection", "EveryMember", "every_member"),
        ("pool_timeout", -1, None),
        ("batch_timeout", "1.5", timedelta(seconds=1.5)),
        ("destination", "a;b", ("a", "b")),
        ("destination", ["a", "b,c"], ("a", "b,c")),
        ("destination", Destination.topic("t"), ("topic://t",)),
        (
            "non_retryable",
            [ValueError, PoisonMessageError],
            ("builtins.ValueError", "airflow_provider_jmsjca.errors.PoisonMessageError"),
        ),
        ("options", {"a": 1, "b": True}, "a=1\nb=true"),
        ("username", "", None),
        ("username", 5, "5"),
        ("password", " x ", " x "),
        ("redelivery_handling", "", ""),
    ],
)
def test_reads(name: str, given_value: object, expected: object) -> None:
    assert read_value(OPTIONS_BY_NAME[name], given_value, name) == expected


@pytest.mark.parametrize(
    ("name", "given_value", "fault"),
    [
        ("batch_size", "x", "batch_size: got 'x', expected a whole number, 0 or more"),
        ("batch_size", True, "batch_size: got True"),
        ("batch_size", -1, "batch_size: got -1"),
        ("batch_size", 1.5, "batch_size: got 1.5"),
        ("endpoint_pool_max_size", 0, "expected a whole number, 1 or more"),
        ("ejb_class", ["a"], "expected text, a number, or true or false"),
        ("hold_until_ack", "maybe", "expected true or false"),
        ("hold_until_ack", 2, "expected true or false"),
        ("concurrency_mode", "parallel", "expected one of serial, cc, sync"),
        ("idle_timeout", "soon", "expected a number of seconds, or one with a unit"),
        ("idle_timeout", float("nan"), "expected a number of seconds"),
        ("idle_timeout", "-5", "expected a number"),
        ("destination", 5, "expected a list of texts"),
        ("destination", [None], "expected a list of texts"),
        ("username", ["a"], "expected text"),
        ("options", ["a"], "expected Java properties"),
        ("password", ["hunter2"], "password: got ***, expected text"),
        ("username", {"password": "hunter2"}, "username: got"),
    ],
)
def test_refuses(name: str, given_value: object, fault: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_value(OPTIONS_BY_NAME[name], given_value, name)
    assert fault in str(caught.value)
    assert "hunter2" not in str(caught.value)


_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.sampled_from(OPTIONS), _ANYTHING | st.from_regex(r"-?[0-9.]{1,20} ?(ms|s|m|h|d)?", fullmatch=True))
def test_any_value_is_read_or_refused(option: object, value: object) -> None:
    assert hasattr(option, "name")
    with contextlib.suppress(ConfigurationError):
        read_value(option, value, option.name)  # type: ignore[arg-type]  # sampled from the table


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=3650)))
def test_durations_round_trip(value: timedelta) -> None:
    option = OPTIONS_BY_NAME["batch_timeout"]
    assert option.value_type is OptionType.DURATION
    assert read_value(option, duration_text(value), "batch_timeout") == value
