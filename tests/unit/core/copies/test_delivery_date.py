"""When a message is due: as its sender says, or by the property with which Patch Bay delays it. P18."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from airflow_provider_jmsjca.core.copies.delivery_date import chosen_delay, time_left
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


HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    ("delay", "deliver_at", "left"),
    [
        (None, None, None),
        ("", "", None),
        (1.5, None, timedelta(seconds=1.5)),
        ("60", "", timedelta(minutes=1)),
        (0, None, timedelta()),
        (None, NOW + HOUR, HOUR),
        (None, datetime(2026, 5, 4, 15, tzinfo=timezone(2 * HOUR)), HOUR),
        (None, "2026-05-04T13:00:00+00:00", HOUR),
        (None, NOW - HOUR, timedelta()),
    ],
)
def test_a_sender_says_how_long_or_until_when(
    delay: float | str | None, deliver_at: datetime | str | None, left: timedelta | None
) -> None:
    assert chosen_delay(delay, deliver_at, NOW) == left


@pytest.mark.parametrize(
    ("delay", "deliver_at", "said"),
    [
        (-1, None, ["delay is -1; expected seconds of at least 0"]),
        (math.nan, None, ["delay is nan; expected seconds"]),
        (1e12, None, ["delay is 1000000000000.0; expected seconds"]),
        ("soon", None, ["delay is 'soon'; expected seconds"]),
        (None, "soon", ["deliver_at is 'soon'; expected a datetime with a time zone"]),
        (None, datetime(2026, 5, 4), ["expected a datetime with a time zone"]),  # noqa: DTZ001 - it has none
        (None, 5, ["deliver_at is 5; expected a datetime with a time zone"]),
        (None, datetime.max.replace(tzinfo=UTC), ["expected a time within the next 36500 days"]),
        (1, NOW, ["delay and deliver_at are both given; expected one of them"]),
        (-1, "soon", ["delay is -1", "both given", "deliver_at is 'soon'"]),
    ],
)
def test_what_a_sender_cant_mean_is_refused(delay: Any, deliver_at: Any, said: list[str]) -> None:
    with pytest.raises(ConfigurationError) as found:
        chosen_delay(delay, deliver_at, NOW)
    assert len(found.value.faults) == len(said)
    for fault, part in zip(found.value.faults, said, strict=True):
        assert part in fault
