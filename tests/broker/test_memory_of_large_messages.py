"""How much memory large messages take: it is bounded by bytes, not by the number of messages.

Each way is a process of its own. Counted is by how much its peak grows: Python, Arrow and what Arrow imports
were there before. Sent is more than one segment holds, and many times what is kept in memory: more messages
change nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_jmsjca import Destination, JmsMessage, Outgoing, connect
from tests.servers.broker import Broker

ROOT = Path(__file__).parents[2]
MOST_MEBIBYTES = 80
COUNT = 90
MEGABYTE = os.urandom(500_000).hex()


def bodies(number: int) -> JmsMessage:
    return JmsMessage.text(f"{number:08}{MEGABYTE[8:]}")


def properties(number: int, size: int) -> JmsMessage:
    pieces = range(0, size - 9_000, 9_000)
    return JmsMessage.text(str(number), {f"p{at}": MEGABYTE[at : at + 9_000] for at in pieces})


def peak(broker: Broker, way: str, queue: str, messages: list[JmsMessage]) -> float:
    """Send the messages, take them in a process, and return the memory they took at most, in MiB."""
    connection = connect(broker.settings())
    connection.send(Outgoing(destination=Destination.queue(queue), message=each) for each in messages)
    connection.close()
    host, port = broker.address()
    asked = {"host": host, "port": port, "username": broker.username, "password": broker.password}
    done = subprocess.run(
        [sys.executable, "-m", "tests.broker.consuming"],
        input=json.dumps(asked | {"way": way, "queue": queue, "count": len(messages)}),
        stdout=subprocess.PIPE, text=True, timeout=120, check=True, cwd=ROOT,
    )  # fmt: skip
    said = json.loads(done.stdout)
    assert said["count"] == len(messages)
    return float(said["mebibytes"])


def test_bodies_of_a_megabyte_in_a_collector(broker: Broker, queue_name: str) -> None:
    """Once Artemis sent two of them at a time, each two a segment of their own."""
    messages = [bodies(number) for number in range(COUNT)]
    assert peak(broker, "collector", queue_name, messages) < MOST_MEBIBYTES


@pytest.mark.parametrize(
    ("product", "size", "count"), [("activemq", 1_000_000, 24), ("artemis", 240_000, 60)]
)
def test_properties_of_a_megabyte_in_a_collector(
    request: pytest.FixtureRequest, queue_name: str, product: str, size: int, count: int
) -> None:
    """Artemis takes a quarter of it. RabbitMQ takes seconds for each such message, and isn't asked."""
    messages = [properties(number, size) for number in range(count)]
    assert peak(request.getfixturevalue(product), "collector", queue_name, messages) < MOST_MEBIBYTES


@pytest.mark.parametrize(
    "way",
    [
        "listener",
        "listener of several",
        "listener with batches",
        "listener with batches of several",
        "stream",
        "stream that is late",
    ],
)
def test_bodies_of_a_megabyte_in_a_listener_and_a_stream(rabbitmq: Broker, queue_name: str, way: str) -> None:
    """The prefetch of RabbitMQ counts messages: all of them are on their way at once."""
    messages = [bodies(number) for number in range(COUNT)]
    assert peak(rabbitmq, way, queue_name, messages) < MOST_MEBIBYTES / 2
