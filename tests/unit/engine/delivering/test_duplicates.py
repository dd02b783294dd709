"""Duplicate event elimination: I15, I17."""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_jmsjca.core.copies.load_balancing import with_origin
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.engine.activations.listener import Listener
from airflow_provider_jmsjca.engine.collecting.batch_spec import EndReason
from airflow_provider_jmsjca.engine.delivering.delivery import Delivery
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import Outgoing
from tests.unit.engine.listening import ORDERS, QUICK, Site, every_mode, nothing, until


def send(site: Site, *bodies_and_ids: tuple[str, str]) -> None:
    """Send messages that come with an id of ours, as copies of a message do."""
    connection = connect(site.settings)
    for body, message_id in bodies_and_ids:
        original = replace(JmsMessage.text(body), message_id=message_id)
        connection.send([Outgoing(destination=ORDERS, message=with_origin(original, original, ORDERS))])
    connection.close()


@every_mode
def test_a_message_of_a_known_id_is_acknowledged_and_not_delivered_i17(
    site: Site, mode: dict[str, Any]
) -> None:
    """Also when other messages came in between, which the adapter missed."""
    activation = site.activation(nothing, duplicate_event_elimination=True, balanced=True, **mode)
    activation.start()
    send(site, ("a", "ID:1"), ("b", "ID:2"), ("c", "ID:3"))
    until(lambda: activation.counts.committed == 3)
    send(site, ("a again", "ID:1"), ("c again", "ID:3"), ("d", "ID:4"))
    until(lambda: activation.counts.committed == 4)
    until(lambda: site.broker.depth("orders") == 0)
    assert activation.stop()
    assert sorted(site.got) == ["a", "b", "c", "d"]
    assert (activation.counts.repeated, activation.counts.delivered) == (2, 4)


@every_mode
def test_what_came_again_came_all_the_same(site: Site, mode: dict[str, Any]) -> None:
    """A broker that sends again what it forgot keeps a listener from being idle, however long it takes."""
    activation = site.activation(nothing, duplicate_event_elimination=True, balanced=True, **mode)
    activation.start()
    send(site, ("a", "ID:1"))
    until(lambda: activation.counts.committed == 1)
    until(lambda: activation.idle_since() is not None)
    before = activation.idle_since()
    send(site, ("a again", "ID:1"))
    until(lambda: activation.counts.repeated == 1)
    until(lambda: activation.idle_since() is not None)
    after = activation.idle_since()
    assert activation.stop()
    assert before is not None
    assert after is not None
    assert after > before


@every_mode
def test_one_that_comes_while_its_like_is_in_hand_waits_for_it(site: Site, mode: dict[str, Any]) -> None:
    """I17: it is dropped when that one was handled."""
    handled = threading.Event()

    def hold(_: Delivery) -> None:
        handled.wait(5)

    activation = site.activation(hold, duplicate_event_elimination=True, balanced=True, **mode)
    send(site, ("a", "ID:1"), ("a again", "ID:1"), ("and again", "ID:1"))
    activation.start()
    until(lambda: site.got)
    handled.set()
    until(lambda: site.broker.depth("orders") == 0)
    assert activation.stop()
    assert (site.got, activation.counts.repeated) == (["a"], 2)


def test_a_failure_is_not_handled_and_one_moved_may_come_back(site: Site) -> None:
    """I17: its failed attempts are no duplicates, nor is what comes back from the dead letters."""

    def fail(delivery: Delivery) -> None:
        if delivery.body == "bad":
            raise ValueError("no stock")

    activation = site.activation(
        fail, duplicate_event_elimination=True, balanced=True, redelivery_handling="2:move(queue:dlq)"
    )
    send(site, ("bad", "ID:1"))
    activation.start()
    until(lambda: activation.counts.moved == 1)
    send(site, ("good", "ID:1"))
    until(lambda: activation.counts.committed == 1)
    assert activation.stop()
    assert (site.got, activation.counts.repeated) == (["bad", "bad", "good"], 0)


def test_what_waited_for_one_that_was_moved_has_its_turn(site: Site) -> None:
    """I17: nothing is dropped that was not handled."""

    def fail(delivery: Delivery) -> None:
        if delivery.body == "bad":
            raise ValueError("no stock")

    send(site, ("bad", "ID:1"), ("good", "ID:1"), ("good again", "ID:1"))
    counts = site.activation(
        fail,
        duplicate_event_elimination=True,
        balanced=True,
        concurrency_mode="cc",
        redelivery_handling="2:move(queue:dlq)",
    ).run(idle_for=QUICK)
    assert (site.got, site.bodies("dlq")) == (["bad", "bad", "good"], ["bad"])
    assert (counts.committed, counts.moved, counts.repeated) == (1, 1, 1)


def test_an_outage_lets_go_of_what_waited(site: Site) -> None:
    """I17, J13: all that was in hand comes again, and one of each id is handled."""

    def kill_once(_: Delivery) -> None:
        if len(site.got) == 1:
            site.broker.restart()

    send(site, ("a", "ID:1"), ("a again", "ID:1"), ("b", "ID:2"))
    counts = site.activation(kill_once, duplicate_event_elimination=True, balanced=True).run(idle_for=QUICK)
    assert site.got == ["a", "a", "b"]
    assert (counts.committed, counts.repeated, site.broker.depth("orders")) == (2, 1, 0)


def test_in_batches_and_in_progress(site: Site) -> None:
    """I9, I17, J183."""
    send(site, ("a", "ID:1"), ("a again", "ID:1"), ("b", "ID:2"))
    counts = site.activation(
        nothing,
        duplicate_event_elimination=True,
        balanced=True,
        in_progress_destination="working",
        concurrency_mode="cc",
        endpoint_pool_max_size=1,
        batch_size=2,
    ).run(idle_for=QUICK)
    assert sorted(body for body in site.got if body != "END") == ["a", "b"]
    assert (counts.committed, counts.repeated) == (2, 1)
    assert site.broker.depth("orders") == site.broker.depth("working") == 0


def test_without_it_every_message_is_delivered(site: Site) -> None:
    """I15: the broker gives no reason to think that it is the same."""
    send(site, ("a", "ID:1"), ("a again", "ID:1"))
    assert site.activation(nothing).run(idle_for=QUICK).committed == 2


def test_a_duplicate_takes_no_place_from_those_behind_it(site: Site) -> None:
    """A message was parked, so the limit has room for one more; a duplicate stands first in line."""
    send(site, ("a", "ID:1"), ("later", "ID:2"), ("a again", "ID:1"), ("b", "ID:3"))
    calls: list[Listener] = []

    def handler(delivery: Delivery) -> None:
        if delivery.body == "a":
            until(lambda: "later" in site.got)
        if delivery.body == "later":
            until(lambda: calls[0].counts.committed == 1)
            raise ValueError("later")

    pool = {"concurrency_mode": "cc", "endpoint_pool_max_size": 2}
    calls.append(
        site.activation(
            handler,
            duplicate_event_elimination=True,
            balanced=True,
            non_blocking_redelivery=True,
            redelivery_handling="1:6000",
            **pool,
        )
    )
    counts = calls[0].run(max_messages=2, run_for=timedelta(seconds=5))
    assert calls[0].ended_by is EndReason.COUNT
    assert (counts.committed, counts.parked, counts.repeated) == (2, 1, 1)


@every_mode
@pytest.mark.parametrize(
    "forged",
    [
        {"_JMSJCA_ParkedRedeliveryCount": 0, "_JMSJCA_ParkedJMSMessageID": "{victim}"},
        {
            "_JMSJCA_PublishedJMSDestination": "queue://orders",
            "_JMSJCA_PublishedJMSMessageID": "{victim}",
        },
    ],
    ids=["parked", "published"],
)
def test_nobody_names_the_id_of_a_message_that_is_yet_to_come(
    site: Site, mode: dict[str, Any], forged: dict[str, Any]
) -> None:
    site.send("probe", "first")
    ids = [re.fullmatch(r"(.*?)(\d+)", str(each.message_id)) for each in site.broker.messages("orders")]
    (stem, number), (_, next_number) = (each.groups() for each in ids if each is not None)
    victim = f"{stem}{int(number) + 3 * (int(next_number) - int(number))}"
    activation = site.activation(nothing, duplicate_event_elimination=True, **mode)
    activation.start()
    until(lambda: activation.counts.committed == 2)
    named = {name: victim if value == "{victim}" else value for name, value in forged.items()}
    site.send("forged", **named)
    until(lambda: activation.counts.committed == 3)
    site.send("victim")
    until(lambda: site.broker.depth("orders") == 0)
    until(lambda: activation.counts.committed == 4)
    assert site.got == ["probe", "first", "forged", "victim"]
    assert activation.counts.repeated == 0
