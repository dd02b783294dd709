"""The copy on the queue of a distributed durable subscriber: J211."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_jmsjca.core.copies.load_balancing import balanced_copy, published
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.core.message.value_types import PropertyType, PropertyValue
from airflow_provider_jmsjca.errors import PoisonMessageError

TOPIC = Destination.topic("T1")
PROPERTIES: dict[str, PropertyValue] = {"n": 5, "price": 1.5, "ok": True, "JMSXGroupID": "g"}
RECEIVED = replace(
    JmsMessage.text("hello", PROPERTIES),
    properties=PROPERTIES | {"JMSXDeliveryCount": 3},  # which only a broker sets
    property_types={"n": PropertyType.BYTE},
    type="order",
    correlation_id="c1",
    reply_to=Destination.queue("answers"),
    priority=7,
    persistent=False,
    expiration=2_000_000_000_000,
    message_id="ID:1",
    timestamp=1_700_000_000_000,
    destination=TOPIC,
    redelivered=True,
    delivery_count=3,
)


def test_what_is_sent_keeps_everything_but_the_receipt() -> None:
    sent = balanced_copy(RECEIVED, Destination.topic("T.>"))
    assert sent == JmsMessage.text(
        "hello",
        {
            "n": 5, "price": 1.5, "ok": True, "JMSXGroupID": "g",
            "_JMSJCA_PublishedJMSDestination": "topic://T1",
            "_JMSJCA_PublishedJMSMessageID": "ID:1",
            "_JMSJCA_PublishedJMSTimestamp": 1_700_000_000_000,
        },
        property_types={"n": PropertyType.BYTE},
        type="order",
        correlation_id="c1",
        reply_to=Destination.queue("answers"),
        priority=7,
        persistent=False,
        expiration=2_000_000_000_000,
    )  # fmt: skip


def test_who_receives_it_sees_what_was_published() -> None:
    """The count begins anew; STOMP makes text of every property."""
    on_the_queue = JmsMessage.text(
        "hello",
        {
            "n": "5",
            "_JMSJCA_PublishedJMSDestination": "topic://T1",
            "_JMSJCA_PublishedJMSMessageID": "ID:1",
            "_JMSJCA_PublishedJMSTimestamp": "1700000000000",
        },
        message_id="ID:9",
        timestamp=1_700_000_000_999,
        destination=Destination.queue("LOADBALQ_T1_s"),
    )
    assert published(on_the_queue) == JmsMessage.text(
        "hello", {"n": "5"}, message_id="ID:1", timestamp=1_700_000_000_000, destination=TOPIC
    )


def test_what_it_does_not_say_is_the_brokers() -> None:
    """Some producers give no id, some brokers no destination."""
    sent = balanced_copy(JmsMessage.text("hello"), TOPIC)
    assert sent.properties == {"_JMSJCA_PublishedJMSDestination": "topic://T1"}
    received = JmsMessage.text("hello", sent.properties, message_id="ID:9", timestamp=17)
    assert published(received) == JmsMessage.text("hello", message_id="ID:9", timestamp=17, destination=TOPIC)


def test_a_message_that_was_never_moved_is_left_alone() -> None:
    assert published(RECEIVED) is RECEIVED


def test_an_older_move_is_replaced() -> None:
    forwarded = JmsMessage.text("x", balanced_copy(RECEIVED, TOPIC).properties)
    sent = balanced_copy(forwarded, Destination.topic("T2"))
    assert sent.properties["_JMSJCA_PublishedJMSDestination"] == "topic://T2"
    assert "_JMSJCA_PublishedJMSMessageID" not in sent.properties
    assert "_JMSJCA_PublishedJMSTimestamp" not in sent.properties


@pytest.mark.parametrize(
    ("name", "value"),
    [("_JMSJCA_PublishedJMSDestination", ""), ("_JMSJCA_PublishedJMSTimestamp", "yesterday")],
)
def test_a_forged_origin_is_poison(name: str, value: str) -> None:
    properties = {"_JMSJCA_PublishedJMSDestination": "topic://T1", name: value}
    with pytest.raises(PoisonMessageError, match="expected a destination and a number"):
        published(JmsMessage.text("x", properties))
