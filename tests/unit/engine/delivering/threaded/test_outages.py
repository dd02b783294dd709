"""Outages, stopping, suspending, what is in doubt, what is parked."""

from __future__ import annotations

import functools
import logging
import threading
import time
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_jmsjca.core.backoff import Backoff
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.engine.activations.listener import Listener
from airflow_provider_jmsjca.engine.activations.run import one_connection
from airflow_provider_jmsjca.engine.delivering.delivery import Delivery
from airflow_provider_jmsjca.errors import (
    AuthenticationError,
    CapabilityError,
    ConnectionLostError,
    PermanentBrokerError,
)
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import Capabilities, Connection, Received
from airflow_provider_jmsjca.transports.memory.connection import MemoryConsumer
from tests.pace import at_most
from tests.unit.engine.brokers import LesserConnection
from tests.unit.engine.listening import MODES, ORDERS, QUICK, Site, every_mode, fail, nothing, until


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
    assert activation.consuming.wait(5)
    assert activation.state == "Up"
    site.send("a")
    until(lambda: activation.counts.committed == 1)


def test_goes_on_at_another_host_w41(site: Site) -> None:
    """W41: after a loss every host of the list is tried."""
    other = Site()
    hosts = site.settings.hosts + other.settings.hosts
    activation = site.activation(
        nothing, connect_with=functools.partial(connect, replace(site.settings, hosts=hosts))
    )
    activation.start()
    site.send("here")
    until(lambda: activation.counts.committed == 1)
    other.send("there")
    site.broker.kill()
    until(lambda: activation.counts.committed == 2)
    assert site.got == ["here", "there"]
    assert activation.server == (other.broker.name, "")


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


@pytest.mark.parametrize(
    "spec", [*MODES, {"concurrency_mode": "cc", "endpoint_pool_max_size": 1, "batch_size": 3}]
)
def test_every_call_is_counted_once_also_if_its_commit_is_lost(site: Site, spec: dict[str, Any]) -> None:
    """J121: committed or rolled back."""
    site.send(*map(str, range(30)))

    due = {"5", "11", "20"}

    def break_now_and_then(delivery: Delivery) -> None:
        if not delivery.end_of_batch and delivery.body in due:
            due.remove(delivery.body)
            site.broker.restart()

    counts = site.activation(break_now_and_then, **spec).run(idle_for=QUICK, run_for=timedelta(seconds=5))
    assert counts.committed == 30
    assert counts.rolled_back == counts.delivered - 30 >= 3


def test_a_call_of_a_batch_that_never_was_is_not_counted(site: Site) -> None:
    """The connection is gone when b's turn comes, and the batch ends as if it had been handled."""
    site.send("a", "b")

    class Breaking(LesserConnection):
        def unit(self) -> Any:
            inner: Any = super().unit()
            acknowledge = inner.acknowledge

            def break_at_b(received: Received) -> None:
                if received.message.body == "b" and not received.message.redelivered:
                    inner.commit = lost
                    raise ConnectionLostError("it broke")
                acknowledge(received)

            inner.acknowledge = break_at_b
            return inner

    def lost() -> None:
        site.broker.restart()
        raise ConnectionLostError("it broke")

    activation = site.activation(
        nothing,
        connect_with=lambda: Breaking(site.broker),
        concurrency_mode="cc",
        endpoint_pool_max_size=1,
        batch_size=2,
    )
    counts = activation.run(max_messages=2, run_for=timedelta(seconds=5))
    assert site.got == ["a", "END", "a", "b", "END"]
    assert (counts.delivered, counts.committed, counts.rolled_back) == (3, 2, 1)


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


def test_an_outage_formats_no_traceback(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody would read it, and a thousand activations would pay for theirs at every attempt."""
    formatted: list[object] = []
    monkeypatch.setattr(
        "airflow_provider_jmsjca.core.failure.traceback.format_exception",
        lambda error: formatted.append(error) or [],
    )
    listener = site.activation(nothing)
    listener.start()
    until(listener.consuming.is_set)
    site.broker.kill()
    until(lambda: listener.state != "Up")
    site.broker.restart()
    until(listener.consuming.is_set)
    listener.stop()
    assert formatted == []


def test_permanent_refusals_end_a_run(site: Site) -> None:
    """The task fails at once instead of waiting for somebody to mend the credentials."""
    site.broker.require_login("alice", "secret")
    with pytest.raises(AuthenticationError):
        site.activation(nothing).run(idle_for=timedelta(seconds=20))


def test_a_refusal_after_start_is_an_error_in_the_log_and_stays_in_the_statistics(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody is there to raise it to: a service must not stand still in silence."""
    site.broker.require_login("alice", "secret")
    activation = site.activation(nothing)
    activation.start()
    until(lambda: not activation.running)
    (refused,) = activation.statistics().refused
    assert isinstance(activation.fault, AuthenticationError)
    assert activation.state == "Down"
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR] == [
        f"{activation.settings.name}: message delivery stops: the broker refuses: {refused}"
    ]


def test_a_stop_by_the_handler_is_a_warning_in_the_log(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.send("one")
    activation = site.activation(lambda delivery: delivery.stop_message_delivery("enough"))
    activation.start()
    until(lambda: not activation.running)
    (line,) = [record for record in caplog.records if "message delivery stops" in record.getMessage()]
    assert (line.levelno, line.getMessage().endswith("stops: enough")) == (logging.WARNING, True)


def test_the_statistics_say_why_there_is_no_connection(site: Site) -> None:
    site.broker.kill()
    activation = site.activation(nothing)
    activation.start()
    until(lambda: activation.statistics().refused)
    assert activation.statistics().refused == (f"vm://{site.broker.name} is down",)
    site.broker.restart()
    assert activation.consuming.wait(5)
    assert activation.statistics().refused == ()


def test_pauses_grow_while_the_destination_is_refused(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """J108, J122: each connection comes up and brings nothing; it is said once."""
    site.broker.forbid(ORDERS)
    opened: list[float] = []

    def connect_with() -> Connection:
        opened.append(time.monotonic())
        return connect(site.settings)

    settings = site.listener_settings(retry_permanent_errors=True, minimal_reconnect_logging=True)
    backoff = Backoff(steps=tuple(timedelta(milliseconds=each) for each in (20, 50, 400)), jitter=0)
    outage = replace(settings.delivery.outage, backoff=backoff)
    settings = replace(settings, delivery=replace(settings.delivery, outage=outage))
    activation = Listener(one_connection(settings, connect_with), nothing)
    activation.start()
    until(lambda: len(opened) == 4)
    assert activation.stop(timedelta(seconds=5))
    assert opened[3] - opened[2] > 0.3
    errors = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.levelno for record in errors] == [logging.ERROR]


def test_a_missing_capability_is_refused_at_start(site: Site) -> None:
    """With the name of the flag."""
    lesser = functools.partial(LesserConnection, site.broker, Capabilities(stable_message_id=True))
    with pytest.raises(CapabilityError, match="delayed_delivery"):
        site.activation(nothing, connect_with=lesser, non_blocking_redelivery=True).run(
            idle_for=timedelta(seconds=20)
        )
    with pytest.raises(CapabilityError, match="selector"):
        site.activation(nothing, connect_with=lesser, message_selector="a = 1").run(
            idle_for=timedelta(seconds=20)
        )


def test_suspension_after_an_outage(site: Site) -> None:
    """W24: Down for as long as asked, then up again."""
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
    """A delay of 5 s, alone, in batches, in hold-until-ack; the message goes back."""
    site.send("a")
    activation = site.activation(fail, redelivery_handling="1:5000", **spec)
    activation.start()
    until(lambda: activation.counts.rolled_back == 1)
    assert stop_seconds(activation) < at_most(0.5)
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
    assert stop_seconds(activation) < at_most(0.5)
    release.set()
    until(lambda: site.broker.connections == 0)


def test_stop_does_not_wait_for_back_off(site: Site) -> None:
    """J122."""
    site.broker.kill()
    activation = site.activation(nothing, polling_interval=60)
    activation.start()
    until(lambda: activation.statistics().refused)  # the first attempt has failed
    assert stop_seconds(activation) < at_most(0.5)


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
    assert time.monotonic() - began < 0.3 + at_most(0.5)
    assert "stopping without waiting any longer for handlers" in caplog.text
    until(lambda: site.broker.connections == 0)
    release.set()
    assert refused.wait(5)
    assert site.bodies("orders") == ["a"]
    assert site.bodies("out") == []


def hanging_and_stopping(site: Site, release: threading.Event, **spec: Any) -> Listener:
    """Return an activation one of whose handlers hangs while another one asks for a stop."""

    def handler(delivery: Delivery) -> None:
        if delivery.body == "hangs" and not delivery.redelivery_count:
            release.wait(20)
        elif delivery.body == "stops":
            until(lambda: "hangs" in site.got)
            delivery.stop_message_delivery("enough")

    site.send("hangs", "stops")
    return site.activation(handler, concurrency_mode="cc", endpoint_pool_max_size=2, **spec)


def test_a_second_stop_may_be_quicker(site: Site) -> None:
    """The handler's leaves the others half a minute."""
    release = threading.Event()
    activation = hanging_and_stopping(site, release)
    activation.start()
    until(lambda: activation.state == "Disconnecting")
    began = time.monotonic()
    assert not activation.stop(timedelta(seconds=0.2))
    assert time.monotonic() - began < 0.2 + at_most(0.5)
    until(lambda: site.broker.connections == 0)
    release.set()
    assert not activation.running
    assert site.bodies("orders") == ["hangs"]


@pytest.mark.parametrize("at_the_end", [False, True])
def test_a_run_that_is_broken_off_has_less_time(site: Site, *, at_the_end: bool) -> None:
    go_on, broken_off = threading.Event(), threading.Event()
    site.send("a")
    activation = site.activation(lambda _: go_on.wait(10))
    ends = {"run_for": timedelta(seconds=0.3)} if at_the_end else {}
    running = threading.Thread(
        target=lambda: activation.run(
            stop=broken_off, within=timedelta(seconds=10), within_if_stopped=QUICK, **ends
        )
    )
    running.start()
    until(lambda: site.got and (activation.state == "Disconnecting" or not at_the_end))
    began = time.monotonic()
    broken_off.set()
    running.join()
    took = time.monotonic() - began
    connections = site.broker.connections
    go_on.set()
    assert took < at_most(1)
    assert connections == 0
    assert activation.counts.rolled_back == 1


def test_a_restart_starts_again_although_a_stop_is_under_way(site: Site) -> None:
    release = threading.Event()
    activation = hanging_and_stopping(site, release)
    activation.start()
    until(lambda: activation.state == "Disconnecting")
    activation.restart(timedelta(seconds=0.1))
    release.set()
    site.send("new")
    until(lambda: "new" in site.got)


def test_a_run_waits_for_handlers_no_longer_than_it_says_if_one_of_them_stops_it(site: Site) -> None:
    release = threading.Event()
    activation = hanging_and_stopping(site, release)
    began = time.monotonic()
    activation.run(within=timedelta(seconds=0.2))
    assert time.monotonic() - began < 0.2 + at_most(1)
    release.set()
    assert activation.stop_reason == "enough"


def test_starts_again_after_a_stop(site: Site) -> None:
    """J116: counts of attempts go on."""
    site.send("a")
    activation = site.activation(fail, redelivery_handling="1:5000")
    activation.start()
    until(lambda: activation.counts.rolled_back == 1)
    activation.stop()
    activation.start()
    until(lambda: activation.statistics().in_flight == 1)
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


def test_suspended_before_its_start_it_delivers_nothing_until_it_is_resumed(site: Site) -> None:
    """J10, W27."""
    site.send("a")
    activation = site.activation(nothing)
    activation.suspend()
    assert activation.suspended
    activation.start()
    until(lambda: activation.state == "Up")
    assert activation.suspended
    assert activation.run(run_for=0.3).delivered == 0
    assert not activation.suspended  # the run is over
    assert activation.run(max_messages=1).committed == 1
    activation.suspend()
    activation.resume()
    site.send("b")
    assert activation.run(max_messages=1).committed == 1
    activation.suspend()
    site.send("c")
    activation.start()
    activation.resume()
    until(lambda: activation.counts.committed == 1)


def test_suspended_every_receiver_is_closed_also_if_one_of_them_says_no(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W27: what the others had would come to nobody."""
    close, first = MemoryConsumer.close, iter([True])

    def refusing(consumer: MemoryConsumer) -> None:
        close(consumer)
        if next(first, False):
            raise PermanentBrokerError("an ERROR that names nothing came meanwhile")

    monkeypatch.setattr(MemoryConsumer, "close", refusing)
    activation = site.activation(nothing, concurrency_mode="sync", endpoint_pool_max_size=3)
    activation.start()
    until(lambda: site.broker.queue("orders").consumer_count == 3)
    activation.suspend()
    until(lambda: not site.broker.queue("orders").consumer_count)
    site.send("a", "b", "c")
    assert site.activation(nothing).run(max_messages=3, run_for=timedelta(seconds=5)).committed == 3


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
    """Nothing is held, and the count comes back with the message."""
    site.send("a", "b", region="eu")
    regions: list[dict[str, Any]] = []

    def fail_a(delivery: Delivery) -> None:
        regions.append(dict(delivery.properties))
        if delivery.body == "a" and delivery.redelivery_count < 2:
            raise ValueError("a")

    activation = site.activation(fail_a, non_blocking_redelivery=True, redelivery_handling="1:6000")
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


def test_up_and_consuming_mean_that_the_broker_has_confirmed_the_subscription(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """A7 of what hard use broke; J119."""
    caplog.set_level(logging.INFO)
    subscribing, confirmed = threading.Event(), threading.Event()

    def connecting() -> Connection:
        connection: Any = connect(site.settings)
        consume = connection.consume

        def slowly(*given: Any) -> Any:
            subscribing.set()
            assert confirmed.wait(5)
            return consume(*given)

        connection.consume = slowly
        return connection  # type: ignore[no-any-return]  # it was one

    activation = site.activation(nothing, connect_with=connecting)
    activation.start()
    assert subscribing.wait(5)
    assert (activation.state, activation.consuming.is_set()) == ("Connecting", False)
    assert "consuming" not in caplog.text
    confirmed.set()
    assert activation.consuming.wait(5)
    assert activation.state == "Up"
    assert "consuming from" in caplog.text
    activation.suspend()
    until(lambda: not activation.consuming.is_set())
    assert activation.state == "Up"
    confirmed.clear()
    subscribing.clear()
    activation.resume()
    assert subscribing.wait(5)
    assert (activation.state, activation.consuming.is_set()) == ("Connecting", False)
    confirmed.set()
    assert activation.consuming.wait(5)
    site.broker.kill()
    until(lambda: not activation.consuming.is_set())
    site.broker.restart()
    assert activation.consuming.wait(5)
    activation.stop()
    assert not activation.consuming.is_set()
