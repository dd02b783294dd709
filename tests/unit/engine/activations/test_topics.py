"""Topics: durable and non-durable subscriptions, and when a durable one is deleted."""

from __future__ import annotations

import functools
import logging
import threading
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.engine.activations.listener import Listener
from airflow_provider_jmsjca.engine.delivering.delivery import Delivery
from airflow_provider_jmsjca.engine.limbo import LimboSender
from airflow_provider_jmsjca.engine.session.connection import JmsConnection
from airflow_provider_jmsjca.store.base import EVERYTHING
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import Connection, Subscription
from airflow_provider_jmsjca.transports.memory.connection import MemoryConnection
from tests.memory_store import MemoryStore
from tests.unit.engine.listening import QUICK, Site, nothing, until

NEWS = Destination.topic("news")
DURABLE: dict[str, Any] = {
    "destination": "topic://news", "destination_type": None, "subscription_durability": "durable",
    "subscription_name": "s1",
}  # fmt: skip


def subscriber(site: Site, handler: Any = nothing, **spec: Any) -> Listener:
    as_c1 = functools.partial(connect, replace(site.settings, client_id="c1"))
    return site.activation(handler, connect_with=as_c1, **DURABLE | spec)


def subscribe(site: Site, client_id: str = "c1") -> None:
    """Make the durable subscription: from now on it keeps what is published."""
    connection = connect(replace(site.settings, client_id=client_id))
    connection.consume(Subscription(destination=NEWS, durable_name="s1"), lambda _: None)
    connection.close()


def kept(site: Site) -> list[Any]:
    """Return what the durable subscription holds, and settle it."""
    site.got.clear()
    subscriber(site).run(idle_for=QUICK)
    return site.got


def test_a_durable_subscription_keeps_what_comes_while_it_is_away(site: Site) -> None:
    """W8, J52, J53."""
    subscribe(site)
    site.send("1", "2", to=NEWS)
    assert kept(site) == ["1", "2"]


def test_a_parked_message_holds_up_none_and_comes_back_to_its_subscription_alone_p12(site: Site) -> None:
    """P12, P15: sent to the topic again, it would reach every other subscriber a second time."""
    store, topics = MemoryStore(), list[Any]()
    subscribe(site)
    subscribe(site, "c2")

    def handle(delivery: Any) -> None:
        topics.append(str(delivery.message.destination))
        if delivery.body == "bad":
            raise ValueError("no stock")

    activation = subscriber(
        site,
        handle,
        store=store,
        jms_conn_id="broker",
        non_blocking_redelivery=True,
        redelivery_handling="1:60000; 3:move(queue:$.dlq)",
    )
    site.send("bad", "good", to=NEWS)
    activation.start()
    for attempts in (1, 2):
        until(lambda: activation.counts.parked == attempts)  # noqa: B023 - called at once
        until(lambda: "good" in site.got)
        (kept_in_limbo,) = store.limbo.page()
        assert kept_in_limbo.destination.startswith("queue://jmsjca.redelivery.s1-")
        store.limbo.release(EVERYTHING, store.limbo.now())
        assert LimboSender(store.limbo, lambda _: JmsConnection(connect(site.settings))).send_due().sent == 1
    until(lambda: site.bodies("news.dlq") == ["bad"])
    activation.stop()
    assert sorted(site.attempts) == [("bad", 0), ("bad", 1), ("bad", 2), ("good", 0)]
    assert set(topics) == {"topic://news"}
    assert store.limbo.page() == store.attempts.page() == []
    got = list[Any]()
    other = functools.partial(connect, replace(site.settings, client_id="c2"))
    site.activation(lambda each: got.append(each.body), connect_with=other, **DURABLE).run(idle_for=QUICK)
    assert got == ["bad", "good"]


def test_a_plain_subscription_gets_what_comes_while_it_is_there(site: Site) -> None:
    """W8, J52."""
    spec: dict[str, Any] = {"destination": "topic://news", "destination_type": None}
    site.activation(nothing, **spec).run(idle_for=QUICK)
    site.send("missed", to=NEWS)
    activation = site.activation(nothing, **spec)
    activation.start()
    until(lambda: activation.state == "Up")
    until(lambda: activation.statistics().connections == 1)
    # The subscription follows the connection at once, but not before it.
    until(lambda: site.send("later", to=NEWS) or site.got)
    assert "missed" not in site.got


def test_deleted_when_an_end_is_reached(site: Site) -> None:
    """W33."""
    subscribe(site)
    site.send("1", to=NEWS)
    subscriber(site, durable_subscription_deletion=True).run(max_messages=1)
    site.send("2", to=NEWS)
    assert kept(site) == []


def test_deleted_by_a_stop_also_while_suspended(site: Site) -> None:
    """W27, W33."""
    subscribe(site)
    activation = subscriber(site, durable_subscription_deletion=True)
    activation.start()
    until(lambda: activation.state == "Up")
    assert activation.drain()
    assert activation.stop(timedelta(seconds=5))
    site.send("1", to=NEWS)
    assert kept(site) == []


def test_kept_by_default(site: Site) -> None:
    """W17, W33."""
    subscribe(site)
    activation = subscriber(site)
    activation.start()
    until(lambda: activation.state == "Up")
    assert activation.stop(timedelta(seconds=5))
    site.send("1", to=NEWS)
    assert kept(site) == ["1"]


def test_kept_when_the_run_is_broken_off(site: Site) -> None:
    """W33: a task that is killed will run again, and wants its messages then."""
    broken_off = threading.Event()
    activation = subscriber(site, lambda _: broken_off.set(), durable_subscription_deletion=True)
    subscribe(site)
    site.send("1", "2", to=NEWS)
    activation.run(max_messages=10, stop=broken_off)
    site.send("3", to=NEWS)
    assert kept(site)[-1] == "3"


def test_kept_when_a_handler_stops_the_activation(site: Site) -> None:
    """J172, W33: what it could not handle is still there."""
    subscribe(site)
    site.send("1", "2", to=NEWS)
    disk_full = lambda delivery: delivery.stop_message_delivery("disk full")  # noqa: E731 - it has no better name
    subscriber(site, disk_full, durable_subscription_deletion=True).run(max_messages=10)
    assert kept(site) == ["2"]


def test_kept_when_a_handler_is_left_alone(site: Site) -> None:
    """W33: its message comes again."""
    subscribe(site)
    site.send("1", to=NEWS)
    hanging = threading.Event()
    activation = subscriber(site, lambda _: hanging.wait(20), durable_subscription_deletion=True)
    activation.start()
    until(lambda: site.got == ["1"])
    assert not activation.stop(timedelta(seconds=0.2))
    hanging.set()
    assert kept(site) == ["1"]


def test_kept_when_a_stop_rolls_back_what_is_held(site: Site) -> None:
    """J198, W33: nobody has acknowledged it."""
    subscribe(site)
    site.send("1", to=NEWS)
    activation = subscriber(
        site, durable_subscription_deletion=True, hold_until_ack=True, concurrency_mode="cc"
    )
    activation.start()
    until(lambda: site.got == ["1"] and not activation.statistics().active)
    activation.stop(timedelta(seconds=5))
    assert kept(site) == ["1"]


def test_kept_when_a_message_waits_out_its_delay(site: Site) -> None:
    """W33: it was handled once and failed, and is to be handled again."""
    subscribe(site)
    site.send("1", to=NEWS)

    def fail(_: Delivery) -> None:
        raise ValueError("no stock")

    activation = subscriber(site, fail, durable_subscription_deletion=True, redelivery_handling="1:5000")
    activation.start()
    until(lambda: activation.counts.rolled_back == 1)
    activation.stop(timedelta(seconds=5))
    assert kept(site) == ["1"]


def test_kept_when_the_stop_comes_before_the_connection(site: Site) -> None:
    """W33: an attempt that succeeds later deletes nothing."""
    subscribe(site)
    site.send("1", to=NEWS)
    asked, answer, closed = threading.Event(), threading.Event(), threading.Event()

    class Late(MemoryConnection):
        def close(self) -> None:
            super().close()
            closed.set()

    def slow() -> Connection:
        asked.set()
        assert answer.wait(5)
        return Late(site.broker, replace(site.settings, client_id="c1"))

    activation = site.activation(nothing, connect_with=slow, **DURABLE, durable_subscription_deletion=True)
    activation.start()
    assert asked.wait(5)
    activation.stop(timedelta(seconds=5))
    answer.set()
    assert closed.wait(5)
    assert kept(site) == ["1"]


def test_kept_when_the_broker_is_away_at_the_end(site: Site) -> None:
    """W33: nothing can be deleted then, and a stop doesn't wait for it."""
    subscribe(site)
    activation = subscriber(site, durable_subscription_deletion=True)
    activation.start()
    until(lambda: activation.state == "Up")
    site.broker.kill()
    until(lambda: activation.state != "Up")
    assert activation.stop(timedelta(seconds=5))
    site.broker.restart()
    site.send("1", to=NEWS)
    assert kept(site) == ["1"]


def test_a_second_instance_stands_by_and_takes_over(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """J204, W31: it says so once, and not as a warning."""
    caplog.set_level(logging.INFO)
    subscribe(site)
    first, second = subscriber(site), subscriber(site)
    first.start()
    until(lambda: first.state == "Up")
    second.start()
    until(lambda: "standing by" in caplog.text)
    site.send("1", to=NEWS)
    until(lambda: first.counts.committed == 1)
    first.stop(timedelta(seconds=5))
    until(lambda: second.state == "Up")
    site.send("2", to=NEWS)
    until(lambda: second.counts.committed == 1)
    assert site.got == ["1", "2"]
    assert caplog.text.count("standing by") == 1
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_long_delay_is_held_here_for_the_others_sake(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """P18: a copy left to the broker would be published, and reach the subscriber that had no trouble."""
    caplog.set_level(logging.INFO)

    def fail(_: Delivery) -> None:
        raise ValueError("no stock")

    plain = {"destination": "topic://news", "destination_type": None}
    first = site.activation(fail, non_blocking_redelivery=True, redelivery_handling="1:6000", **plain)
    second = site.activation(nothing, **plain)
    for each in (first, second):
        each.start()
        assert each.consuming.wait(10)
    site.send("1", to=NEWS)
    until(lambda: second.counts.committed == 1)
    until(lambda: "delayed for 6000 ms" in caplog.text or first.counts.parked)
    assert (first.counts.parked, site.broker.delayed()) == (0, [])
    assert first.stop()
    assert second.stop()


def test_instances_with_client_ids_of_their_own_get_a_copy_each(site: Site) -> None:
    """W31: what `generate_unique_client_id` is for."""
    for name in ("c1", "c2"):
        subscribe(site, name)
    site.send("1", to=NEWS)
    for name in ("c1", "c2"):
        as_own = functools.partial(connect, replace(site.settings, client_id=name))
        site.activation(nothing, connect_with=as_own, **DURABLE).run(idle_for=QUICK)
    assert site.got == ["1", "1"]
