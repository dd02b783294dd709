from __future__ import annotations

import json

import pytest

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.triggers.payload import Payload, body_exceeds, message_event

ORDERS = Destination.queue("orders")


def test_the_whole_message_comes_back_from_the_event() -> None:
    message = JmsMessage.map({"n": 1, "b": b"\x00"}, {"region": "eu"}, correlation_id="c")
    event = json.loads(json.dumps(message_event("jms_default", ORDERS, message, Payload.MESSAGE)))
    assert event["destination"] == "queue://orders"
    assert JmsMessage.from_json(event["message"]) == message


def test_headers_alone_have_no_body() -> None:
    event = message_event("jms_default", ORDERS, JmsMessage.text("secret", {"region": "eu"}), Payload.HEADERS)
    assert "secret" not in json.dumps(event)
    assert event["headers"]["properties"] == {"region": "eu"}


@pytest.mark.parametrize(
    ("message", "size"),
    [
        (JmsMessage.text("abc"), 5),  # "abc"
        (JmsMessage.text("é"), 8),  # "\u00e9"
        (JmsMessage.bytes(b"\x00\xff"), 18),  # {"base64": "AP8="}
        (JmsMessage.empty(), 4),  # null
        (JmsMessage.map({"a": "x"}), 10),  # {"a": "x"}
    ],
)
def test_a_body_is_measured_as_json(message: JmsMessage, size: int) -> None:
    assert not body_exceeds(message, size)
    assert body_exceeds(message, size - 1)
