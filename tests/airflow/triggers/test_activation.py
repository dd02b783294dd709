from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
import warnings
from collections.abc import AsyncIterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import Asset
from airflow.sdk.execution_time.context import AssetStateStoreAccessors
from airflow.triggers.base import BaseEventTrigger, TriggerEvent
from airflow.triggers.shared_stream import SharedStreamManager
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_jmsjca import (
    ActivationSpec,
    ConnectionSettings,
    Destination,
    JmsActivationTrigger,
    JmsHook,
    JmsMessage,
    MemoryBroker,
    Outgoing,
    connect,
)
from tests.airflow.conftest import Publish
from tests.airflow.triggers.waiting import run, until
from tests.dead_letters import original_of
from tests.internals.core import Backoff, Level
from tests.internals.triggers import ActivationOptions, MessageProducer, producers
from tests.pace import at_most


class Watcher:
    """A trigger driven the way the triggerer drives it, with a database that stores when it is told to."""

    def __init__(self, manager: SharedStreamManager, trigger: BaseEventTrigger, number: int) -> None:
        self.events: list[TriggerEvent] = []
        self.stores = True
        self.failure: BaseException | None = None
        self._manager = manager
        self._trigger = trigger
        self._number = number
        self._key = trigger.shared_stream_key()
        self._unconfirmed: list[int] = []
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            stream = self._manager.subscribe(trigger_id=self._number, trigger=self._trigger, key=self._key)
            async for event in self._trigger.filter_shared_stream(stream):
                self.events.append(event)
                seq = self._manager.bind_pending_event(trigger_id=self._number, key=self._key)
                if seq is not None:
                    self._unconfirmed.append(seq)
                if self.stores:
                    asyncio.get_running_loop().call_later(0.02, self.store)
        except asyncio.CancelledError:
            raise
        except Exception as failure:  # noqa: BLE001  # as the triggerer does: the test looks at it
            self.failure = failure
        finally:
            await self._manager.unsubscribe(self._number, self._key)

    def store(self) -> None:
        """Confirm that the events so far are in the metadata database."""
        unconfirmed, self._unconfirmed = self._unconfirmed, []
        self._manager.confirm_persisted(unconfirmed)

    @property
    def bodies(self) -> list[str]:
        return [event.payload["message"]["body"] for event in self.events]

    async def cancel(self, *, again_after: int | None = None) -> None:
        """Cancel, and again after so many turns of the loop, if it hasn't ended then."""
        self._task.cancel()
        for _ in range(again_after or 0):
            await asyncio.sleep(0)
        if again_after is not None:
            self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task


class Triggerer:
    def __init__(self, ack_timeout: float) -> None:
        self.manager = SharedStreamManager(ack_timeout=ack_timeout)
        self.watchers: list[Watcher] = []

    @property
    def waiting(self) -> int:
        """How many events Airflow has not yet told their trigger to be stored."""
        return sum(len(group._outstanding) for group in self.manager._groups.values())

    def watch(
        self, *, assets: tuple[str, ...] = (), task: tuple[str, str] | None = None, **arguments: Any
    ) -> Watcher:
        """Start a trigger from its serialized form."""
        options = {"jms_conn_id": "jms_test", "destination": "queue://orders", **arguments}
        _, kwargs = JmsActivationTrigger(**options).serialize()
        trigger = JmsActivationTrigger(**kwargs)
        if assets:
            inlets = [Asset(name) for name in assets]
            trigger.asset_state_store = AssetStateStoreAccessors(inlets=inlets)
        if task is not None:
            trigger.task_instance = SimpleNamespace(dag_id=task[0], task_id=task[1])  # type: ignore[assignment]
        watcher = Watcher(self.manager, trigger, len(self.watchers) + 1)
        self.watchers.append(watcher)
        return watcher


def send(server: MemoryBroker, text: str, queue: str = "orders", **properties: Any) -> None:
    connection = connect(ConnectionSettings(scheme="vm", hosts=((server.name, None),)))
    message = JmsMessage.text(text, properties=properties)
    connection.send([Outgoing(destination=Destination.queue(queue), message=message)])
    connection.close()


@contextlib.asynccontextmanager
async def triggerer(ack_timeout: float = 30) -> AsyncIterator[Triggerer]:
    running = Triggerer(ack_timeout)
    try:
        yield running
    finally:
        for watcher in running.watchers:
            await watcher.cancel()
        await running.manager.stop_all()


def test_an_event_carries_the_message(server: MemoryBroker, publish: Publish) -> None:
    async def work() -> None:
        async with triggerer() as running:
            watcher = running.watch()
            publish("hello")
            await until(lambda: len(watcher.events) == 1)
            payload = watcher.events[0].payload
            assert (payload["event"], payload["destination"]) == ("message", "queue://orders")
            assert payload["jms_conn_id"] == "jms_test"
            message = JmsMessage.from_json(payload["message"])
            assert (message.body, message.message_id is not None) == ("hello", True)
            await until(lambda: server.depth("orders") == 0)

    run(work())


def test_a_message_is_acknowledged_only_after_its_event_was_stored(
    server: MemoryBroker, publish: Publish
) -> None:
    """Rule 1 of the design: a yielded event is no acknowledgement."""

    async def work() -> None:
        async with triggerer() as running:
            watcher = running.watch()
            watcher.stores = False
            publish("a", "b", "c")
            await until(lambda: watcher.bodies == ["a", "b", "c"])
            await asyncio.sleep(0.2)
            assert server.depth("orders") == 3
            watcher.store()
            # The last one's window is open until the filter asks for the next message, which it has.
            await until(lambda: server.depth("orders") == 0)
            assert watcher.bodies == ["a", "b", "c"]

    run(work())


def test_what_was_not_stored_goes_back_when_the_triggerer_ends(
    server: MemoryBroker, publish: Publish
) -> None:
    async def work() -> None:
        async with triggerer() as running:
            watcher = running.watch()
            watcher.stores = False
            publish("a", "b")
            await until(lambda: len(watcher.events) == 2)
        assert server.depth("orders") == 2
        async with triggerer() as running:
            watcher = running.watch()
            await until(lambda: watcher.bodies == ["a", "b"])
            await until(lambda: server.depth("orders") == 0)

    run(work())


def test_a_broker_restart_makes_no_second_event(server: MemoryBroker, publish: Publish) -> None:
    """Delivered, then the broker restarts and redelivers before Airflow has stored the event."""

    async def work() -> None:
        async with triggerer() as running:
            watcher = running.watch()
            watcher.stores = False
            publish("a", "b")
            await until(lambda: len(watcher.events) == 2)
            server.restart()
            await until(lambda: server.connections == 1)
            publish("c")
            await until(lambda: len(watcher.events) == 3)
            watcher.stores = True
            watcher.store()
            await until(lambda: server.depth("orders") == 0)
            assert watcher.bodies == ["a", "b", "c"]

    run(work())


def test_events_stored_while_the_broker_is_away_are_acknowledged_when_it_is_back(
    server: MemoryBroker, publish: Publish
) -> None:
    async def work() -> None:
        async with triggerer() as running:
            watcher = running.watch()
            watcher.stores = False
            publish("a", "b")
            await until(lambda: len(watcher.events) == 2)
            server.kill()
            watcher.store()
            await until(lambda: running.waiting == 0)
            server.restart()
            await until(lambda: server.depth("orders") == 0)
            assert watcher.bodies == ["a", "b"]

    run(work())


def test_an_event_that_is_never_stored_is_redelivered(server: MemoryBroker, publish: Publish) -> None:
    async def work() -> None:
        async with triggerer(ack_timeout=0.3) as running:
            forgetful = running.watch()
            forgetful.stores = False
            other = running.watch(payload="headers")
            publish("a")
            await until(lambda: len(other.events) == 2)
            assert type(forgetful.failure).__name__ == "AckTimeout"
            await until(lambda: server.depth("orders") == 0)

    run(work())


def test_triggers_that_differ_in_payload_only_share_one_connection_and_all_events(
    server: MemoryBroker, publish: Publish
) -> None:
    async def work() -> None:
        async with triggerer() as running:
            whole, headers = running.watch(), running.watch(payload="headers")
            publish("a")
            await until(lambda: bool(whole.events and headers.events))
            assert server.connections == 1
            content = headers.events[0].payload["headers"]
            assert "body" not in content
            assert content["message_id"] == whole.events[0].payload["message"]["message_id"]

    run(work())


def test_properties_too_large_are_moved_to_the_dead_letter_destination(
    server: MemoryBroker, publish: Publish
) -> None:
    async def work() -> None:
        async with triggerer() as running:
            watcher = running.watch(max_body_bytes=100, dead_letter_destination="queue://dead")
            send(server, "large", note="x" * 99)
            publish("small")
            await until(lambda: watcher.bodies == ["small"])
            await until(lambda: server.depth("dead") == 1)
            await until(lambda: server.depth("orders") == 0)
            (dead,) = server.messages("dead")
            letter = original_of(dead)
            assert letter is not None
            assert letter.message.properties["note"] == "x" * 99
            assert str(letter.origin.destination) == "queue://orders"
            assert letter.state.failure is not None
            assert letter.state.failure.class_name.endswith("PoisonMessageError")

    run(work())


def test_properties_too_large_stay_where_no_dead_letter_destination_is_set(
    server: MemoryBroker, publish: Publish, caplog: pytest.LogCaptureFixture
) -> None:
    """Rule 4 of the design: nothing is discarded unless the configuration says so."""

    async def work() -> None:
        async with triggerer() as running:
            watcher = running.watch(max_body_bytes=100)
            send(server, "large", note="x" * 200)
            publish("small")
            await until(lambda: watcher.bodies == ["small"])
            await until(lambda: server.depth("orders") == 1)
            server.restart()
            await until(lambda: server.connections == 1)
            publish("again")
            await until(lambda: watcher.bodies == ["small", "again"])
            await until(lambda: server.depth("orders") == 1)

    with caplog.at_level(logging.ERROR):
        run(work())
    assert sum("stays unsettled on queue://orders" in record.getMessage() for record in caplog.records) == 1


def test_no_more_than_the_prefetch_are_under_way(server: MemoryBroker, publish: Publish) -> None:
    async def work() -> None:
        async with triggerer() as running:
            watcher = running.watch(prefetch=3)
            watcher.stores = False
            publish(*"abcdefgh")
            await until(lambda: len(watcher.events) == 3)
            await asyncio.sleep(0.2)
            assert watcher.bodies == ["a", "b", "c"]
            watcher.stores = True
            watcher.store()
            await until(lambda: watcher.bodies == list("abcdefgh"))
            await until(lambda: server.depth("orders") == 0)

    run(work())


def test_5000_messages_make_5000_events(server: MemoryBroker, publish: Publish) -> None:
    async def work() -> None:
        publish(*(str(number) for number in range(5000)))
        async with triggerer() as running:
            watcher = running.watch(prefetch=500)
            await until(lambda: server.depth("orders") == 0, 100)
            assert watcher.bodies == [str(number) for number in range(5000)]

    run(work())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"destination": ""}, "destination: missing, expected the name"),
        ({"event": "batch"}, "event is 'batch'; expected one of 'message', 'ready'"),
        ({"prefetch": 0}, "prefetch is 0; expected a whole number from 1 to 1000"),
        ({"interval": "soon"}, "interval is 'soon'; expected seconds above 0"),
        ({"payload": "all"}, "payload is 'all'; expected one of 'message', 'headers', 'reference'"),
        (
            {"destination": "topic://news", "event": "ready"},
            "event='ready' needs one queue, not topic://news",
        ),
        (
            {"dead_letter_destination": "orders"},
            "dead_letter_destination: got queue://orders, which is consumed itself",
        ),
        ({"jms_conn_id": "nowhere"}, "connection 'nowhere' is not defined in Airflow"),
        ({"subscription_name": "s"}, "subscription_durability: got durable for a queue"),
        (
            {"destination": "topic://t", "subscription_name": 7},
            "subscription_name is 7, of type int; expected",
        ),
        ({"message_selector": ["a"]}, "message_selector is ['a'], of type list; expected a string, or None"),
        ({"dead_letter_destination": 5}, "dead_letter_destination is 5, of type int; expected a string"),
        (
            {"payload": ["message"]},
            "payload is ['message']; expected one of 'message', 'headers', 'reference'",
        ),
        ({"jms_conn_id": 3}, "jms_conn_id is 3; expected the id of an Airflow connection"),
        ({"redelivery_handling": 3}, "redelivery_handling is 3, of type int; expected a string"),
        ({"interval": 3}, "interval is only for event='ready'"),
        ({"event": "ready", "prefetch": 3}, "prefetch: only for event='message'"),
        ({"event": "ready", "payload": "headers"}, "payload is for event='message'"),
        ({"event": "ready", "max_body_bytes": 3}, "max_body_bytes is for event='message'"),
        (
            {"spec": ["queue://orders"]},
            "spec is ['queue://orders']; expected an ActivationSpec, or a mapping",
        ),
        ({"spec": {"destination": "a"}}, "destination is given both directly and in spec"),
        ({"prefech": 3}, "prefech: unknown option (did you mean prefetch?)"),
        ({"spec": {"prefech": 3}}, "prefech: unknown option (did you mean prefetch?)"),
        ({"password": "Tr0ub4dor"}, "password holds a secret, which Airflow would store in clear"),
        ({"spec": {"password": "Tr0ub4dor"}}, "spec: password holds a secret"),
        ({"connection_url": "vm://u:Tr0ub4dor@h"}, "connection_url holds a secret"),
        ({"message_selector": object()}, "message_selector is of type object, which can't be stored"),
        ({"hold_timeout": 5}, "hold_timeout works only with hold_until_ack"),
        ({"hold_timeout": 0, "hold_until_ack": True}, "hold_timeout is 0; expected seconds above 0"),
        ({"hold_until_ack": True, "concurrency_mode": "serial"}, "got serial, expected sync or cc for hold"),
        ({"hold_until_ack": True, "transaction_timeout": 5}, "transaction_timeout: expected hold_timeout"),
        ({"hold_until_ack": True, "event": "ready"}, "hold_until_ack: only for event='message'"),
        ({"in_progress_destination": "busy"}, "in_progress_destination: not supported by a trigger"),
        (
            {"reply_to_destination": "answers"},
            "reply_to_destination: not supported by a trigger: nothing is sent",
        ),
        ({"generate_unique_client_id": True}, "generate_unique_client_id: not supported by a trigger"),
        ({"context_name": "x"}, "context_name: not supported by a trigger"),
        ({"destination": "queue://{{ var.value.q }}"}, "Airflow renders no templates in a trigger"),
        ({"jms_conn_id": "{{ var.value.c }}"}, "jms_conn_id is '{{ var.value.c }}': Airflow renders no"),
        ({"dead_letter_destination": ["a", "{{ ds }}"]}, "dead_letter_destination is '{{ ds }}': Airflow"),
        ({"allow_message_delays": True}, "allow_message_delays: not supported by a trigger: nothing is sent"),
        ({"batch_timeout": 5}, "batch_timeout, batch_idle_timeout: expected a batch_size above 1"),
        ({"batch_size": 20_000}, "batch_size is 20000; expected at most 10000 for an event"),
        (
            {"batch_size": 2, "concurrency_mode": "serial"},
            "concurrency_mode: got serial, expected sync or cc",
        ),
        ({"endpoint_pool_max_size": 2000}, "endpoint_pool_max_size is 2000; expected at most 1000"),
        ({"pool_idle_timeout": 5}, "pool_idle_timeout: not supported by a trigger: no threads are kept"),
        (
            {"destination": "topic://t", "durable_subscription_deletion": True, "subscription_name": "s"},
            "durable_subscription_deletion: not supported by a trigger",
        ),
        (
            {"distributed_destination_connection": "every_member"},
            "distributed_destination_connection: a trigger can't consume on every member",
        ),
        (
            {
                "destination": "topic://t",
                "subscription_name": "jmsjca://?distribution=1&subscribername=s",
            },
            "subscription_name: a trigger can't use a distributed subscription",
        ),
        ({"destination": 4}, "destination is 4, of type int; expected a string"),
    ],
)
@pytest.mark.usefixtures("server")
def test_wrong_arguments_are_said_once_and_raise_nothing(
    caplog: pytest.LogCaptureFixture, arguments: dict[str, Any], said: str
) -> None:
    """A constructor that raises would stop the triggerer; a stream that raises would come again for ever."""

    async def work() -> None:
        async with triggerer() as running:
            watcher = running.watch(**arguments)
            await until(lambda: any(said in record.getMessage() for record in caplog.records))
            assert watcher.failure is None

    with caplog.at_level(logging.ERROR):
        run(work())
    assert sum(said in record.getMessage() for record in caplog.records) == 1
    assert "Tr0ub4dor" not in caplog.text


@pytest.mark.usefixtures("server")
def test_errors_say_whose_events_are_missing_and_from_where(caplog: pytest.LogCaptureFixture) -> None:
    """`asset_state_store` as the triggerer sets it."""

    async def work() -> None:
        async with triggerer() as running:
            asset = running.watch(jms_conn_id="nowhere", assets=("shipments",))
            await until(lambda: "No events" in caplog.text)
            assert asset.failure is None
            task = running.watch(jms_conn_id="elsewhere", task=("shop", "wait"))
            await until(lambda: "elsewhere" in caplog.text)
            assert task.failure is None

    with caplog.at_level(logging.ERROR):
        run(work())
    assert [record.getMessage().partition(" until")[0] for record in caplog.records] == [
        "No events for asset 'shipments' from queue://orders over connection 'nowhere'",
        "No events for task shop.wait from queue://orders over connection 'elsewhere'",
    ]


def test_a_fault_is_logged_every_ten_minutes_and_noted_beside_the_asset(
    server: MemoryBroker, publish: Publish, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A minute after it was mended the note is gone, whether or not messages come."""
    notes: dict[str, Any] = {}

    class Store:
        async def aset(self, key: str, value: Any) -> None:
            notes[key] = value

        async def adelete(self, key: str) -> None:
            notes.pop(key, None)

    monkeypatch.setattr(producers, "_REPEAT_SECONDS", 0.2)
    monkeypatch.setattr(producers, "_WORKING_SECONDS", 0.2)
    queue = Destination.queue("orders")
    server.forbid(queue)

    async def work() -> None:
        producer = MessageProducer(
            lambda: ActivationOptions.parse(JmsActivationTrigger("jms_test", "orders").serialize()[1]),
            recipients=lambda: "asset 'orders'",
            stores=lambda: {"orders": Store()},  # type: ignore[dict-item]  # what the producer needs of it
            backoff=Backoff(steps=(timedelta(milliseconds=50),)),
        )
        events = asyncio.ensure_future(anext(producer.open_stream()))
        await until(lambda: caplog.text.count("No events for asset 'orders' from queue://orders") >= 3)
        note = notes["jms-fault"]
        assert note["attempt"] > 3
        assert note["since"] <= note["error_since"] <= note["at"]
        assert f"attempt {note['attempt']}, failing since {note['since']}" in caplog.text
        assert note["where"] == "from queue://orders over connection 'jms_test'"
        assert note["error"] in caplog.text
        server.permit(queue)
        await until(lambda: notes == {})
        assert "asset 'orders' from queue://orders over connection 'jms_test' works again" in caplog.text
        publish("a")
        await events
        await producer.aclose()

    run(work())


_ANY = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(categories=None), max_size=20)
    | st.binary(max_size=5)
    | st.sampled_from([object(), type, len, 10**4000, Level.CALL, timedelta(1), "queue://orders", "ready"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.sets(st.integers(), max_size=2)
        | st.dictionaries(
            st.text(max_size=8) | st.sampled_from(["destination", "password"]), inner, max_size=3
        )
    ),
    max_leaves=6,
)
_ARGUMENTS = st.sampled_from(
    [*JmsActivationTrigger("c", "q").serialize()[1], *ActivationSpec.model_fields, "x"]
)


@pytest.mark.filterwarnings("ignore::UserWarning")
@settings(max_examples=100, deadline=None)
@given(st.dictionaries(_ARGUMENTS, _ANY, max_size=4))
def test_no_value_of_any_argument_raises_anything(arguments: dict[str, Any]) -> None:
    """What the triggerer does with a trigger out of its database, to the first step of its stream."""
    first = JmsActivationTrigger(**{"jms_conn_id": "nowhere", "destination": "queue://orders"} | arguments)
    path, kwargs = first.serialize()
    assert json.loads(json.dumps(kwargs)) == kwargs or "NaN" in json.dumps(kwargs)
    BaseEventTrigger.hash(path, kwargs)
    trigger = JmsActivationTrigger(**kwargs)
    assert trigger.shared_stream_key() == first.shared_stream_key()
    hash(trigger.shared_stream_key())

    async def work() -> None:
        producer = JmsActivationTrigger.create_shared_stream_producer(kwargs)
        event = asyncio.ensure_future(anext(producer.open_stream()))
        done, _ = await asyncio.wait({event}, timeout=0.005)
        assert not done, "a fault is said in the log, and waited for"
        event.cancel()
        await asyncio.gather(event, return_exceptions=True)
        await producer.aclose()

    run(work())


def test_the_author_of_a_dag_is_warned_of_wrong_arguments() -> None:
    with pytest.warns(UserWarning, match="prefetch is 0; expected a whole number from 1 to 1000") as found:
        JmsActivationTrigger("jms_test", "queue://orders", prefetch=0)
    assert found[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # raising it would stop the triggerer
        JmsActivationTrigger("jms_test", "queue://orders", prefetch=0)
        JmsActivationTrigger("jms_test", "queue://orders")


def test_ready_says_that_messages_are_there_and_takes_none(server: MemoryBroker, publish: Publish) -> None:
    async def work() -> None:
        async with triggerer() as running:
            watcher = running.watch(event="ready", interval=0.1)
            await asyncio.sleep(0.2)
            assert watcher.events == []
            publish("a", "b")
            await until(lambda: len(watcher.events) >= 1)
            expected = {"event": "ready", "jms_conn_id": "jms_test", "destination": "queue://orders"}
            assert watcher.events[0].payload == expected
            assert [message.redelivered for message in server.messages("orders")] == [False, False]

    run(work())


def test_ready_leaves_the_client_id_to_the_consumer(
    server: MemoryBroker, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task of the DAG consumes over the same connection."""
    document = {"conn_type": "jms", "host": f"vm://{server.name}", "extra": {"client_id": "risk"}}
    monkeypatch.setenv("AIRFLOW_CONN_JMS_TEST", json.dumps(document))
    publish("a")

    async def work() -> None:
        async with triggerer() as running:
            watcher = running.watch(event="ready", interval=0.1)
            await until(lambda: len(watcher.events) >= 1)
            connect(JmsHook("jms_test").settings()).close()

    run(work())


def test_ready_comes_again_after_a_message_that_arrives_while_a_run_ends(
    server: MemoryBroker, publish: Publish
) -> None:
    async def work() -> None:
        async with triggerer() as running:
            watcher = running.watch(event="ready", interval=0.05)
            for round_ in range(5):
                publish("a")
                await until(lambda expected=round_ + 1: len(watcher.events) >= expected)
                server.clear()
                seen = len(watcher.events)
                await asyncio.sleep(0.1)
                assert len(watcher.events) <= seen + 1, "an empty queue makes no events"

    run(work())


def test_ready_is_said_less_often_while_nobody_consumes(publish: Publish) -> None:
    """Pauses of 0.05, 0.1, 0.2, 0.4 s: the fifth event comes after 0.75 s instead of 0.2."""

    async def work() -> None:
        async with triggerer() as running:
            watcher = running.watch(event="ready", interval=0.05)
            publish("a")
            await until(lambda: len(watcher.events) >= 1)
            begin = time.monotonic()
            await until(lambda: len(watcher.events) >= 5)
            assert time.monotonic() - begin > 0.6

    run(work())


def test_run_alone_yields_one_event_and_acknowledges_nothing(server: MemoryBroker, publish: Publish) -> None:
    """What `dag.test()` does: it calls only run(), and stores nothing."""

    async def work() -> None:
        publish("a", "b")
        trigger = JmsActivationTrigger("jms_test", "orders")
        events = trigger.run()
        event = await asyncio.wait_for(anext(events), 5)
        assert event.payload["message"]["body"] == "a"
        waiting = asyncio.create_task(anext(events))
        await asyncio.sleep(0.2)
        assert not waiting.done(), "a second event would be lost"
        begin = time.monotonic()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert time.monotonic() - begin < at_most(0.5)
        assert server.depth("orders") == 2

    run(work())


def test_a_deferred_task_takes_one_event_and_leaves_the_others(
    server: MemoryBroker, publish: Publish
) -> None:
    async def work() -> None:
        publish("a", "b", "c")
        async with triggerer() as running:
            trigger = JmsActivationTrigger("jms_test", "orders")
            trigger._task_instance = SimpleNamespace(dag_id="d", task_id="t")
            watcher = Watcher(running.manager, trigger, 1)
            running.watchers.append(watcher)
            await until(lambda: len(watcher.events) == 1)
            await asyncio.sleep(0.2)
            assert watcher.bodies == ["a"]
            await watcher.cancel()
            await until(lambda: server.depth("orders") == 2)
            assert [message.body for message in server.messages("orders")] == ["b", "c"]

    run(work())


def test_the_serialized_form_is_stable_and_makes_the_same_trigger() -> None:
    trigger = JmsActivationTrigger("jms_test", "queue://orders", event="ready")
    path, kwargs = trigger.serialize()
    assert path == "airflow_provider_jmsjca.triggers.activation.JmsActivationTrigger"
    again = JmsActivationTrigger(**kwargs)
    assert again.serialize() == (path, kwargs)
    assert again.shared_stream_key() == trigger.shared_stream_key()
    assert BaseEventTrigger.hash(path, kwargs) == BaseEventTrigger.hash(*again.serialize())
