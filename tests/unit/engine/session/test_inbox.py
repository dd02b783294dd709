from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.engine.session.inbox import Inbox
from airflow_provider_jmsjca.transports.base import Connection, OnReceived, Received, Subscription


def test_what_arrives_while_messages_are_decoded_ahead_disturbs_nothing() -> None:
    puts: list[OnReceived] = []
    consumer: Any = SimpleNamespace(generation=0)
    decoded: list[str] = []

    def received(body: str) -> Received:
        return Received(consumer, body, 0, lambda: decoded.append(body) or JmsMessage.text(body))

    class Arriving(Received):
        @property
        def is_on_disk(self) -> bool:
            puts[0](received("second"))  # as another thread may at any time
            return False

    def consume(_: Subscription, put: OnReceived) -> Any:
        puts.append(put)
        put(received("taken"))
        put(Arriving(consumer, "first", 0, lambda: decoded.append("first") or JmsMessage.text("first")))
        return consumer

    connection = cast("Connection", SimpleNamespace(consume=consume))
    subscription = Subscription(destination=Destination.queue("orders"), prefetch=10)
    inbox = Inbox(connection, subscription, threading.Condition())
    assert inbox.take(0) is not None
    inbox.decode_ahead()
    assert decoded == ["first"]
    second = [inbox.take(0), inbox.take(0)][1]
    assert second is not None
    assert second.message.body == "second"
