"""A listener on several destinations: turns, quantities, where a message came from, refusals."""

from __future__ import annotations

import functools
import logging
import threading
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.engine.activations.listener import Listener
from airflow_provider_jmsjca.engine.activations.run import one_connection
from airflow_provider_jmsjca.engine.collecting.batch_spec import EndReason
from airflow_provider_jmsjca.engine.delivering.delivery import Delivery
from airflow_provider_jmsjca.errors import ConfigurationError, ConnectionLostError, PermanentBrokerError
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import Consumer, OnReceived, Outgoing, Received, Subscription
from airflow_provider_jmsjca.transports.memory.connection import MemoryConnection
from airflow_provider_jmsjca.transports.memory.message_queue import QueuedMessage
from tests.dead_letters import original_of
from tests.unit.engine.listening import QUICK, Site, every_mode, until

A, B, C = (Destination.queue(name) for name in "ABC")
ABC = ["queue://A", "queue://B", "queue://C"]


def fill(site: Site, **counts: int) -> int:
    for name, count in counts.items():
        site.send(*(f"{name}{number}" for number in range(1, count + 1)), to=Destination.queue(name))
    return sum(counts.values())


class Counting(MemoryConnection):
    """Knows how many messages have come."""

    came = 0

    def consume(self, subscription: Subscription, on_received: OnReceived) -> Any:
        def counted(received: Received) -> None:
            on_received(received)
            self.came += 1

        return super().consume(subscription, counted)


def when_all_are_here(site: Site, expected: int, **spec: Any) -> Listener:
    """Return an activation that finishes the first message once all have come."""
    connection = Counting(site.broker, site.settings)
    return site.activation(
        lambda _: until(lambda: connection.came == expected),
        connect_with=lambda: connection,
        destination=ABC,
        **spec,
    )


def test_the_worked_example(site: Site) -> None:
    """I4, I5, I6: A=2, B=1, C=5, PollQuantity=2: A, B, C, A, (B empty), C; C keeps 3."""
    expected = fill(site, A=2, B=1, C=5)
    counts = when_all_are_here(site, expected, poll_quantity=2).run(max_messages=5)
    assert site.got == ["A1", "B1", "C1", "A2", "C2"]
    assert counts.committed == 5
    assert [site.broker.depth(name) for name in "ABC"] == [0, 0, 3]


def test_what_is_kept_has_its_turn_later(site: Site) -> None:
    """I5: one cycle after the other, until all is empty."""
    expected = fill(site, A=2, B=1, C=5)
    when_all_are_here(site, expected, poll_quantity=2).run(idle_for=QUICK)
    assert site.got == ["A1", "B1", "C1", "A2", "C2", "C3", "C4", "C5"]


@every_mode
def test_every_destination_is_consumed(site: Site, mode: dict[str, Any]) -> None:
    """I5, J81, J82, J83: over one connection; the limit holds."""
    fill(site, A=40, B=3, C=25)
    activation = site.activation(lambda _: None, destination=ABC, **mode)
    counts = activation.run(max_messages=60)
    assert counts.committed == 60
    assert len(set(site.got)) == len(site.got) == 60
    assert sum(site.broker.depth(name) for name in "ABC") == 8
    assert activation.statistics().connections == 1


def test_a_full_destination_does_not_starve_another(site: Site) -> None:
    """I5: B's one message comes although A has many waiting here."""
    expected = fill(site, A=50) + 1
    activation = when_all_are_here(site, expected)
    activation.start()
    until(lambda: site.got == ["A1"])
    fill(site, B=1)
    until(lambda: len(site.got) >= 10)
    assert "B1" in site.got[:3]


def test_a_delay_holds_up_all_in_serial_and_keeps_the_turns(site: Site) -> None:
    """J81, I5: what is rolled back is next, without a turn of its own."""
    expected = fill(site, A=2, B=1, C=2)
    connection = Counting(site.broker, site.settings)

    def fail_once(delivery: Delivery) -> None:
        until(lambda: connection.came == expected)
        if delivery.body == "B1" and delivery.redelivery_count == 0:
            raise ValueError("later")

    site.activation(
        fail_once, destination=ABC, redelivery_handling="1:100", connect_with=lambda: connection
    ).run(max_messages=5)
    assert site.got == ["A1", "B1", "B1", "C1", "A2", "C2"]


def test_a_message_knows_where_it_came_from(site: Site) -> None:
    """J140, J155, W38: `$`, the dead letter and the context name its own destination."""
    fill(site, A=1, B=1)
    seen: list[Destination] = []

    def fail(delivery: Delivery) -> None:
        seen.append(delivery.context.destination)
        raise ValueError("no stock")

    site.activation(fail, destination=["A", "B"], redelivery_handling="1:move(queue:$.dlq)").run(
        max_messages=2
    )
    assert seen == [A, B]
    for name in "AB":
        (message,) = site.broker.messages(f"{name}.dlq")
        letter = original_of(message)
        assert letter is not None
        assert letter.origin.destination == Destination.queue(name)


def test_a_batch_takes_from_all(site: Site) -> None:
    """J183, I5: turn by turn, in one transaction."""
    fill(site, A=2, B=2, C=2)
    site.activation(
        lambda _: None, destination=ABC, batch_size=6, concurrency_mode="cc", endpoint_pool_max_size=1
    ).run(max_messages=6)
    assert site.got[-1] == "END"
    assert sorted(site.got[:-1]) == ["A1", "A2", "B1", "B2", "C1", "C2"]
    assert site.got.count("END") == 1


def test_parked_where_it_came_from(site: Site) -> None:
    """P18, I5: the limit has room again while a message is parked."""
    fill(site, A=1, B=1)

    def fail_once(delivery: Delivery) -> None:
        if delivery.body == "B1" and delivery.redelivery_count == 0:
            raise ValueError("later")

    activation = site.activation(
        fail_once, destination=["A", "B"], non_blocking_redelivery=True, redelivery_handling="1:60000"
    )
    activation.start()
    until(lambda: activation.counts.parked == 1)
    assert activation.counts.committed == 1
    site.broker.advance(timedelta(minutes=2))
    until(lambda: activation.counts.committed == 2)
    assert site.attempts[-1] == ("B1", 1)
    assert (site.broker.depth("A"), site.broker.depth("B")) == (0, 0)


def test_queues_and_a_topic(site: Site) -> None:
    """I5, J82: with sync one consumer on the topic, so that nothing comes twice."""
    topic = Destination.topic("prices")
    activation = site.activation(
        lambda _: None,
        destination=["queue://A", "topic://prices"],
        destination_type=None,
        concurrency_mode="sync",
        endpoint_pool_max_size=3,
    )
    activation.start()
    until(lambda: activation.state == "Up")
    fill(site, A=2)
    until(lambda: len(site.got) == 2)
    site.send("p", to=topic)
    until(lambda: "p" in site.got)
    activation.stop()
    assert sorted(site.got) == ["A1", "A2", "p"]


def test_one_refused_destination_is_named_and_the_others_go_on(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """I5: tried again until it is there."""
    caplog.set_level(logging.INFO, logger="airflow_provider_jmsjca")
    site.broker.forbid(B)
    fill(site, A=1, C=1)
    activation = site.activation(lambda _: None, destination=ABC)
    activation.start()
    until(lambda: sorted(site.got) == ["A1", "C1"])
    (refused,) = activation.statistics().refused
    assert refused.startswith("queue://B: ")
    assert "refuses access to queue://B" in refused
    assert any(
        "can't consume from queue://B" in record.getMessage() and record.levelno == logging.WARNING
        for record in caplog.records
    )
    site.broker.permit(B)
    fill(site, B=1)
    until(lambda: "B1" in site.got)
    assert activation.statistics().refused == ()
    assert activation.statistics().connections == 1


def test_all_refused_is_a_fault(site: Site) -> None:
    """I27, W15: as with one destination."""
    for each in (A, B, C):
        site.broker.forbid(each)
    with pytest.raises(PermanentBrokerError, match="refuses access"):
        site.activation(lambda _: None, destination=ABC).run(run_for=timedelta(seconds=5))


class Slammed(MemoryConnection):
    """Loses the connection with the refusal, as RabbitMQ does."""

    def consume(self, subscription: Subscription, on_received: OnReceived) -> Any:
        try:
            consumer: Consumer = super().consume(subscription, on_received)
        except PermanentBrokerError:
            self.server.restart()
            raise
        return consumer


def test_a_refusal_that_costs_the_connection_does_not_cost_it_every_time(site: Site) -> None:
    """I5: the refused one is left out of the next connection until its pause is over."""
    site.broker.forbid(B)
    fill(site, A=1, C=1)
    activation = site.activation(
        lambda _: None,
        destination=ABC,
        connect_with=lambda: Slammed(site.broker, site.settings),
    )
    activation.start()
    until(lambda: set(site.got) == {"A1", "C1"})
    assert len(activation.statistics().refused) == 1
    assert activation.statistics().connections <= 3


def test_one_name_twice_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"destination: got queue://A more than once"):
        Site.listener_settings(destination=["A", "B", "A"])


def test_suspended_and_resumed(site: Site) -> None:
    """W27: all of them."""
    activation = site.activation(lambda _: None, destination=ABC)
    activation.start()
    fill(site, A=1)
    until(lambda: site.got == ["A1"])
    assert activation.drain(timedelta(seconds=5))
    fill(site, B=1, C=1)
    activation.resume()
    until(lambda: sorted(site.got) == ["A1", "B1", "C1"])


def test_unread_messages_keep_their_order_over_an_outage(site: Site) -> None:
    """J13: what was not settled comes again, from each destination in its order."""
    total = fill(site, A=20, B=20)
    kill = threading.Event()

    def handle(_: Delivery) -> None:
        if len(site.got) == 5 and not kill.is_set():
            kill.set()
            connection = connect(site.settings)
            connection.send([Outgoing(destination=C, message=JmsMessage.text("C1"))])
            connection.close()
            site.broker.restart()

    activation = site.activation(
        handle, destination=ABC, connect_with=functools.partial(connect, site.settings)
    )
    activation.run(max_messages=total + 1)
    for name in "AB":
        own = list(dict.fromkeys(body for body in site.got if body.startswith(name)))
        assert own == [f"{name}{number}" for number in range(1, 21)]
    assert "C1" in site.got


def test_copies_under_one_id_are_settled_each_by_itself_over_an_outage(site: Site) -> None:
    """A broker's fan-out puts the same id into several queues."""
    site.send("order", to=A)
    (original,) = site.broker.messages("A")
    with site.broker.lock:
        site.broker.queue("B").add(QueuedMessage(replace(original, destination=B), 1))

    first = iter([True])

    class Cut(MemoryConnection):
        """What B sends over the first connection gets lost on the way."""

        def consume(self, subscription: Subscription, on_received: OnReceived) -> Any:
            lost = subscription.destination == B and next(first, False)
            return super().consume(subscription, (lambda _: None) if lost else on_received)

    seen: list[Destination] = []
    activation = site.activation(
        lambda delivery: seen.append(delivery.context.destination),
        connect_with=lambda: Cut(site.broker, site.settings),
        destination=["queue://A", "queue://B"],
    )
    activation.start()
    until(lambda: activation.counts.committed == 1)
    site.broker.restart()
    until(lambda: not site.broker.depth("B"))
    assert seen == [A, B]
    assert (activation.counts.committed, activation.counts.repeated) == (2, 0)


class Closing(MemoryConnection):
    """Ends with a refusal only once something more is asked of it, as RabbitMQ may."""

    refused = False

    def consume(self, subscription: Subscription, on_received: OnReceived) -> Any:
        if self.refused:
            self.server.restart()
            raise ConnectionLostError("the broker closed the connection")
        try:
            consumer: Consumer = super().consume(subscription, on_received)
        except PermanentBrokerError:
            self.refused = True
            raise
        return consumer


def test_a_refusal_that_ends_the_connection_is_not_blamed_on_the_next(site: Site) -> None:
    """I5: B is all right, and no listener stops for it."""
    site.broker.forbid(A)
    fill(site, B=1)
    activation = site.activation(
        lambda _: None,
        destination=["queue://A", "queue://B"],
        connect_with=lambda: Closing(site.broker, site.settings),
    )
    activation.start()
    until(lambda: site.got == ["B1"])
    assert activation.running
    (refused,) = activation.statistics().refused
    assert refused.startswith("queue://A: ")


def test_all_refused_is_a_fault_also_if_each_refusal_ends_the_connection(site: Site) -> None:
    """W15: they are refused over several connections, one after the other."""
    for each in (A, B, C):
        site.broker.forbid(each)
    activation = site.activation(
        lambda _: None, destination=ABC, connect_with=lambda: Slammed(site.broker, site.settings)
    )
    with pytest.raises(PermanentBrokerError, match="refuses access"):
        activation.run(run_for=timedelta(seconds=5))


def test_while_all_are_refused_it_is_not_idle(site: Site) -> None:
    """As with one destination: nothing is consumed, so it says nothing that nothing comes."""
    for each in (A, B):
        site.broker.forbid(each)
    settings = site.activation(lambda _: None, destination=["queue://A", "queue://B"]).settings
    activation = Listener(
        one_connection(replace(settings, retry_permanent_errors=True), lambda: connect(site.settings)),
        lambda _: None,
    )
    activation.run(run_for=timedelta(seconds=1), idle_for=timedelta(seconds=0.3))
    assert activation.ended_by is EndReason.TIME
