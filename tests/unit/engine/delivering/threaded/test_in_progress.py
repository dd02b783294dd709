"""The in-progress queue: staged, handled, removed; what an earlier run left is in doubt."""

from __future__ import annotations

import functools
import logging
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_jmsjca.core.activation import ActivationSpec
from airflow_provider_jmsjca.core.copies.in_progress import RUN, SOURCE, StagedFrom, staged_copy, unstaged
from airflow_provider_jmsjca.core.copies.parking import unparked
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.engine.delivering.delivery import Delivery
from airflow_provider_jmsjca.engine.delivering.settings import ListenerContext, listener_settings
from airflow_provider_jmsjca.errors import CapabilityError, ConfigurationError, PermanentBrokerError
from airflow_provider_jmsjca.transports.memory.connection import CAPABILITIES
from tests.dead_letters import original_of
from tests.unit.engine.brokers import LesserConnection
from tests.unit.engine.listening import QUICK, Site, every_mode, nothing, until

WORK = Destination.queue("work")
SPEC: dict[str, Any] = {"in_progress_destination": "queue://work"}


def leave_behind(site: Site, *bodies: str) -> None:
    """Put messages into the in-progress queue as a run that was killed leaves them."""
    for body in bodies:
        site.send(body, to=WORK, **{RUN: "killed", SOURCE: "queue://orders"})


def test_a_copy_comes_back_as_it_was() -> None:
    """I9: with the message's own id and properties."""
    message = replace(JmsMessage.text("a", {"region": "eu"}), message_id="ID:1")
    copy = replace(staged_copy(message, StagedFrom(run="r", source="queue://orders")), message_id="ID:2")
    assert (copy.properties[RUN], copy.properties[SOURCE]) == ("r", "queue://orders")
    back, staged = unstaged(unparked(copy)[0])
    assert staged == StagedFrom(run="r", source="queue://orders")
    assert (back.message_id, back.body, dict(back.properties)) == ("ID:1", "a", {"region": "eu"})


@every_mode
def test_a_message_stands_there_while_it_is_handled(site: Site, mode: dict[str, Any]) -> None:
    """I9: taken from its queue before, gone after."""
    site.send(*map(str, range(30)), region="eu")
    bodies: list[str] = []

    def look(delivery: Delivery) -> None:
        bodies.append(delivery.body)
        assert dict(delivery.properties) == {"region": "eu"}
        assert delivery.context.destination == Destination.queue("orders")
        assert delivery.body not in site.bodies("orders")
        assert site.broker.depth("work") >= 1

    counts = site.activation(look, **SPEC, **mode).run(idle_for=QUICK)
    assert sorted(bodies, key=int) == [str(number) for number in range(30)]
    assert (counts.committed, counts.rolled_back) == (30, 0)
    assert (site.broker.depth("orders"), site.broker.depth("work")) == (0, 0)


def test_serial_keeps_the_order_and_the_limit(site: Site) -> None:
    """J81, I9: what is over the limit stays in its own queue."""
    site.send(*map(str, range(30)))
    site.activation(nothing, **SPEC).run(max_messages=20)
    assert site.got == [str(number) for number in range(20)]
    assert (site.broker.depth("orders"), site.broker.depth("work")) == (10, 0)


def test_no_more_are_in_progress_than_can_be_handled(site: Site) -> None:
    """I9: so few are in doubt after a crash."""
    site.send(*map(str, range(30)))
    seen: list[int] = []
    site.activation(
        lambda _: seen.append(site.broker.depth("work")),
        concurrency_mode="cc",
        endpoint_pool_max_size=3,
        **SPEC,
    ).run(idle_for=QUICK)
    assert len(seen) == 30
    assert max(seen) <= 3


@every_mode
def test_a_failure_counts_and_moves_as_ever(site: Site, mode: dict[str, Any]) -> None:
    """I9, J129, J140, J155: the dead letter comes from the message's own queue."""
    site.send("a")

    def fail(_: Delivery) -> None:
        raise ValueError("no stock")

    activation = site.activation(fail, redelivery_handling="2:move(queue:$.dlq)", **SPEC, **mode)
    counts = activation.run(idle_for=QUICK)
    assert site.attempts == [("a", 0), ("a", 1)]
    assert (counts.delivered, counts.moved) == (2, 1)
    (message,) = site.broker.messages("orders.dlq")
    letter = original_of(message)
    assert letter is not None
    assert letter.origin.destination == Destination.queue("orders")
    assert RUN not in letter.message.properties
    assert site.broker.depth("work") == 0


def test_a_batch(site: Site) -> None:
    """J183, I9."""
    site.send(*map(str, range(6)))
    counts = site.activation(
        nothing, batch_size=3, concurrency_mode="cc", endpoint_pool_max_size=1, batch_idle_timeout=1, **SPEC
    ).run(max_messages=6)
    assert site.got == ["0", "1", "2", "END", "3", "4", "5", "END"]
    assert counts.committed == 6
    assert site.broker.depth("work") == 0


def test_with_several_destinations(site: Site) -> None:
    """I5, I9: each message knows its own."""
    site.send("a1", "a2", to=Destination.queue("A"))
    site.send("b1", to=Destination.queue("B"))
    seen: list[tuple[str, str]] = []
    site.activation(
        lambda delivery: seen.append((delivery.body, delivery.context.destination.name)),
        destination=["A", "B"],
        **SPEC,
    ).run(idle_for=QUICK)
    assert sorted(seen) == [("a1", "A"), ("a2", "A"), ("b1", "B")]


def test_an_outage_loses_nothing(site: Site) -> None:
    """I7, I8: in the middle of it all."""
    site.send(*map(str, range(40)))

    def kill_at_times(_: Delivery) -> None:
        if len(site.got) in {3, 10, 11, 25}:
            site.broker.restart()

    activation = site.activation(kill_at_times, concurrency_mode="cc", endpoint_pool_max_size=2, **SPEC)
    activation.start()
    until(lambda: set(site.got) == {str(number) for number in range(40)})
    until(lambda: site.broker.depth("orders") == site.broker.depth("work") == 0)


def test_suspended_and_resumed(site: Site) -> None:
    """W27, I9: what had been put there is handled after it."""
    site.send(*map(str, range(10)))
    activation = site.activation(nothing, **SPEC)
    activation.start()
    until(lambda: len(site.got) >= 3)
    assert activation.drain(timedelta(seconds=5))
    activation.resume()
    until(lambda: activation.counts.committed == 10)
    assert site.got == [str(number) for number in range(10)]


def test_reprocess_delivers_what_was_left_and_says_so(site: Site) -> None:
    """I11, I14: the default; `in_doubt` tells the function, and it knows where the message was from."""
    leave_behind(site, "left")
    site.send("new")
    doubts: dict[str, bool] = {}

    def note(delivery: Delivery) -> None:
        doubts[delivery.body] = delivery.context.in_doubt
        assert delivery.context.destination == Destination.queue("orders")

    site.activation(note, **SPEC).run(idle_for=QUICK)
    assert doubts == {"left": True, "new": False}
    assert site.broker.depth("work") == 0


def test_fail_on_startup(site: Site) -> None:
    """I10: at once, and nothing is touched."""
    leave_behind(site, "left")
    site.send("new")
    with pytest.raises(PermanentBrokerError, match=r"queue://work holds messages whose outcome is in doubt"):
        site.activation(nothing, in_doubt_events="FailOnStartUp", **SPEC).run(run_for=timedelta(seconds=5))
    assert site.got == []
    assert (site.bodies("work"), site.bodies("orders")) == (["left"], ["new"])


def test_fail_on_startup_is_about_the_start(site: Site) -> None:
    """I10: what is in progress when the connection is lost is this run's own."""
    site.send("new")

    def kill_once(_: Delivery) -> None:
        if len(site.got) == 1:
            site.broker.restart()

    activation = site.activation(kill_once, in_doubt_events="FailOnStartUp", **SPEC)
    assert activation.run(max_messages=1).committed == 1
    assert site.got == ["new", "new"]


@every_mode
def test_what_was_left_counts_for_the_limit(site: Site, mode: dict[str, Any]) -> None:
    """I11: `max_messages` is never exceeded, however many an earlier run left."""
    leave_behind(site, *map(str, range(8)))
    counts = site.activation(nothing, **SPEC, **mode).run(max_messages=2)
    assert (counts.delivered, counts.committed) == (2, 2)
    assert site.broker.depth("work") == 6


@pytest.mark.parametrize(("events", "errors"), [("log_error", 2), ("ignore", 0)])
def test_left_alone(site: Site, caplog: pytest.LogCaptureFixture, events: str, errors: int) -> None:
    """I12, I13: they stay where they are; one logs each by its id, the other is silent."""
    caplog.set_level(logging.ERROR)
    leave_behind(site, "left", "behind")
    site.send("new")
    site.activation(nothing, in_doubt_events=events, **SPEC).run(idle_for=QUICK)
    assert site.got == ["new"]
    assert site.bodies("work") == ["left", "behind"]
    logged = [record for record in caplog.records if "is in doubt; it stays" in record.getMessage()]
    assert len(logged) == errors


@pytest.mark.parametrize("events", ["log_error", "ignore"])
def test_left_alone_needs_a_selector(site: Site, events: str) -> None:
    """I12, I13: on RabbitMQ they could not be told from the others before they are received."""
    activation = site.activation(
        nothing,
        in_doubt_events=events,
        connect_with=functools.partial(LesserConnection, site.broker, replace(CAPABILITIES, selector=False)),
        **SPEC,
    )
    with pytest.raises(CapabilityError, match=f"in_doubt_events {events} needs the capability 'selector'"):
        activation.run(run_for=timedelta(seconds=5))


def test_a_queue_that_refuses_is_a_fault(site: Site) -> None:
    """I9: nothing is handled unprotected."""
    site.send("a")
    site.broker.forbid(WORK)
    with pytest.raises(PermanentBrokerError, match="refuses access to queue://work"):
        site.activation(nothing, **SPEC).run(run_for=timedelta(seconds=5))
    assert (site.got, site.bodies("orders")) == ([], ["a"])


def test_a_queue_that_refuses_later_holds_all_up(site: Site) -> None:
    """I9: nothing is handled unprotected, and it goes on when the queue takes messages again."""
    activation = site.activation(nothing, **SPEC)
    activation.start()
    until(lambda: activation.state == "Up")
    site.send("a")
    until(lambda: site.got == ["a"])
    site.broker.forbid(WORK)
    site.send("b")
    until(lambda: activation.counts.failed >= 1)
    assert site.got == ["a"]
    site.broker.permit(WORK)
    until(lambda: site.got == ["a", "b"])


@pytest.mark.parametrize(
    ("spec", "fault"),
    [
        ({"in_doubt_events": "ignore"}, "in_doubt_events: got ignore, which needs use_store or in_progress"),
        ({"in_progress_destination": "queue://orders"}, "in_progress_destination: got queue://orders, whi"),
    ],
)
def test_what_makes_no_sense_is_refused(spec: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigurationError, match=fault):
        Site.listener_settings(**spec)


def test_parking_is_refused() -> None:
    """P18, I9: a parked message would stand in neither queue."""
    with pytest.raises(
        ConfigurationError, match="non_blocking_redelivery can't be combined with in_progress_destination"
    ):
        listener_settings(
            ActivationSpec(destination="queue://orders", **SPEC),
            ListenerContext(non_blocking_redelivery=True),
        )
