"""What every activation has, whichever kind its spec asks for."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_provider_jmsjca.core.activation import ActivationSpec
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.engine.activations.activation import Activation
from airflow_provider_jmsjca.errors import (
    ConfigurationError,
    DeliveryStoppedError,
    TransientBrokerError,
    TransientStoreError,
)
from airflow_provider_jmsjca.store.base import EVERYTHING, Store
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import ConnectionSettings, Outgoing
from tests.memory_store import MemoryActivations, MemoryStore
from tests.unit.engine.listening import Site, until


def test_a_start_during_a_stop_waits_for_it_and_begins_anew(site: Site) -> None:
    inside, leave = threading.Event(), threading.Event()

    def hold(_delivery: Any) -> None:
        inside.set()
        leave.wait(5)

    activation = site.activation(hold)
    activation.start()
    site.send("one")
    assert inside.wait(5)
    activation.request_stop()
    starting = threading.Thread(target=activation.start)
    starting.start()
    starting.join(0.2)
    assert starting.is_alive()
    leave.set()
    starting.join(5)
    assert not starting.is_alive()
    assert activation.running
    assert activation.consuming.wait(5)
    site.send("two")
    until(lambda: activation.counts.committed == 1)


def test_a_handler_cannot_start_what_waits_for_it_to_return(site: Site) -> None:
    refused: list[ConfigurationError] = []

    def start(_delivery: Any) -> None:
        activation.request_stop()
        with pytest.raises(ConfigurationError, match=r"start\(\) waits for handlers") as found:
            activation.start()
        refused.append(found.value)

    activation = site.activation(start)
    site.send("one")
    activation.run(run_for=5)
    assert len(refused) == 1


@pytest.mark.parametrize("ends", [{"idle_for": 0.2}, {"idle_for": timedelta(seconds=0.2)}])
def test_times_are_seconds(site: Site, ends: dict[str, Any]) -> None:
    assert site.activation(lambda _: None).run(**ends, within=1).settled == 0


@pytest.mark.parametrize("within", ["5", True, None, float("nan"), 1e300])
def test_what_is_no_number_of_seconds_is_refused_by_name(site: Site, within: Any) -> None:
    with pytest.raises(ConfigurationError, match="within is"):
        site.activation(lambda _: None).stop(within)


URL = "vm://facade"
SETTINGS = ConnectionSettings(scheme="vm", hosts=(("facade", None),), client_id="theirs")
TOPIC = {"destination": "topic://prices", "subscription_durability": "durable", "subscription_name": "risk"}


@pytest.mark.parametrize("kind", ["plain", "every_member", "shared"])
def test_three_lines_consume_whatever_kind_the_spec_asks_for(site: Site, kind: str) -> None:
    fields: dict[str, dict[str, Any]] = {
        "plain": {"destination": "queue://orders"},
        "every_member": {
            "destination": "queue://orders",
            "distributed_destination_connection": "every_member",
        },
        "shared": TOPIC | {"subscription_name": "jmsjca://?distribution=1&subscribername=risk"},
    }
    got: list[Any] = []
    spec = ActivationSpec(**fields[kind])
    with Activation(spec, lambda delivery: got.append(delivery.body), connection=site.settings) as activation:
        assert (str(activation.state), activation.running, activation.ready) == ("Up", True, True)
        assert activation.server_type
        connection = connect(site.settings)
        connection.send([Outgoing(destination=spec.destinations[0], message=JmsMessage.text("one"))])
        connection.close()
        until(lambda: activation.counts.committed == 1)
        assert activation.statistics().counts.committed == activation.attributes()["NMessages"] == 1
        assert activation.statistics_by_part()
        assert activation.drain(5)
        assert activation.suspended
        activation.resume()
        activation.restart(5)
        activation.reset_statistics()
        assert activation.operate("getStatus") in {"Up", "Connecting"}
    assert not activation.running
    assert got == ["one"]
    assert activation.run(idle_for=0.2).settled == 0
    assert activation.report()["ended_by"] == "idle"


def test_a_block_that_never_consumes_says_why() -> None:
    activation = Activation(
        {"destination": "queue://orders"},
        print,
        connection="stomp://127.0.0.1:1",
        start_within=0.3,
    )
    activation.start()
    until(lambda: activation.statistics().refused)  # on a busy machine a refusal may take longer than 0.3 s
    said = r"orders: not consuming 0.3 s after its start \(state: Connecting\): .*127.0.0.1:1.*refused"
    with pytest.raises(TransientBrokerError, match=said), activation:
        raise AssertionError("the block must not begin")
    assert not activation.running


def test_settings_of_a_scheme_that_nobody_knows_are_refused_as_a_url_is() -> None:
    settings = ConnectionSettings(scheme="tcp", hosts=(("localhost", 61613),))
    with pytest.raises(ConfigurationError, match="no transport for scheme 'tcp'"):
        Activation({"destination": "queue://orders"}, print, connection=settings)


@pytest.mark.parametrize(
    ("spec", "connection", "url"),
    [
        ({}, "vm://by_url", "vm://by_url"),
        ({"connection_url": "vm://of_spec"}, "vm://by_url", "vm://of_spec"),
        ({"connection_url": "vm://of_spec"}, None, "vm://of_spec"),
    ],
)
def test_the_address_is_the_specs_else_the_connections(
    spec: dict[str, Any], connection: Any, url: str
) -> None:
    """J46."""
    found = Activation({"destination": "queue://orders"} | spec, print, connection=connection)
    assert found.settings.url == url


def test_two_addresses_or_none_are_refused(site: Site) -> None:
    spec = {"destination": "queue://orders"}
    with pytest.raises(
        ConfigurationError, match="connection_url: set in the spec, but the argument connection"
    ):
        Activation(spec | {"connection_url": "vm://other"}, print, connection=site.settings)
    with pytest.raises(ConfigurationError, match="connection_url: missing at every level"):
        Activation(spec, print)


def test_an_option_of_the_address_without_effect_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        Activation(
            {"destination": "queue://orders"}, print, connection="vm://said?JMSJCA.producerpooling=true"
        )
    (said,) = [text for text in caplog.messages if "producerpooling" in text]
    assert "accepted, no effect: a session sends" in said


@pytest.mark.parametrize(
    ("fields", "connection", "client_id"),
    [
        ({}, URL, "risk"),
        ({"client_id": "ours"}, SETTINGS, "ours"),
        ({}, SETTINGS, "theirs"),
        ({"client_id": "ours", "generate_unique_client_id": True}, URL, "ours-two"),
    ],
)
def test_the_client_id_is_said_in_one_place(fields: dict[str, Any], connection: Any, client_id: str) -> None:
    activation = Activation(TOPIC | fields, print, connection=connection, instance="two")
    assert activation.client_id == activation.settings.client_id == client_id


def test_a_durable_subscription_can_be_deleted(site: Site) -> None:
    spec = ActivationSpec(**TOPIC)
    activation = Activation(spec, print, connection=site.settings)
    with (
        activation,
        pytest.raises(ConfigurationError, match="is running; stop it before deleting its subscription"),
    ):
        activation.delete_subscription()
    connection = connect(site.settings)
    connection.send([Outgoing(destination=spec.destinations[0], message=JmsMessage.text("kept"))])
    connection.close()
    activation.delete_subscription()
    assert activation.run(idle_for=0.2).delivered == 0
    with pytest.raises(ConfigurationError, match="has no durable subscription"):
        Activation({"destination": "queue://orders"}, print, connection=site.settings).delete_subscription()


def test_the_number_of_messages_counts_every_call_of_the_handler_j117(site: Site) -> None:
    """An EndOfBatch message is one; the deliveries of messages leave it out."""
    calls: list[bool] = []
    site.send("one", "two")
    activation = site.activation(
        lambda delivery: calls.append(delivery.end_of_batch),
        concurrency_mode="cc",
        endpoint_pool_max_size=1,
        batch_size=2,
    )
    activation.run(idle_for=0.3)
    assert sorted(calls) == [False, False, True]
    assert activation.attributes()["NMessages"] == 3
    assert activation.counts.delivered == 2
    activation.run(idle_for=0.1)
    assert activation.attributes()["NMessages"] == 3, "the calls before a restart count too"
    assert activation.counts.delivered == 0
    activation.reset_statistics()
    assert activation.attributes()["NMessages"] == 0
    assert activation.attributes()["Suspended"] is True


# -- limbo, without Airflow ----------------------------------------------------------------------------------

DELAYED = {"destination": "queue://orders", "use_store": True, "redelivery_handling": "1:60000"}


def fail_once(got: list[Any]) -> Any:
    def handle(delivery: Any) -> None:
        got.append((delivery.body, delivery.redelivery_count))
        if delivery.redelivery_count == 0:
            raise ValueError("no stock")

    return handle


def release(store: Store, count: int) -> None:
    until(lambda: len(store.limbo.page()) == count)
    assert store.limbo.release(EVERYTHING, datetime.now(UTC)) == count


@pytest.mark.parametrize("jms_conn_id", ["", "orders"])
@pytest.mark.parametrize("kind", ["plain", "every_member"])
def test_a_listener_sends_its_own_delayed_messages(site: Site, kind: str, jms_conn_id: str) -> None:
    """Nobody else has to run, and the broker needn't be known to Airflow."""
    store, got = MemoryStore(), list[Any]()
    member = {} if kind == "plain" else {"distributed_destination_connection": "every_member"}
    site.send("one")
    with Activation(
        DELAYED | member,
        fail_once(got),
        connection=site.settings,
        non_blocking_redelivery=True,
        store=store,
        jms_conn_id=jms_conn_id,
    ) as activation:
        release(store, 1)
        until(lambda: activation.counts.committed == 1)
    assert got == [("one", 0), ("one", 1)]
    assert store.limbo.page() == store.attempts.page() == []


def test_the_next_run_sends_what_the_one_before_left_in_limbo(site: Site) -> None:
    store, got = MemoryStore(), list[Any]()
    activation = Activation(
        DELAYED, fail_once(got), connection=site.settings, non_blocking_redelivery=True, store=store
    )
    site.send("one")
    assert activation.run(idle_for=0.2).parked == 1
    release(store, 1)
    assert activation.run(max_messages=1).committed == 1


def test_a_block_begins_as_soon_as_a_suspended_activation_is_connected(site: Site) -> None:
    activation = Activation({"destination": "queue://orders"}, lambda _: None, connection=site.settings)
    site.send("a")
    activation.suspend()
    with activation:
        assert activation.suspended
        assert activation.counts.delivered == 0
        activation.resume()
        until(lambda: activation.counts.committed == 1)


@pytest.mark.parametrize("given", [0, -1, 1.5, float("nan"), True, "5"])
def test_a_maximum_that_is_no_number_of_messages_is_refused(site: Site, given: Any) -> None:
    activation = Activation({"destination": "queue://orders"}, lambda _: None, connection=site.settings)
    with pytest.raises(ConfigurationError, match="expected a whole number of at least 1"):
        activation.run(max_messages=given)
    assert not activation.running


# -- a stop that a handler asks for --------------------------------------------------------------------------

STORED = {"name": "booking", "destination": "queue://orders", "use_store": True}


def stop_delivery(delivery: Any) -> None:
    delivery.stop_message_delivery("disk full")


@pytest.mark.parametrize("kind", ["plain", "every_member", "shared"])
@pytest.mark.parametrize("retry_permanent_errors", [False, True])
def test_a_stop_by_the_handler_lasts_until_somebody_resumes_it_j172(
    site: Site, kind: str, *, retry_permanent_errors: bool
) -> None:
    """J172: in the next run, in another process, and however the activation is started."""
    fields: dict[str, dict[str, Any]] = {
        "plain": {},
        "every_member": {"distributed_destination_connection": "every_member"},
        "shared": TOPIC | {"subscription_name": "jmsjca://?distribution=1&subscribername=risk"},
    }
    spec = ActivationSpec(**STORED | {"retry_permanent_errors": retry_permanent_errors} | fields[kind])
    store, got = MemoryStore("host/1"), list[Any]()
    first = Activation(spec, stop_delivery, connection=site.settings, store=store)
    with first:
        connection = connect(site.settings)
        connection.send(
            Outgoing(destination=spec.destinations[0], message=JmsMessage.text(body)) for body in ("a", "b")
        )
        connection.close()
        until(lambda: not first.running)
    assert first.counts.committed == 1
    (order,) = store.activations.page()
    assert (order.reason, order.where) == ("disk full", "host/1")
    assert order.asked_by.startswith("the handler of message ID:")
    other = store.seen_from("host/2")
    second = Activation(
        spec, lambda delivery: got.append(delivery.body), connection=site.settings, store=other
    )
    with pytest.raises(DeliveryStoppedError, match=r"disk full. Nothing .* airflow jms activations resume '"):
        second.run(idle_for=5)
    with pytest.raises(DeliveryStoppedError, match="disk full"), second:
        raise AssertionError("the block must not begin")
    assert got == []
    assert store.activations.resume([order.activation]) == 1
    assert second.run(max_messages=1).committed == 1
    assert got == ["b"]


def test_an_acknowledgement_after_the_resume_does_not_stop_it_again_j172(site: Site) -> None:
    """J172: only what the handler requests after that counts, be it with the same reason."""
    store, held = MemoryStore(), list[Any]()

    def hold(delivery: Any) -> None:
        stop_delivery(delivery)
        held.append(delivery)

    activation = Activation(
        STORED | {"hold_until_ack": True, "concurrency_mode": "cc"},
        hold,
        connection=site.settings,
        store=store,
    )
    with activation:
        site.send("a")
        until(lambda: bool(store.activations.page()) and bool(held))
        (order,) = store.activations.page()
        assert store.activations.resume([order.activation]) == 1
        until(lambda: not activation.running)
        held[0].acknowledge()  # too late: the stop has rolled it back
    assert store.activations.page() == []
    stop_delivery(held[0])
    held[0].acknowledge()
    assert len(store.activations.page()) == 1


def test_while_the_stop_cannot_be_stored_its_message_is_not_acknowledged(site: Site) -> None:
    class Away(MemoryActivations):
        away = True

        def request_state(self, *order: Any, **why: Any) -> None:
            tried.set()
            if self.away:
                raise TransientStoreError("the database is away")
            super().request_state(*order, **why)

    store, tried = MemoryStore(), threading.Event()
    store.activations = Away("host/1", store.owners)
    activation = Activation(STORED, stop_delivery, connection=site.settings, store=store)
    site.send("a")
    activation.start()
    assert tried.wait(5)
    until(lambda: activation.statistics().refused)
    assert activation.counts.committed == 0
    Away.away = False
    until(lambda: not activation.running)
    assert activation.counts.committed == 1
    assert store.activations.page()


def test_without_a_store_a_stop_lasts_as_long_as_nobody_starts_it_again(site: Site) -> None:
    site.send("a", "b")
    activation = Activation({"destination": "queue://orders"}, stop_delivery, connection=site.settings)
    assert activation.run(idle_for=5).committed == 1
    assert activation.report()["stop_reason"] == "disk full"
    assert activation.run(idle_for=5).committed == 1
