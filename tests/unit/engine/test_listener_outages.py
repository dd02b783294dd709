"""Outages, stopping, suspending, what is in doubt, what is parked."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.engine.delivery import Delivery
from airflow_provider_jmsjca.errors import AuthenticationError, CapabilityError
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import Capabilities, Connection
from tests.unit.engine.brokers import LesserConnection
from tests.unit.engine.listening import MODES, QUICK, Site, until

HALF_A_SECOND = 0.5
every_mode = pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode["concurrency_mode"])


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    yield made
    made.close()


def nothing(_: Delivery) -> None:
    """Handle a message by doing nothing."""


def fail(_: Delivery) -> None:
    raise ValueError("no stock")


def stop_seconds(activation: Any) -> float:
    began = time.monotonic()
    assert activation.stop(timedelta(seconds=5))
    return time.monotonic() - began


def test_starts_while_the_broker_is_down(site: Site) -> None:
    """J12, J119, W15."""
    site.broker.kill()
    activation = site.activation(nothing)
    activation.start()
    assert activation.state == "Connecting"
    site.broker.restart()
    site.send("a")
    until(lambda: activation.counts.committed == 1)
    assert activation.state == "Up"


@every_mode
def test_goes_on_after_an_outage(site: Site, mode: dict[str, Any]) -> None:
    """J13: nothing is lost, and what was settled doesn't come back."""
    site.send(*map(str, range(100)))

    def kill_at_50(delivery: Delivery) -> None:
        if delivery.body == "50" and delivery.redelivery_count == 0:
            site.broker.restart()

    activation = site.activation(kill_at_50, **mode)
    activation.start()
    until(lambda: site.broker.depth("orders") == 0)
    assert set(site.got) == {str(number) for number in range(100)}
    assert activation.statistics().connections == 2
    # Only what was in hand when the connection was lost may have come twice.
    assert len(site.got) <= 100 + 3


def test_what_was_sent_before_a_loss_is_not_sent(site: Site) -> None:
    """J13: the delivery comes again and sends it then."""
    site.send("a")

    def lose_once(delivery: Delivery) -> None:
        delivery.send("queue://out", JmsMessage.text(f"{delivery.redelivery_count}"))
        if delivery.redelivery_count == 0:
            site.broker.restart()

    activation = site.activation(lose_once)
    activation.start()
    until(lambda: site.broker.depth("orders") == 0)
    assert site.bodies("out") == ["1"]


def test_a_message_is_not_handled_twice_at_a_time(site: Site) -> None:
    """It comes back over the new connection while its handler still runs: it waits."""
    site.send("a")
    release, running, most = threading.Event(), [0], [0]

    def slow(delivery: Delivery) -> None:
        running[0] += 1
        most[0] = max(most[0], running[0])
        if delivery.redelivery_count == 0:
            site.broker.restart()
            assert release.wait(5)
        running[0] -= 1

    activation = site.activation(slow, concurrency_mode="cc", endpoint_pool_max_size=4)
    activation.start()
    until(lambda: activation.statistics().connections == 2)
    release.set()
    until(lambda: site.broker.depth("orders") == 0)
    assert most == [1]


def test_permanent_refusals_end_a_run(site: Site) -> None:
    """The task fails at once instead of waiting for somebody to mend the credentials."""
    site.broker.require_login("alice", "secret")
    with pytest.raises(AuthenticationError):
        site.activation(nothing).run(idle_for=timedelta(seconds=20))


def test_a_missing_capability_is_refused_at_start(site: Site) -> None:
    """Issue 5: with the name of the flag."""
    lesser = functools.partial(LesserConnection, site.broker, Capabilities(stable_message_id=True))
    with pytest.raises(CapabilityError, match="delayed_delivery"):
        site.activation(nothing, connect_with=lesser, park=True).run(idle_for=timedelta(seconds=20))
    with pytest.raises(CapabilityError, match="selector"):
        site.activation(nothing, connect_with=lesser, message_selector="a = 1").run(
            idle_for=timedelta(seconds=20)
        )


def test_suspension_after_an_outage(site: Site) -> None:
    """W24-W26: Down for as long as asked, then up again."""
    outage = {"init_suspend": 0.15, "max_suspend": 0.3}
    activation = site.activation(nothing, **outage)
    activation.start()
    until(lambda: activation.state == "Up")
    began = time.monotonic()
    site.broker.restart()
    until(lambda: activation.state == "Down")
    until(lambda: activation.state == "Up")
    assert time.monotonic() - began >= 0.15


@pytest.mark.parametrize(
    "spec",
    [
        *MODES,
        *(mode | unit for mode in MODES[1:] for unit in ({"batch_size": 2}, {"hold_until_ack": True})),
    ],
    ids=lambda spec: " ".join(map(str, spec.values())),
)
def test_stop_does_not_wait_for_a_delay(site: Site, spec: dict[str, Any]) -> None:
    """Issue 5: a delay of 5 s, alone, in batches, in hold-until-ack; the message goes back."""
    site.send("a")
    activation = site.activation(fail, redelivery_handling="1:5000", **spec)
    activation.start()
    until(lambda: activation.counts.rolled_back == 1)
    assert stop_seconds(activation) < HALF_A_SECOND
    assert site.bodies("orders") == ["a"]


def test_stop_does_not_wait_for_a_connect(site: Site) -> None:
    """The connection of the attempt that is left alone is closed when it comes."""
    asked, release = threading.Event(), threading.Event()

    def slow_connect() -> Connection:
        asked.set()
        assert release.wait(5)
        return connect(site.settings)

    activation = site.activation(nothing, connect_with=slow_connect)
    activation.start()
    assert asked.wait(5)
    assert stop_seconds(activation) < HALF_A_SECOND
    release.set()
    until(lambda: site.broker.connections == 0)


def test_stop_does_not_wait_for_back_off(site: Site) -> None:
    """J122."""
    site.broker.kill()
    activation = site.activation(nothing, polling_interval=60)
    activation.start()
    time.sleep(0.05)
    assert stop_seconds(activation) < HALF_A_SECOND


def test_stop_lets_handlers_finish(site: Site) -> None:
    """J119: Disconnecting meanwhile; the message is committed."""
    site.send("a", "b")
    begun, release = threading.Event(), threading.Event()

    def slow(_: Delivery) -> None:
        begun.set()
        assert release.wait(5)

    activation = site.activation(slow)
    activation.start()
    assert begun.wait(5)
    activation.request_stop()
    assert activation.state == "Disconnecting"
    release.set()
    assert activation.stop()
    assert activation.state == "Down"
    assert site.bodies("orders") == ["b"]


def test_a_handler_that_does_not_return_is_left_alone(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """Its delivery is rolled back, what it sends later is refused, and it is said."""
    site.send("a")
    begun, release, refused = threading.Event(), threading.Event(), threading.Event()

    def hang(delivery: Delivery) -> None:
        begun.set()
        release.wait(10)
        try:
            delivery.send("queue://out", JmsMessage.text("late"))
        finally:
            refused.set()

    activation = site.activation(hang)
    activation.start()
    assert begun.wait(5)
    began = time.monotonic()
    assert not activation.stop(timedelta(seconds=0.3))
    assert time.monotonic() - began < 0.3 + HALF_A_SECOND
    assert "left alone" in caplog.text
    until(lambda: site.broker.connections == 0)
    release.set()
    assert refused.wait(5)
    assert site.bodies("orders") == ["a"]
    assert site.bodies("out") == []


def test_starts_again_after_a_stop(site: Site) -> None:
    """J116: counts of attempts go on."""
    site.send("a")
    activation = site.activation(fail, redelivery_handling="1:5000")
    activation.start()
    until(lambda: activation.counts.rolled_back == 1)
    activation.stop()
    activation.start()
    until(lambda: activation.statistics().in_hand == 1)
    activation.stop()
    assert site.attempts == [("a", 0)]


def test_suspend_hands_back_and_resume_goes_on(site: Site) -> None:
    """J10, W27."""
    activation = site.activation(nothing)
    activation.start()
    until(lambda: activation.state == "Up")
    activation.suspend()
    assert activation.suspended
    until(lambda: not site.broker._queues)  # its consumer is gone
    site.send("a")
    assert activation.counts.delivered == 0
    activation.resume()
    until(lambda: activation.counts.committed == 1)


def test_drain_waits_for_what_is_being_handled(site: Site) -> None:
    site.send("a", "b")
    begun, release = threading.Event(), threading.Event()

    def slow(_: Delivery) -> None:
        begun.set()
        assert release.wait(5)

    activation = site.activation(slow)
    activation.start()
    assert begun.wait(5)
    assert not activation.drain(timedelta(seconds=0.1))
    release.set()
    assert activation.drain(timedelta(seconds=5))
    assert activation.counts.committed == 1
    assert site.bodies("orders") == ["b"]


def test_a_long_delay_is_the_brokers(site: Site) -> None:
    """Issue 5 item 7: nothing is held, and the count comes back with the message."""
    site.send("a", "b", region="eu")
    regions: list[dict[str, Any]] = []

    def fail_a(delivery: Delivery) -> None:
        regions.append(dict(delivery.properties))
        if delivery.body == "a" and delivery.redelivery_count < 2:
            raise ValueError("a")

    activation = site.activation(fail_a, park=True, redelivery_handling="1:6000")
    activation.start()
    until(lambda: activation.counts.parked == 1)
    until(lambda: activation.counts.committed == 1)
    site.broker.advance(timedelta(seconds=7))
    until(lambda: activation.counts.parked == 2)
    site.broker.advance(timedelta(seconds=7))
    until(lambda: activation.counts.committed == 2)
    assert site.attempts == [("a", 0), ("b", 0), ("a", 1), ("a", 2)]
    assert regions == [{"region": "eu"}] * 4
    assert site.broker.depth("orders") == 0


def test_durable_subscription_is_kept_or_deleted(site: Site) -> None:
    """W33."""
    topic = Destination.topic("news")
    site.settings = type(site.settings)(scheme="vm", hosts=site.settings.hosts, client_id="c1")
    spec = {
        "destination": "news", "destination_type": "topic", "subscription_durability": "durable",
        "subscription_name": "s1",
    }  # fmt: skip
    publisher = type(site.settings)(scheme="vm", hosts=site.settings.hosts)

    def publish(body: str) -> None:
        from airflow_provider_jmsjca.transports.base import Outgoing  # noqa: PLC0415 - only here

        connection = connect(publisher)
        connection.send([Outgoing(destination=topic, message=JmsMessage.text(body))])
        connection.close()

    site.activation(nothing, **spec).run(idle_for=QUICK)
    publish("kept")
    site.activation(nothing, durable_subscription_deletion=True, **spec).run(idle_for=QUICK)
    assert site.got == ["kept"]
    publish("missed")
    site.activation(nothing, **spec).run(idle_for=QUICK)
    assert site.got == ["kept"]
