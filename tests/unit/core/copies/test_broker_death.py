"""Why a broker moved a message, by the properties that RabbitMQ, ActiveMQ Classic and Artemis add."""

from __future__ import annotations

import json
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_jmsjca.core.copies.broker_death import BrokerDeath, broker_death
from airflow_provider_jmsjca.core.copies.dead_letter import dead_letter, restored
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage

ORDERS = Destination.queue("orders")
REJECTED = {"reason": "rejected", "queue": "orders", "count": 3, "time": 1_780_000_000, "exchange": ""}
WAITED = {"reason": "expired", "queue": "orders.wait", "count": 2, "time": 1_779_999_999}


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        (
            # The first death was the end of a delay; the last one says why the message is here.
            {
                "x-death": json.dumps([REJECTED, WAITED]),
                "x-first-death-reason": "expired",
                "x-first-death-queue": "orders.wait",
            },
            BrokerDeath(queue=ORDERS, reason="a consumer rejected it", count=3, at=1_780_000_000_000),
        ),
        (
            {
                "x-last-death-reason": "delivery_limit",
                "x-last-death-queue": "orders",
                "x-first-death-reason": "expired",
                "x-first-death-queue": "orders.wait",
            },
            BrokerDeath(
                queue=ORDERS, reason="it was delivered too often: the delivery limit of the quorum queue"
            ),
        ),
        (
            {"x-first-death-reason": "maxlen", "x-first-death-queue": "orders"},
            BrokerDeath(queue=ORDERS, reason="the queue was full: x-max-length or x-max-length-bytes"),
        ),
        ({"x-first-death-reason": "unheard_of"}, BrokerDeath(queue=None, reason="unheard_of")),
        (
            {"dlqDeliveryFailureCause": "java.lang.Throwable: too often\nat x"},
            BrokerDeath(queue=None, reason="java.lang.Throwable: too often"),
        ),
        (
            {"_AMQ_ORIG_QUEUE": "orders", "_AMQ_ACTUAL_EXPIRY": "1780000000000"},
            BrokerDeath(queue=ORDERS, reason="it expired"),
        ),
        (
            {"_AMQ_ORIG_QUEUE": "orders"},
            BrokerDeath(queue=ORDERS, reason="it was delivered too often: max-delivery-attempts"),
        ),
        ({"x-death": "[", "region": "eu"}, None),
        ({"x-death": json.dumps([7, {"reason": 7}, {"queue": "orders"}])}, None),
        (
            {"x-death": json.dumps([{"reason": "expired", "count": True, "time": -1, "queue": ["q"]}])},
            BrokerDeath(queue=None, reason="it expired: its time to live or that of the queue was over"),
        ),
    ],
)
def test_the_last_move_by_a_broker(properties: dict[str, Any], expected: BrokerDeath | None) -> None:
    assert broker_death(properties) == expected


@given(
    st.dictionaries(
        st.sampled_from(["x-death", "x-first-death-reason", "x-first-death-queue", "_AMQ_ORIG_QUEUE"]),
        st.one_of(
            st.text(),
            st.integers(),
            st.recursive(
                st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text()),
                lambda inner: st.one_of(
                    st.lists(inner),
                    st.dictionaries(st.sampled_from(["reason", "queue", "count", "time"]), inner),
                ),
            ).map(json.dumps),
        ),
    )
)
def test_whatever_a_producer_forges(properties: dict[str, Any]) -> None:
    found = broker_death(properties)
    assert found is None or (len(found.reason) <= 1_000 and "\n" not in found.reason)


def received(properties: dict[str, str]) -> JmsMessage:
    """Return a message as received: its properties may have any name."""
    return replace(JmsMessage.text("x"), properties=MappingProxyType(properties))


def test_a_dead_letter_of_a_broker_and_of_a_listener() -> None:
    death = {"x-death": json.dumps([REJECTED]), "x-first-death-reason": "rejected"}
    moved = dead_letter(received(death))
    assert (moved.destination, moved.exception_message) == (ORDERS, "a consumer rejected it")
    assert (moved.deaths, moved.moved, moved.exception_class) == (3, 1_780_000_000_000, "")
    ours = {"JMS_Sun_JMSJCA_ExceptionClass": "ValueError", "JMS_Sun_JMSJCA_OriginalDestinationName": "a"}
    both = dead_letter(received(death | ours))
    assert (both.exception_class, both.exception_message) == ("ValueError", "")
    assert (str(both.destination), both.deaths) == ("queue://a", None)
    assert dict(restored(received(death | {"region": "eu"})).properties) == {"region": "eu"}
