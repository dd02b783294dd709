"""Each message opens the unit of work that settles it, as JMS sessions require."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.engine.session.session import AcknowledgeMode, JmsSession
from airflow_provider_jmsjca.transports.base import Connection, UnitOfWork
from tests.unit.engine import streaming
from tests.unit.engine.brokers import SessionConnection
from tests.unit.engine.listening import ORDERS, Site, every_mode, nothing, until

pytestmark = pytest.mark.unit


def sessions_of(site: Any, *, only: bool = True) -> Callable[[], Connection]:
    """Return a connection on which only messages open units.

    Args:
        site: The broker.
        only: A unit settles the message that opened it, and no other.
    """

    class Sessions(SessionConnection):
        alone = only

        def __init__(self) -> None:
            super().__init__(site.broker, site.settings)

        def unit(self) -> UnitOfWork:
            raise AssertionError("a unit is opened without a message")

    return Sessions


def send_on(delivery: Any) -> None:
    if not delivery.end_of_batch:
        delivery.send(Destination.queue("sent"), JmsMessage.text("on"))


def fail(_: object) -> None:
    raise ValueError("no stock")


@every_mode
@pytest.mark.parametrize(
    ("handler", "spec"),
    [
        (send_on, {}),
        (send_on, {"confirm_acknowledgements": True}),
        (nothing, {"archive_destination": "sent"}),
        (send_on, {"in_progress_destination": "busy"}),
        (fail, {"redelivery_handling": "1:move(queue:sent)"}),
    ],
    ids=["sends", "confirmed", "archive", "in-progress", "move"],
)
def test_a_listener_settles_each_message_in_its_own_unit(
    handler: Any, spec: dict[str, Any], mode: dict[str, Any]
) -> None:
    site = Site()
    site.send("a", "b", "c")
    listener = site.activation(handler, connect_with=sessions_of(site), **spec, **mode)
    listener.start()
    until(lambda: len(site.broker.messages("sent")) == 3)
    listener.stop()
    assert site.broker.messages("orders") == site.broker.messages("busy") == []


def test_a_batch_is_a_unit_of_its_first_message_that_others_join() -> None:
    site = Site()
    site.send("a", "b")
    sessions = sessions_of(site, only=False)
    listener = site.activation(
        send_on, connect_with=sessions, batch_size=2, concurrency_mode="cc", endpoint_pool_max_size=1
    )
    listener.start()
    until(lambda: len(site.broker.messages("sent")) == 2)
    listener.stop()
    assert site.broker.messages("orders") == []


def test_a_stream_settles_each_message_in_its_own_unit() -> None:
    async def work() -> None:
        site = streaming.Site()
        site.send("a", "b", "c")
        rules = streaming.settings("1:move(queue:dead)")
        async with site.streaming(rules, opens=lambda _: sessions_of(site)()) as stream:
            first, second, third = await streaming.take(stream, 3)
            first.returned()
            second.raised(ValueError("no stock"))
            third.returned()
            await streaming.until(lambda: site.bodies("dead") == ["b"])
            await streaming.until(lambda: site.bodies() == [])

    asyncio.run(work())


def test_a_transaction_of_a_session_is_that_of_the_message_it_received() -> None:
    site = Site()
    site.send("a")
    connection = sessions_of(site)()
    session = JmsSession(connection, AcknowledgeMode.SESSION_TRANSACTED, None, lambda _: None)
    message = session.receive(ORDERS, timeout=20)
    assert message is not None
    session.send("queue://sent", message)
    session.commit()
    session.close()
    connection.close()
    assert (site.bodies("orders"), site.bodies("sent")) == ([], ["a"])
