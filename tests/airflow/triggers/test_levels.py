"""A trigger is an activation: its spec and the levels below it hold as they do for a listener."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from airflow_provider_jmsjca import ActivationSpec, JmsActivationTrigger, JmsHook, JmsSensor, MemoryBroker
from tests.airflow.conftest import Publish
from tests.airflow.triggers.test_activation import send
from tests.airflow.triggers.test_redelivery import NOT_STORED, REFUSED, STORED, events
from tests.airflow.triggers.waiting import run, until
from tests.dead_letters import original_of
from tests.internals.core import ConcurrencyMode
from tests.internals.triggers import ActivationOptions


def say(monkeypatch: pytest.MonkeyPatch, server: MemoryBroker, **extra: Any) -> None:
    document = {"conn_type": "jms", "host": f"vm://{server.name}", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_JMS_TEST", json.dumps(document))


def test_the_handling_of_the_connections_options_replaces_that_of_the_trigger_j143_c12(
    server: MemoryBroker, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J95, J143, C12: the option, where present, replaces the field."""
    say(monkeypatch, server, options="JMSJCA.redeliveryhandling=1:move(queue:$.given-up)")

    async def work() -> None:
        publish("a")
        async with events(redelivery_handling="5:delete") as found:
            await until(lambda: found.bodies == ["a"])
            await found.settle("a", NOT_STORED)
            await until(lambda: server.depth("orders.given-up") == 1)

    run(work())


@pytest.mark.parametrize("level", ["connection", "installation", "spec", "attempts"])
def test_each_level_may_say_the_handling_j143(
    server: MemoryBroker, publish: Publish, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    """J31, J59, J143, P6: one that nobody repeats holds."""
    arguments: dict[str, Any] = {}
    match level:
        case "connection":
            say(monkeypatch, server, redelivery_handling="1:move(queue:$.given-up)")
        case "installation":
            monkeypatch.setenv("AIRFLOW__JMSJCA__REDELIVERY_HANDLING", "1:move(queue:$.given-up)")
        case "spec":
            arguments = {"spec": {"RedeliveryHandling": "1:move(queue:$.given-up)"}}
        case "attempts":
            arguments = {"spec": {"max_attempts": 1}, "dead_letter_destination": "orders.given-up"}

    async def work() -> None:
        publish("a")
        async with events(**arguments) as found:
            await until(lambda: found.bodies == ["a"])
            await found.settle("a", NOT_STORED)
            await until(lambda: server.depth("orders.given-up") == 1)

    run(work())


@pytest.mark.parametrize("redirect", [False, True])
def test_a_redirected_message_is_moved_as_it_is_j94(
    server: MemoryBroker, publish: Publish, monkeypatch: pytest.MonkeyPatch, redirect: bool
) -> None:
    """J94, J149: the connection may say it."""
    say(monkeypatch, server, options=f"JMSJCA.redeliveryredirect={redirect}")

    async def work() -> None:
        publish("a")
        async with events(redelivery_handling="1:move(queue:$.dead)") as found:
            await until(lambda: found.bodies == ["a"])
            await found.settle("a", NOT_STORED)
            await until(lambda: server.depth("orders.dead") == 1)
            (moved,) = server.messages("orders.dead")
            assert (original_of(moved) is None) is redirect
            assert moved.body == "a" or not redirect

    run(work())


def test_what_nobody_subscribes_to_is_moved_i30(server: MemoryBroker) -> None:
    async def work() -> None:
        send(server, "ours", region="eu")
        send(server, "theirs", region="us")
        async with events(message_selector="region = 'eu'", unsubscribed_destination="unwanted") as found:
            await until(lambda: server.depth("unwanted") == 1)
            await until(lambda: found.bodies == ["ours"])
            await found.settle("ours", STORED)
            await until(lambda: server.depth("orders") == 0)
            assert [message.body for message in server.messages("unwanted")] == ["theirs"]

    run(work())


def test_a_stored_message_is_archived_and_a_refused_one_goes_to_the_error_destination_i26_i28(
    server: MemoryBroker, publish: Publish
) -> None:
    async def work() -> None:
        publish("good", "bad")
        async with events(archive_destination="kept", error_destination="failed") as found:
            await until(lambda: len(found.bodies) == 2)
            await found.settle("good", STORED)
            await found.settle("bad", REFUSED)
            await until(lambda: (server.depth("kept"), server.depth("failed")) == (1, 1))
            assert [message.body for message in server.messages("kept")] == ["good"]

    run(work())


@pytest.mark.parametrize(
    ("arguments", "most"),
    [
        ({"concurrency_mode": "serial"}, 1),
        ({"concurrency_mode": "sync", "endpoint_pool_max_size": 2, "prefetch": 1}, 2),
        ({"endpoint_pool_max_size": 3}, 3),
        ({"prefetch": 4}, 4),
        ({"destination": "jmsjca://?name=orders&prefetch=2"}, 2),
        ({}, 6),
    ],
)
def test_no_more_events_are_under_way_than_the_spec_allows_j55_j81_j83(
    publish: Publish, arguments: dict[str, Any], most: int
) -> None:
    """J55, J81, J83."""

    async def work() -> None:
        publish(*"abcdef")
        _, kwargs = JmsActivationTrigger("jms_test", **{"destination": "orders"} | arguments).serialize()
        producer = JmsActivationTrigger.create_shared_stream_producer(kwargs)
        stream = producer.open_stream()
        for _ in range(most):
            await asyncio.wait_for(anext(stream), 10)
        another = asyncio.ensure_future(anext(stream))
        done, _ = await asyncio.wait({another}, timeout=0.2)
        assert not done
        another.cancel()
        await asyncio.gather(another, return_exceptions=True)
        await producer.aclose()

    run(work())


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(("held", "most"), [(False, 500), (True, 100)])
def test_where_nobody_says_so_as_many_events_are_under_way_as_airflow_stores_in_a_round(
    held: bool, most: int
) -> None:
    """A held message is asked for again and again: fewer of those."""
    trigger = JmsActivationTrigger("jms_test", "orders", hold_until_ack=held)

    async def work() -> None:
        effective, _ = await ActivationOptions.parse(trigger.serialize()[1]).settings()
        assert (effective.spec.prefetch, effective.spec.endpoint_pool_max_size) == (most, most)

    run(work())


@pytest.mark.parametrize(
    "destination", [["orders", "queue://invoices"], "orders;queue://invoices", " queue://orders ; invoices;"]
)
def test_several_destinations_take_turns_and_events_say_which_i3(
    destination: str | list[str], publish: Publish
) -> None:
    async def work() -> None:
        publish("a")
        publish("b", to="invoices")
        trigger = JmsActivationTrigger("jms_test", destination)
        producer = JmsActivationTrigger.create_shared_stream_producer(trigger.serialize()[1])
        stream = producer.open_stream()
        raws = [(await asyncio.wait_for(anext(stream), 10))[0] for _ in range(2)]
        events = [await trigger._event(raw) for raw in raws]
        assert None not in events
        found = {each.payload["message"]["body"]: each.payload["destination"] for each in events if each}
        assert found == {"a": "queue://orders", "b": "queue://invoices"}
        await producer.aclose()

    run(work())


def test_a_whole_spec_means_what_its_fields_mean() -> None:
    """J46: however it is given, and under whichever spelling, it is one stream."""
    spec = ActivationSpec(destination="queue://orders", concurrencyMode="cc", batchSize=1)
    whole = JmsActivationTrigger("jms_test", spec=spec)
    mapping = JmsActivationTrigger(
        spec={
            "destination": "queue://orders",
            "concurrency_mode": ConcurrencyMode.CC,
            "batch_size": "1",
            "jms_conn_id": "jms_test",
        }
    )
    fields = JmsActivationTrigger("jms_test", "orders", concurrency_mode="cc", batch_size=1)
    assert whole.shared_stream_key() == mapping.shared_stream_key() == fields.shared_stream_key()
    again = JmsActivationTrigger(**whole.serialize()[1])
    assert again.serialize() == whole.serialize()


def test_a_spec_may_say_where_the_broker_is(
    server: MemoryBroker, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J46, J68: by a URL of its own, without a default connection, or by the name of a connection."""
    monkeypatch.delenv("AIRFLOW_CONN_JMS_TEST")
    monkeypatch.setenv(
        "AIRFLOW_CONN_JMS_LOOKED_UP", json.dumps({"conn_type": "jms", "host": f"vm://{server.name}"})
    )

    async def first(**arguments: Any) -> str:
        _, kwargs = JmsActivationTrigger(destination="orders", **arguments).serialize()
        producer = JmsActivationTrigger.create_shared_stream_producer(kwargs)
        raw, _ = await asyncio.wait_for(anext(producer.open_stream()), 10)
        await producer.aclose()
        return str(raw.deliveries[0].message.body)

    async def work() -> None:
        publish("a")
        assert await first(connection_url=f"vm://{server.name}") == "a"
        assert await first(connection_url="lookup://jms_looked_up") == "a"

    run(work())


class TestSelectorParameters:
    """J178-J182: `${name}` from the installation, the connection and the environment, everywhere."""

    @pytest.fixture(params=["installation", "environment", "connection", "options", "url"])
    def _configured(self, request: Any, server: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
        match request.param:
            case "installation":
                monkeypatch.setenv("AIRFLOW__JMSJCA__PARAMETER.REGION", "eu")
            case "environment":
                monkeypatch.setenv("JMSJCA_PARAMETER_REGION", "eu")
            case "connection":
                say(monkeypatch, server, **{"parameter.region": "eu"})
            case "options":
                say(monkeypatch, server, options="JMSJCA.parameter.Region=eu")
            case "url":
                document = {"conn_type": "jms", "host": f"vm://{server.name}?JMSJCA.parameter.region=eu"}
                monkeypatch.setenv("AIRFLOW_CONN_JMS_TEST", json.dumps(document))

    @pytest.mark.usefixtures("_configured")
    def test_reach_trigger_sensor_and_session_j181(self, server: MemoryBroker) -> None:
        """J179, J181."""
        send(server, "theirs", region="us")
        sensor = JmsSensor(
            task_id="wait",
            destination="orders",
            jms_conn_id="jms_test",
            message_selector="region = '${Region}'",
        )
        assert not sensor.poke({})
        send(server, "ours", region="eu")
        assert sensor.poke({})

        async def work() -> None:
            async with events(message_selector="region = '${Region}'") as found:
                await until(lambda: found.bodies == ["ours"])
            async with events(message_selector="region = '${region}'", event="ready") as ready:
                await until(lambda: ready.count == 1)

        run(work())
        with JmsHook("jms_test").get_conn() as connection, connection.session() as session:
            found = session.receive("orders", timeout=20, selector="region = '${region}'")
            assert found is not None
            assert found.body == "ours"
            assert session.receive("orders", timeout=0.1, selector="region = '${region}'") is None

    def test_a_value_stays_a_value_j181(self, server: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
        """J179, J181: a hostile value selects nothing more."""
        say(monkeypatch, server, **{"parameter.region": "x' or 'a' = 'a"})
        send(server, "theirs", region="us")
        with JmsHook("jms_test").get_conn() as connection, connection.session() as session:
            assert session.receive("orders", timeout=0.1, selector="region = '${region}'") is None

    def test_other_variables_of_the_environment_are_not_read_j181(
        self, server: MemoryBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """J181: an unknown one stays as it is; a selector in a connection can't read the environment."""
        monkeypatch.setenv("REGION", "eu")
        send(server, "named", region="${REGION}")
        with JmsHook("jms_test").get_conn() as connection, connection.session() as session:
            found = session.receive("orders", timeout=20, selector="region = '${REGION}'")
            assert found is not None
