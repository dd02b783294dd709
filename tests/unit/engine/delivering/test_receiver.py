"""What came again although it was settled, and what only looks like it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_jmsjca.core.copies.load_balancing import with_origin
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.engine.delivering.receiver import is_redelivery
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import (
    Capabilities,
    Connection,
    OnReceived,
    Outgoing,
    Received,
    Subscription,
)
from airflow_provider_jmsjca.transports.memory.connection import MemoryConnection
from airflow_provider_jmsjca.transports.memory.message_queue import QueuedMessage
from tests.unit.engine.listening import ORDERS, Site, every_mode, until

numbers = itertools.count(1)
CREATED, CANCELLED = "order 7: created", "order 7: cancelled"


def put(
    site: Site,
    *bodies_and_ids: tuple[str, str],
    redelivered: bool = False,
    timestamp: int | None = None,
) -> None:
    """Put messages into the queue under the ids that their producer gave them, as on RabbitMQ."""
    queue = site.broker.queue(ORDERS.name)
    for body, message_id in bodies_and_ids:
        message = replace(
            JmsMessage.text(body), message_id=message_id, destination=ORDERS, timestamp=timestamp
        )
        entry = QueuedMessage(message, next(numbers))
        entry.deliveries = int(redelivered)
        with site.broker.lock:
            queue.add(entry)
            queue.dispatch(0)


def as_on_rabbitmq(site: Site) -> Callable[[], Connection]:
    """Return what opens connections on which ids are the producer's word."""

    class Trusting(MemoryConnection):
        @property
        def capabilities(self) -> Capabilities:
            return replace(super().capabilities, stable_message_id=False)

    return lambda: Trusting(site.broker, site.settings)


def put_published(site: Site, *bodies_and_ids: tuple[str, str]) -> None:
    """Send copies of what was published elsewhere under these ids, as load balancing does."""
    connection = connect(site.settings)
    for body, message_id in bodies_and_ids:
        original = replace(JmsMessage.text(body), message_id=message_id)
        connection.send([Outgoing(destination=ORDERS, message=with_origin(original, original, ORDERS))])
    connection.close()


def losing(site: Site, body: str) -> Callable[[], Connection]:
    """Return what opens connections, over the first of which one message gets lost on its way here."""
    first = iter([True])

    class Losing(MemoryConnection):
        def consume(self, subscription: Subscription, on_received: OnReceived) -> Any:
            loses = next(first, False)

            def heard(received: Received) -> None:
                if not loses or received.message.body != body:
                    on_received(received)

            return super().consume(subscription, heard)

    return lambda: Losing(site.broker, site.settings)


@every_mode
def test_another_message_under_the_id_of_a_settled_one_is_handled(site: Site, mode: dict[str, Any]) -> None:
    """It was on its way when the connection broke, so that the broker calls it redelivered."""
    put(site, (CREATED, "order-7"), (CANCELLED, "order-7"))
    listener = site.activation(lambda _: None, connect_with=losing(site, CANCELLED), **mode)
    listener.start()
    until(lambda: listener.counts.committed == 1)
    site.broker.restart()
    until(lambda: listener.counts.committed == 2)
    assert site.got == [CREATED, CANCELLED]
    assert (listener.counts.repeated, site.broker.depth("orders")) == (0, 0)


@every_mode
@pytest.mark.parametrize(
    ("opens", "redelivered"),
    [
        pytest.param(as_on_rabbitmq, True, id="RabbitMQ calls everything redelivered"),
        pytest.param(lambda _: None, False, id="ActiveMQ and Artemis call nothing redelivered"),
    ],
)
def test_what_comes_again_after_it_was_settled_is_settled_again(
    site: Site,
    opens: Callable[[Site], Any],
    redelivered: bool,
    mode: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A broker that was killed has forgotten the acknowledgement."""
    caplog.set_level("INFO", "airflow_provider_jmsjca.listener")
    put(site, (CREATED, "order-7"), timestamp=1000)
    listener = site.activation(lambda _: None, connect_with=opens(site), **mode)
    listener.start()
    until(lambda: listener.counts.committed == 1)
    site.broker.restart()
    until(lambda: listener.statistics().connections == 2)
    put(site, (CREATED, "order-7"), ("next", "order-8"), redelivered=redelivered, timestamp=1000)
    until(lambda: site.broker.depth("orders") == 0)
    assert site.got == [CREATED, "next"]
    assert (listener.counts.committed, listener.counts.repeated) == (2, 1)
    said = [each for each in caplog.messages if "was redelivered although it is settled" in each]
    assert len(said) == 1
    assert "order-7" in said[0]


@every_mode
def test_a_flagged_message_that_equals_a_settled_one_is_handled(site: Site, mode: dict[str, Any]) -> None:
    """The producer makes the ids and says no time, and a look at the queue has flagged the message."""
    put(site, (CREATED, "order-7"))
    listener = site.activation(lambda _: None, connect_with=as_on_rabbitmq(site), **mode)
    listener.start()
    until(lambda: listener.counts.committed == 1)
    site.broker.restart()
    until(lambda: listener.statistics().connections == 2)
    put(site, (CREATED, "order-7"), redelivered=True)
    until(lambda: listener.counts.committed == 2)
    assert (site.got, listener.counts.repeated) == ([CREATED, CREATED], 0)


def test_a_broker_that_was_set_up_anew_gives_ids_again(site: Site) -> None:
    """What was sent at another time is another message."""
    put(site, (CREATED, "7"), timestamp=1000)
    listener = site.activation(lambda _: None)
    listener.start()
    until(lambda: listener.counts.committed == 1)
    site.broker.restart()
    put(site, (CREATED, "7"), timestamp=2000)
    until(lambda: listener.counts.committed == 2)
    assert (site.got, listener.counts.repeated) == ([CREATED, CREATED], 0)


@pytest.mark.parametrize(
    "how", [pytest.param(put, id="from a producer"), pytest.param(put_published, id="load balanced")]
)
def test_what_waited_unread_over_two_outages_is_handled(site: Site, how: Callable[..., None]) -> None:
    """Not even its body tells it from one settled between them; that it was not settled then does."""
    how(site, (CREATED, "order-7"), ("another", "order-8"), (CREATED, "order-7"))
    outages = [CREATED, "another"]

    def handle(delivery: Any) -> None:
        if delivery.body in outages:
            until(lambda: len(listener.runs[0]._dispatcher.receiver.buffer.arrivals) >= len(outages))
            outages.remove(delivery.body)
            site.broker.restart()

    listener = site.activation(handle, connect_with=as_on_rabbitmq(site) if how is put else None)
    listener.start()
    until(lambda: site.broker.depth("orders") == 0)
    assert site.got == [CREATED, CREATED, "another", "another", CREATED]
    assert (listener.counts.committed, listener.counts.repeated) == (3, 0)


@pytest.mark.parametrize(("count", "before"), [(None, False), (1, False), (2, True)])
def test_a_broker_that_counts_and_flags_nothing_says_that_a_message_came_before(
    count: int | None, before: bool
) -> None:
    assert is_redelivery(replace(JmsMessage.text("a"), delivery_count=count)) is before
    assert is_redelivery(replace(JmsMessage.text("a"), delivery_count=count, redelivered=True))
