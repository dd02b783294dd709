"""What a listener does with a message whose handler failed."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.engine.delivering.delivery import Delivery
from airflow_provider_jmsjca.errors import ConfigurationError, PoisonMessageError
from tests.unit.engine.listening import QUICK, Site, every_mode, fail, until


@every_mode
def test_moved_with_what_a_dead_letter_says(site: Site, mode: dict[str, Any]) -> None:
    """J145, J149, J154, J155, J163, and J134: the count at which it acts."""
    site.send("a", region="eu")
    counts = site.activation(fail, redelivery_handling="3:move(queue:$.dlq)", **mode).run(idle_for=QUICK)
    assert site.attempts == [("a", 0), ("a", 1), ("a", 2)]
    (letter,) = site.broker.messages("orders.dlq")
    properties = letter.properties
    assert letter.body == "a"
    assert properties["region"] == "eu"
    assert properties["JMS_Sun_JMSJCA_RedeliveryCount"] == 3
    assert properties["JMS_Sun_JMSJCA_OriginalDestinationName"] == "orders"
    assert properties["JMS_Sun_JMSJCA_ExceptionMessage"] == "no stock"
    assert (counts.moved, counts.committed, counts.settled) == (1, 0, 1)
    assert site.broker.depth("orders") == 0


@every_mode
def test_published_vector_of_delays(site: Site, mode: dict[str, Any]) -> None:
    """J137b: 1 x 10 + 4 x 15 + 5 x 30 ms, then the move at 15."""
    site.send("a")
    began: list[float] = []
    import time  # noqa: PLC0415 - a test about time

    def timed(_: Delivery) -> None:
        began.append(time.monotonic())
        raise ValueError("always")

    handling = "5:10; 6:15; 10:30; 15:move(queue:a)"
    site.activation(timed, redelivery_handling=handling, **mode).run(max_messages=1)
    assert len(began) == 15
    assert began[-1] - began[4] >= 0.220
    assert site.bodies("a") == ["a"]


@every_mode
def test_deleted_because_the_handling_says_so(site: Site, mode: dict[str, Any]) -> None:
    """J133."""
    site.send("a")
    counts = site.activation(fail, redelivery_handling="1:delete", **mode).run(idle_for=QUICK)
    assert (counts.delivered, counts.deleted) == (1, 1)
    assert site.broker.depth("orders") == 0


@every_mode
def test_non_retryable_goes_at_once(site: Site, mode: dict[str, Any]) -> None:
    """Poison means the dead-letter destination, without another attempt."""
    site.send("a", "b")

    def poisoned(delivery: Delivery) -> None:
        if delivery.body == "a":
            raise KeyError("unknown customer")
        raise PoisonMessageError("nonsense")

    site.activation(
        poisoned, non_retryable=["LookupError"], dead_letter_destination="queue://dead", **mode
    ).run(idle_for=QUICK)
    assert sorted(site.attempts) == [("a", 0), ("b", 0)]
    assert sorted(site.bodies("dead")) == ["a", "b"]


@every_mode
def test_a_move_that_fails_leaves_the_message_to_be_delivered(site: Site, mode: dict[str, Any]) -> None:
    """J142, J167: copied, redirected, and at last delivered."""
    site.broker.forbid(Destination.queue("dlq"))
    site.send("a")

    def fail_twice(delivery: Delivery) -> None:
        if delivery.redelivery_count < 2:
            raise ValueError("not yet")

    counts = site.activation(fail_twice, redelivery_handling="2:move(queue:dlq)", **mode).run(idle_for=QUICK)
    assert site.attempts == [("a", 0), ("a", 1), ("a", 2)]
    assert (counts.moved, counts.committed, counts.failed) == (0, 1, 2)


@every_mode
def test_redirected_unchanged(site: Site, mode: dict[str, Any]) -> None:
    """J94, J149."""
    site.send("a", region="eu")
    handling = "1:move(queue:dlq)"
    site.activation(fail, redelivery_handling=handling, redelivery_redirect=True, **mode).run(idle_for=QUICK)
    (letter,) = site.broker.messages("dlq")
    assert dict(letter.properties) == {"region": "eu"}


@every_mode
def test_what_the_handler_leaves_is_there_the_next_time(site: Site, mode: dict[str, Any]) -> None:
    """J169, J173."""
    site.send("a")
    read: list[tuple[str | None, str | None]] = []

    def leave(delivery: Delivery) -> None:
        read.append((delivery.get_string("_JMSJCA_UserRollbackDatastep"), delivery.exception_message))
        delivery.set_property("JMS_Sun_JMSJCA_UserRollbackData.step", "2")
        if delivery.redelivery_count == 0:
            raise ValueError("once")

    site.activation(leave, **mode).run(idle_for=QUICK)
    assert read == [(None, None), ("2", "once")]


@every_mode
def test_handling_for_one_message(site: Site, mode: dict[str, Any]) -> None:
    """J171: the others keep that of the activation."""
    site.send("a", "b")

    def choose(delivery: Delivery) -> None:
        if delivery.body == "a":
            delivery.redelivery_handling = "1:move(queue:special)"
            raise ValueError("special")
        if delivery.redelivery_count < 2:
            raise ValueError("usual")

    site.activation(choose, **mode).run(idle_for=QUICK)
    assert sorted(site.attempts) == [("a", 0), ("b", 0), ("b", 1), ("b", 2)]
    assert site.bodies("special") == ["a"]


def test_handling_for_one_message_that_would_have_to_be_looked_up_is_refused(site: Site) -> None:
    """J171: nothing is moved to a queue of that name."""
    site.send("a")
    said: list[str] = []

    def choose(delivery: Delivery) -> None:
        delivery.redelivery_handling = "5:move(queue:usual)"
        with pytest.raises(ConfigurationError) as caught:
            delivery.redelivery_handling = "1:move(queue:special,queue:lookup://dead)"
        said.append(str(caught.value))
        assert delivery.redelivery_handling == "5:move(queue:usual)"

    assert site.activation(choose).run(idle_for=QUICK).committed == 1
    (text,) = said
    assert "lookup://dead is a lookup" in text
    assert "give the name of the destination" in text


def test_the_handler_stops_the_activation(site: Site) -> None:
    """J172: its own message is committed, the rest stays."""
    site.send("a", "b", "c")
    activation = site.activation(lambda delivery: delivery.stop_message_delivery("disk full"))
    activation.start()
    until(lambda: activation.stop_reason)
    assert activation.stop_reason == "disk full"
    until(lambda: site.bodies("orders") == ["b", "c"])
    assert site.got == ["a"]
