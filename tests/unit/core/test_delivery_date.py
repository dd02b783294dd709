"""The property with which Patch Bay delays a message. P18."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from airflow_provider_jmsjca.core.copies.delivery_date import time_left
from airflow_provider_jmsjca.core.message import JmsMessage, PropertyValue
from airflow_provider_jmsjca.errors import ConfigurationError

NOW = datetime(2026, 5, 4, 12, tzinfo=UTC)
AT = 1_777_896_000_000
"""The same in milliseconds since 1970."""


@pytest.mark.parametrize(
    ("given", "left"),
    [
        (AT + 1_500, timedelta(seconds=1.5)),
        (str(AT + 60_000), timedelta(minutes=1)),
        (AT, None),
        (0, None),
        (-1, None),
    ],
)
def test_a_date_to_come_is_waited_for_p18(given: PropertyValue, left: timedelta | None) -> None:
    """P18: a Long, milliseconds since 1970; STOMP makes text of it."""
    assert time_left(JmsMessage.text("x", {"DELIVERY_DATE": given}), NOW) == left
    assert time_left(JmsMessage.text("x"), NOW) is None


@pytest.mark.parametrize("given", ["soon", "2026-05-04", "", 1.5, True, 2**62, str(2**63)])
def test_what_is_no_date_is_refused(given: PropertyValue) -> None:
    with pytest.raises(ConfigurationError, match=r"DELIVERY_DATE holds .* or allow_message_delays off"):
        time_left(JmsMessage.text("x", {"DELIVERY_DATE": given}), NOW)
