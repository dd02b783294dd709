"""How many handlers run side by side, and in which order."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from airflow_provider_jmsjca.core.destination import Destination, DestinationKind
from airflow_provider_jmsjca.engine.delivering.delivery import Delivery
from tests.unit.engine.brokers import LesserConnection
from tests.unit.engine.listening import MODES, QUICK, Site, every_mode, nothing, until


@every_mode
def test_a_group_keeps_its_order(site: Site, mode: dict[str, Any]) -> None:
    """JMSXGroupID in every mode, and redelivery doesn't break it."""
    for number in range(40):
        site.send(f"{number}", JMSXGroupID=f"g{number % 3}")

    def sometimes(delivery: Delivery) -> None:
        if int(delivery.body) % 7 == 0 and delivery.redelivery_count == 0:
            raise ValueError("first time")

    site.activation(sometimes, **mode).run(idle_for=QUICK)
    for group in range(3):
        done = [
            int(body) for body, count in site.attempts if int(body) % 3 == group and (int(body) % 7 or count)
        ]
        assert done == [number for number in range(40) if number % 3 == group]


@pytest.mark.parametrize("mode", MODES[1:], ids=lambda mode: mode["concurrency_mode"])
def test_handlers_run_side_by_side_up_to_the_limit(site: Site, mode: dict[str, Any]) -> None:
    """J16, J55, J82, J83, J117."""
    site.send(*map(str, range(9)))
    together = threading.Barrier(3, timeout=5)
    activation = site.activation(lambda _: together.wait() and None, **mode)
    counts = activation.run(max_messages=9)
    assert counts.committed == 9
    assert activation.statistics().highest_active == 3


def test_serial_handles_one_message_at_a_time(site: Site) -> None:
    """J16, J81: however large the pool may be."""
    at_work = threading.Lock()

    def alone(_: Delivery) -> None:
        assert at_work.acquire(blocking=False)
        at_work.release()

    site.send(*map(str, range(20)))
    activation = site.activation(alone, concurrency_mode="serial", endpoint_pool_max_size=4)
    assert activation.run(max_messages=20).committed == 20
    assert site.got == [str(number) for number in range(20)]
    assert activation.statistics().highest_active == 1


def test_serial_and_topics_run_one_at_a_time() -> None:
    """J81, J83: several receivers would each get every message of a topic."""
    assert Site.listener_settings().delivery.concurrency == 1
    topic = Site.listener_settings(destination_type="topic", concurrency_mode="sync")
    assert (topic.delivery.concurrency, topic.receivers) == (1, 1)


@pytest.mark.parametrize(("kind", "receivers"), [("queue", 4), ("topic", 1)])
def test_sync_has_receivers_of_its_own(site: Site, kind: str, receivers: int) -> None:
    """J16, W7, J83, J84: on a topic each would get every message."""
    spec = {"destination_type": kind, "concurrency_mode": "sync", "endpoint_pool_max_size": 4}
    connection = LesserConnection(site.broker)
    activation = site.activation(nothing, connect_with=lambda: connection, **spec)
    activation.start()
    until(lambda: len(connection.subscribed) == receivers)
    site.send("a", "b", to=Destination(name="orders", kind=DestinationKind(kind)))
    until(lambda: activation.counts.committed == 2)
    assert len(connection.subscribed) == receivers
    assert sorted(site.got) == ["a", "b"]
    settings = activation.settings
    assert (settings.receivers, settings.delivery.concurrency) == (receivers, receivers)
    assert settings.subscription.prefetch == {"queue": 25, "topic": None}[kind]


def test_a_slow_handler_does_not_hold_up_the_others(site: Site) -> None:
    """Mode cc hands what has come to whoever is free."""
    release = threading.Event()
    site.send("slow", *map(str, range(20)))

    def handle(delivery: Delivery) -> None:
        if delivery.body == "slow":
            assert release.wait(5)

    activation = site.activation(handle, concurrency_mode="cc", endpoint_pool_max_size=2)
    activation.start()
    until(lambda: activation.counts.committed == 20)
    release.set()
    until(lambda: activation.counts.committed == 21)


def test_the_pool_grows_with_work_and_shrinks_when_idle(site: Site) -> None:
    """J63, J117, W1, W2, W3: initial and most threads, idle timeout."""
    release = threading.Event()
    activation = site.activation(
        lambda _: release.wait(5) and None,
        concurrency_mode="cc",
        endpoint_pool_max_size=4,
        endpoint_pool_steady_size=1,
        pool_idle_timeout=0.1,
    )
    activation.start()
    assert activation.statistics().threads == 1
    site.send(*map(str, range(4)))
    until(lambda: activation.statistics().active == 4)
    assert activation.statistics().threads == 4
    release.set()
    until(lambda: activation.statistics().threads == 1)
    site.send("more")
    until(lambda: activation.counts.committed == 5)
