"""A listener settles each message in a unit of the consumer that received it, as JMS sessions require."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.transports.base import Consumer, OnReceived, Subscription, UnitOfWork
from airflow_provider_jmsjca.transports.memory.connection import MemoryConnection
from tests.unit.engine.listening import Site, until

pytestmark = pytest.mark.unit


def sessions_of(site: Site) -> type[MemoryConnection]:
    """Return a connection on which only consumers begin units."""

    class Sessions(MemoryConnection):
        def __init__(self) -> None:
            super().__init__(site.broker, site.settings)

        def consume(self, subscription: Subscription, on_received: OnReceived) -> Any:
            consumer: Consumer = super().consume(subscription, on_received)
            consumer.unit = super().unit  # type: ignore[method-assign]  # as a session of its own
            return consumer

        def unit(self) -> UnitOfWork:  # type: ignore[override]
            raise AssertionError("a message is settled outside of the session that received it")

    return Sessions


def send_on(delivery: Any) -> None:
    if not delivery.end_of_batch:
        delivery.send(Destination.queue("sent"), JmsMessage.text("on"))


def fail(_: object) -> None:
    raise ValueError("no stock")


@pytest.mark.parametrize(
    ("handler", "spec", "target"),
    [
        (send_on, {}, "sent"),
        (send_on, {"batch_size": 2, "concurrency_mode": "cc"}, "sent"),
        (send_on, {"confirm_acknowledgements": True}, "sent"),
        (fail, {"redelivery_handling": "1:move(queue:sent)"}, "sent"),
    ],
    ids=["sends", "batch", "confirmed", "move"],
)
def test_no_unit_is_begun_without_the_consumer(handler: Any, spec: dict[str, Any], target: str) -> None:
    site = Site()
    site.send("a")
    listener = site.activation(handler, connect_with=sessions_of(site), **spec)
    listener.start()
    until(lambda: len(site.broker.messages(target)) == 1)
    listener.stop()
    assert site.broker.messages("orders") == []
