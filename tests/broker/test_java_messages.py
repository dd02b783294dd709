"""Messages of Java's clients that STOMP has no form for: read where the types stay, undecodable elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_jmsjca import (
    BodyKind,
    ConfigurationError,
    Destination,
    DestinationKind,
    ItemType,
    JmsConnection,
    JmsMessage,
    MoveTarget,
    Outgoing,
    PoisonMessageError,
    Subscription,
    connect,
)
from tests.broker.listening import activation, bodies, drained
from tests.broker.test_stomp_traps import raw_send
from tests.broker.test_stream import streaming, until
from tests.internals.collecting import BatchSpec, ClaimSpec, claim, collect
from tests.internals.engine import open_connection
from tests.internals.spool import SpoolBatch
from tests.servers.broker import Broker
from tests.servers.java_sender import send_from_java
from tests.unit.transports.stomp.dialects.test_java_bodies import ALL_TYPES

SOON = timedelta(seconds=20)
# As RabbitMQ's client 3.7.0 begins a text message; what follows is Java's.
SERIALIZED = b"\xac\xed\x00\x05wx\x00.com.rabbitmq.jms.client.message.RMQTextMessage\x00$cedf33af-47b0-488b"


def with_options(queue: str, **options: str) -> Destination:
    return Destination(DestinationKind.QUEUE, queue, tuple(options.items()))


def send_map(broker: Broker, queue: str) -> None:
    """Have the broker make a Java map message, which it does of this text."""
    to = (f"destination:/queue/{queue}", "persistent:true")
    raw_send(broker, *to, "transformation:jms-map-xml", "region:eu", body=ALL_TYPES)


def check_map(message: JmsMessage) -> None:
    assert isinstance(message.body, dict | type(message.properties))
    assert (message.body_kind, len(message.body)) == (BodyKind.MAP, 15)
    assert (message.body["string"], message.body["int"], message.body["bool"]) == ("12", 12, True)
    assert (message.body["bytes"], message.body["null"]) == (b"\x01\x02\xfd", None)
    assert message.item_types["long"] is ItemType.LONG
    assert message.properties == {"region": "eu"}


def test_a_listener_a_stream_and_a_session_get_javas_maps_whole(activemq: Broker, queue_name: str) -> None:
    settings, name = activemq.settings(), f"jmsjca://?name=queue://{queue_name}&transformation=jms-map-xml"
    got: list[JmsMessage] = []
    for _ in range(4):
        send_map(activemq, queue_name)
    raw_send(activemq, f"destination:/queue/{queue_name}", "persistent:true", body="text")
    with JmsConnection(connect(settings)) as connection, connection.session() as session:
        asked = with_options(queue_name, transformation="jms-map-xml")
        assert [message.body_kind for message in session.browse(asked)] == ["map"] * 4 + ["text"]
        taken = session.receive(asked, timeout=20)
        assert taken is not None
        check_map(taken)

    async def work() -> None:
        async with streaming(settings, queue_name, destination=name) as stream:
            delivery = await asyncio.wait_for(anext(stream), 20)
            check_map(delivery.message)
            delivery.returned()

    asyncio.run(work())
    listener = activation(settings, queue_name, lambda one: got.append(one.message), destination=name)
    assert listener.run(max_messages=3, run_for=SOON).committed == 3
    check_map(got[0])
    check_map(got[1])
    assert (got[2].body_kind, got[2].body) == (BodyKind.TEXT, "text")


def test_a_collector_stores_javas_maps_whole(activemq: Broker, queue_name: str, tmp_path: Path) -> None:
    send_map(activemq, queue_name)
    (result, table) = collected(activemq, with_options(queue_name, transformation="jms-map-xml"), tmp_path)
    assert (result.rows, result.undecodable) == (1, 0)
    assert table["body_type"].to_pylist() == ["map"]
    (body,) = table["body"].to_pylist()
    assert (items := json.loads(body))["string"] == "12"
    assert items["int"] == 12


def test_javas_stream_and_object_messages_are_undecodable_everywhere(
    activemq: Broker, queue_name: str, tmp_path: Path
) -> None:
    """Never empty: in session, listener, stream, claim and collector; a stream also where maps come whole."""
    settings, kinds = activemq.settings(), ("stream", "object", "text")
    ways = [f"{queue_name}.{way}" for way in ("session", "listener", "events", "claim", "collector")]
    maps = f"{queue_name}.maps"
    sent = [(way, kind) for way in ways for kind in kinds]
    send_from_java(activemq, tmp_path, [*sent, (maps, "stream"), (maps, "text")])
    session_queue, listener_queue, events_queue, claim_queue, collector_queue = ways

    with JmsConnection(connect(settings)) as connection, connection.session(transacted=True) as session:
        for _ in range(2):
            with pytest.raises(PoisonMessageError, match=r"came without a body.*stream or object"):
                session.receive(f"queue://{session_queue}", timeout=20)
        assert (taken := session.receive(f"queue://{session_queue}", timeout=20)) is not None
        assert taken.body == "hello"
        with pytest.raises(PoisonMessageError, match="came without a body"):
            session.receive(with_options(maps, transformation="jms-map-xml"), timeout=20)

    got: list[object] = []
    dead = {"dead_letter_destination": f"queue://{queue_name}.dlq"}
    listener = activation(settings, listener_queue, lambda delivery: got.append(delivery.body), **dead)
    assert listener.run(max_messages=3, run_for=SOON).moved == 2

    async def work() -> None:
        async with streaming(settings, events_queue, **dead) as stream:
            delivery = await asyncio.wait_for(anext(stream), 20)
            got.append(delivery.message.body)
            delivery.returned()

    asyncio.run(work())
    spec = ClaimSpec(
        subscription=Subscription(destination=Destination.queue(claim_queue)),
        first_within=SOON,
        dead_letter=(MoveTarget.of(Destination.queue(f"{queue_name}.dlq")),),
    )
    opened = functools.partial(SpoolBatch, tmp_path / "claims", "c", source="queue://c", activation="a")
    with contextlib.closing(connect(settings)) as plain:
        assert claim(plain, opened, spec).dead_letters == 2
    assert got == ["hello"] * 2
    letters = drained(settings, f"{queue_name}.dlq")
    assert len(letters) == 6
    for letter in letters:
        assert "came without a body" in str(letter.properties["JMS_Sun_JMSJCA_ExceptionMessage"])

    (result, _) = collected(activemq, Destination.queue(collector_queue), tmp_path / "c", max_messages=3)
    assert (result.rows, result.undecodable) == (3, 2)


def test_an_object_that_the_broker_does_not_trust_holds_up_nobody(
    activemq: Broker, queue_name: str, tmp_path: Path
) -> None:
    """It ends each connection that asks for maps; found, it is undecodable, and maps beside it come whole."""
    settings, kinds = activemq.settings(), ("text", "object", "text", "object", "text")
    ways = [f"{queue_name}.{way}" for way in ("listener", "events", "collector")]
    send_from_java(activemq, tmp_path, [(way, kind) for way in ways for kind in kinds])
    for way in ways:
        send_map(activemq, way)
    listened, events = (f"jmsjca://?name=queue://{way}&transformation=jms-map-xml" for way in ways[:2])
    dead = {
        "dead_letter_destination": f"queue://{queue_name}.dlq",
        "message_selector": "region IS NULL OR region = 'eu'",
    }
    got: list[JmsMessage] = []
    listener = activation(
        settings, ways[0], lambda one: got.append(one.message), destination=listened, **dead
    )
    assert listener.run(idle_for=timedelta(seconds=3), run_for=SOON).moved == 2
    assert sum(message.body_kind is BodyKind.MAP for message in got) == 1
    check_map(next(message for message in got if message.body_kind is BodyKind.MAP))

    async def work() -> None:
        async with streaming(settings, ways[1], destination=events, **dead) as stream:

            async def take() -> None:
                async for delivery in stream:
                    got.append(delivery.message)
                    delivery.returned()

            taking = asyncio.ensure_future(take())
            await until(
                lambda: stream.counts.moved == 2 and stream.counts.committed + stream.counts.repeated >= 4
            )
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)

    before, maps = len(got), next(message.body for message in got if message.body_kind is BodyKind.MAP)
    asyncio.run(work())
    # What was handled when the connection ended may have come again.
    for each in (got[:before], got[before:]):
        texts = [message for message in each if message.body != maps]
        assert len(texts) >= 3
        assert {message.body for message in texts} == {"hello"}
    assert bodies(settings, ways[0]) == bodies(settings, ways[1]) == []
    letters = drained(settings, f"{queue_name}.dlq")
    assert len(letters) == 4
    for letter in letters:
        assert "came without a body" in str(letter.properties["JMS_Sun_JMSJCA_ExceptionMessage"])

    asked = with_options(ways[2], transformation="jms-map-xml")
    (result, _) = collected(activemq, asked, tmp_path / "c", max_messages=6)
    assert (result.rows, result.undecodable) == (6, 2)


@pytest.mark.parametrize("broker", ["activemq", "artemis"], indirect=True)
@pytest.mark.parametrize(("option", "kind", "body"), [("text", "text", ""), ("empty", "empty", None)])
def test_messages_without_a_body_are_what_their_destination_says(
    broker: Broker, queue_name: str, option: str, kind: str, body: str | None
) -> None:
    settings = broker.settings()
    with JmsConnection(connect(settings)) as connection, connection.session() as session:
        name = queue_name if connection.broker.product == "artemis" else f"/queue/{queue_name}"
        raw_send(broker, f"destination:{name}", "destination-type:ANYCAST", "persistent:true", body="")
        session.send(queue_name, JmsMessage.bytes(b""))
        session.send(queue_name, JmsMessage.text("full"))
        with pytest.raises(PoisonMessageError, match="bodiless=text"):
            session.receive(f"queue://{queue_name}", timeout=20)
    with JmsConnection(connect(settings)) as connection, connection.session() as session:
        asked = with_options(queue_name, bodiless=option)
        taken = [session.receive(asked, timeout=20) for _ in range(3)]
    assert [(one.body_kind, one.body) for one in taken if one is not None] == [
        (kind, body),
        ("bytes", b""),
        ("text", "full"),
    ]


@pytest.mark.parametrize(
    ("product", "options"),
    [
        ("activemq", {"transformation": "jms-map-json"}),
        ("activemq", {"bodiless": "bytes"}),
        ("artemis", {"transformation": "jms-map-xml"}),
        ("rabbitmq", {"bodiless": "text"}),
    ],
)
def test_what_would_not_be_faithful_is_refused(
    request: pytest.FixtureRequest, queue_name: str, product: str, options: dict[str, str]
) -> None:
    broker: Broker = request.getfixturevalue(product)
    with (
        JmsConnection(connect(broker.settings())) as connection,
        connection.session() as session,
        pytest.raises(ConfigurationError, match=next(iter(options))),
    ):
        session.receive(with_options(queue_name, **options), timeout=0)


def test_what_rabbitmqs_client_serialized_is_undecodable(
    rabbitmq: Broker, queue_name: str, tmp_path: Path
) -> None:
    """In session, listener and collector; our own bytes of that form are bytes."""
    settings = rabbitmq.settings()
    queue = Destination.queue(queue_name)
    to = (f"destination:/queue/{queue_name}", "persistent:true", "content-type:application/octet-stream")
    for _ in range(2):
        raw_send(rabbitmq, *to, f"content-length:{len(SERIALIZED)}", body=SERIALIZED)
    with (
        JmsConnection(connect(settings)) as connection,
        connection.session() as session,
        pytest.raises(PoisonMessageError, match=r"JMS client serialized it.*AMQP destination"),
    ):
        session.receive(queue, timeout=20)
    counts = activation(settings, queue_name, lambda _: None, redelivery_handling="1:move(queue:$.dlq)").run(
        max_messages=1, run_for=SOON
    )
    assert counts.moved == 1
    (letter,) = drained(settings, f"{queue_name}.dlq")
    assert letter.body == SERIALIZED
    connection_ = connect(settings)
    connection_.send([Outgoing(destination=queue, message=JmsMessage.bytes(SERIALIZED))])
    connection_.close()
    (result, _) = collected(rabbitmq, queue, tmp_path, max_messages=2)
    assert (result.rows, result.undecodable) == (2, 1)


def collected(
    broker: Broker, queue: Destination, folder: Path, max_messages: int = 1
) -> tuple[Any, pa.Table]:
    spec = BatchSpec(subscription=Subscription(destination=queue), max_messages=max_messages, max_time=SOON)
    with SpoolBatch(folder, "b", source=queue.name, activation="a") as batch:
        opened = functools.partial(open_connection, broker.settings())
        result = collect(opened, batch, spec, stop=threading.Event())
    tables = [pa.parquet.read_table(path) for path in folder.rglob("*.parquet")]
    return result, pa.concat_tables(tables)
