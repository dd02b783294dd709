"""Large messages: what each broker takes works all the way; what it doesn't take is refused by name."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from airflow_provider_jmsjca import (
    ActivationSpec,
    ConfigurationError,
    ConnectionSettings,
    Delivery,
    Destination,
    JmsConnection,
    JmsMessage,
    JmsSession,
    Manifest,
    Outgoing,
    PermanentBrokerError,
    Subscription,
    TransientBrokerError,
    connect,
)
from tests.dead_letters import original_of
from tests.internals.collecting import BatchSpec, collect
from tests.internals.engine import Handler, Listener, listener_settings, one_connection, open_connection
from tests.internals.spool import SpoolBatch
from tests.servers.activemq import ActiveMQClassic
from tests.servers.broker import Broker
from tests.servers.rabbitmq import RabbitMQ

MIB = 1024 * 1024
TEN_MIB = 10 * MIB
PATIENCE = timedelta(seconds=60)


def listener(settings: ConnectionSettings, queue: str, handler: Handler, **spec: Any) -> Listener:
    made = listener_settings(ActivationSpec(destination=f"queue://{queue}", **spec))
    return Listener(one_connection(made, functools.partial(connect, settings)), handler)


def send(settings: ConnectionSettings, queue: str, *messages: JmsMessage) -> None:
    with JmsConnection(connect(settings)) as connection, connection.session(transacted=True) as session:
        for message in messages:
            session.send(f"queue://{queue}", message)
        session.commit()


def receive(settings: ConnectionSettings, queue: str) -> JmsMessage:
    with JmsConnection(connect(settings)) as connection, connection.session() as session:
        message = session.receive(f"queue://{queue}", timeout=PATIENCE.total_seconds())
        assert message is not None
        return message


def passes_everywhere(
    settings: ConnectionSettings, queue: str, message: JmsMessage, spool: Path
) -> Iterator[tuple[object, dict[str, object]]]:
    """Send a message each way, and yield the body and the properties that came, the first from a session."""
    send(settings, queue, message)
    got = receive(settings, queue)
    yield got.body, dict(got.properties)

    send(settings, queue, message)
    heard: list[Delivery] = []

    def fail_twice(delivery: Delivery) -> None:
        heard.append(delivery)
        if delivery.redelivery_count < 2:
            raise ValueError("not yet")

    counts = listener(settings, queue, fail_twice).run(max_messages=1, run_for=PATIENCE)
    assert (counts.committed, counts.rolled_back) == (1, 2)
    yield heard[-1].body, dict(heard[-1].message.properties)

    send(settings, queue, message)
    spec = BatchSpec(
        subscription=Subscription(destination=Destination.queue(queue)), max_messages=1, max_time=PATIENCE
    )
    with SpoolBatch(spool, "b", source=queue, activation="a") as batch:
        result = collect(functools.partial(open_connection, settings), batch, spec, stop=threading.Event())
    (segment,) = Manifest.read(str(result.manifest)).segment_paths()
    (row,) = pq.ParquetFile(segment).read(columns=["body", "properties"]).to_pylist()
    body: bytes = row["body"]
    yield body.decode() if isinstance(message.body, str) else body, dict(row["properties"])


def test_a_message_of_10_mib_passes(broker: Broker, queue_name: str, tmp_path: Path) -> None:
    """All ways a message can go."""
    body = os.urandom(TEN_MIB)
    ways = passes_everywhere(broker.settings(), queue_name, JmsMessage.bytes(body), tmp_path)
    assert [got == body for got, _ in ways] == [True, True, True]


def test_a_text_of_10_mib_becomes_a_dead_letter(broker: Broker, queue_name: str) -> None:
    """J149, J150: the copy is as large as the original, and its properties come on top."""
    body = "Grüße " * (TEN_MIB // 8)
    settings = broker.settings()
    send(settings, queue_name, JmsMessage.text(body))

    def fail(_: Delivery) -> None:
        raise ValueError("x" * 100_000)

    counts = listener(settings, queue_name, fail, redelivery_handling="2:move(queue:$.dlq)").run(
        max_messages=1, run_for=PATIENCE
    )
    assert counts.moved == 1
    letter = original_of(receive(settings, f"{queue_name}.dlq"))
    assert letter is not None
    assert letter.message.body == body


@pytest.mark.parametrize("count", [5, 1])
def test_properties_of_50_000_characters(broker: Broker, queue_name: str, tmp_path: Path, count: int) -> None:
    """In several properties they pass everywhere, in one where the broker takes it."""
    settings = broker.settings()
    properties = {f"p{number}": f"{number}:" + "é" * (50_000 // count - 2) for number in range(count)}
    if count > 1:
        properties = {name: value.replace("é", "e") for name, value in properties.items()}
    message = JmsMessage.text("body", properties)
    if broker.name == "activemq" and count == 1:
        with JmsConnection(connect(settings)) as connection, connection.session(transacted=True) as session:
            with pytest.raises(ConfigurationError, match=r"'p0' has 50000 .* takes 10000: .* into the body"):
                session.send(f"queue://{queue_name}", message)
            session.send(f"queue://{queue_name}", JmsMessage.text("the next"))
            session.commit()
        assert receive(settings, queue_name).body == "the next"
        return
    for body, got in passes_everywhere(settings, queue_name, message, tmp_path):
        assert body == "body"
        assert {name: got[name] for name in properties} == properties


@pytest.mark.parametrize(
    ("passes", "body", "refusal"),
    [
        (240_000, 10, "takes 500800 in a message, .* as its journal-buffer-size allows"),
        (45_000, 200_000, "takes 101700 beside a body of 100 KiB .* stompMinLargeMessageSize"),
    ],
    ids=["small body", "large body"],
)
def test_all_properties_of_a_message_on_artemis(
    artemis: Broker, queue_name: str, passes: int, body: int, refusal: str
) -> None:
    """Past the limit for all together a clear error before anything is sent."""
    settings = artemis.settings()

    def message(characters: int) -> JmsMessage:
        properties = {f"p{number}": "e" * (characters // 6) for number in range(6)}
        return JmsMessage.text("x" * body, properties)

    with JmsConnection(connect(settings)) as connection, connection.session(transacted=True) as session:
        with pytest.raises(ConfigurationError, match=rf"properties take .*{refusal}"):
            session.send(f"queue://{queue_name}", message(passes + 20_000))
        session.send(f"queue://{queue_name}", message(passes))
        session.commit()
    got = receive(settings, queue_name)
    wanted = message(passes).properties
    assert (len(str(got.body)), {name: got.properties[name] for name in wanted}) == (body, dict(wanted))


class SmallActiveMQ(ActiveMQClassic):
    """Takes bodies up to 1 MiB."""

    def _prepare(self) -> None:
        super()._prepare()
        file = self.folder / "activemq.xml"
        option = f"transport.tcpNoDelay=true&amp;wireFormat.maxDataLength={MIB}"
        file.write_text(
            file.read_text(encoding="utf-8").replace("transport.tcpNoDelay=true", option), encoding="utf-8"
        )


class SmallRabbitMQ(RabbitMQ):
    """Takes bodies up to 1 MiB."""

    def _prepare(self) -> None:
        super()._prepare()
        with (self.folder / "rabbitmq.conf").open("a", encoding="utf-8") as file:
            file.write(f"max_message_size = {MIB}\n")


@pytest.fixture(scope="module", params=[SmallActiveMQ, SmallRabbitMQ], ids=["activemq", "rabbitmq"])
def small(request: pytest.FixtureRequest, servers_folder: Path) -> Iterator[tuple[ConnectionSettings, str]]:
    """A broker that takes little, and what its refusal must name."""
    # The shared one is asked for first: where the broker can't be had, it says so and skips.
    request.getfixturevalue(request.param.name)
    broker: Broker = request.param(servers_folder / f"small-{request.param.name}")
    broker.start()
    yield broker.settings(), {"activemq": "maxDataLength", "rabbitmq": "max_message_size"}[broker.name]
    broker.stop()


LARGE = JmsMessage.bytes(b"x" * (2 * MIB))


def _send_and_commit(session: JmsSession, queue: str) -> None:
    # The broker's answer may come while the message is still on its way, or with the commit.
    session.send(f"queue://{queue}", LARGE)
    session.commit()


@pytest.mark.parametrize("others", [0, 3])
def test_a_send_past_the_limit_names_it(
    small: tuple[ConnectionSettings, str], queue_name: str, others: int
) -> None:
    """For good, not a lost connection that is tried again for ever."""
    settings, limit = small
    connection = connect(settings)
    outgoing = [
        Outgoing(destination=Destination.queue(queue_name), message=message)
        for message in [*[JmsMessage.text("small")] * others, LARGE]
    ]
    with pytest.raises(PermanentBrokerError, match=rf"refused: .*{limit}"):
        connection.send(outgoing)
    connection.close()
    send(settings, queue_name, JmsMessage.text("the next"))


def test_a_commit_past_the_limit_names_it(small: tuple[ConnectionSettings, str], queue_name: str) -> None:
    """Nothing of the transaction happens."""
    settings, limit = small
    with (
        JmsConnection(connect(settings)) as connection,
        connection.session(transacted=True) as session,
        pytest.raises(PermanentBrokerError, match=limit),
    ):
        _send_and_commit(session, queue_name)
    send(settings, queue_name, JmsMessage.text("the next"))
    assert receive(settings, queue_name).body == "the next"


def test_who_shares_the_connection_is_not_to_blame(
    small: tuple[ConnectionSettings, str], queue_name: str
) -> None:
    """For others it is a lost connection: they try again, and succeed."""
    settings, limit = small
    connection = connect(settings)
    innocent = connection.unit()
    innocent.send(Outgoing(destination=Destination.queue(queue_name), message=JmsMessage.text("small")))
    with (
        JmsConnection(connection, on_close=lambda: None) as shared,
        shared.session(transacted=True) as culprit,
        pytest.raises(PermanentBrokerError, match=limit),
    ):
        _send_and_commit(culprit, queue_name)
    with pytest.raises(TransientBrokerError):
        innocent.commit()
    connection.close()


def test_a_listener_goes_on_past_a_message_too_large(
    small: tuple[ConnectionSettings, str], queue_name: str
) -> None:
    """The delivery that sends it fails and is moved as its handling says; all others are committed."""
    settings, _ = small
    send(settings, queue_name, *(JmsMessage.text(str(number)) for number in range(10)))

    def forward(delivery: Delivery) -> None:
        message = LARGE if delivery.body == "3" else JmsMessage.text(str(delivery.body))
        delivery.send(f"queue://{queue_name}.out", message)

    counts = listener(settings, queue_name, forward, redelivery_handling="2:move(queue:$.dlq)").run(
        max_messages=10, run_for=PATIENCE
    )
    assert (counts.committed, counts.moved) == (9, 1)
    assert receive(settings, f"{queue_name}.dlq").body == "3"
