"""What looking at a queue does to the message that is seen: the table of docs/how-to/events.md."""

from __future__ import annotations

import asyncio
import threading
import uuid
from datetime import timedelta

from airflow_provider_jmsjca import Connection, Destination, JmsMessage, Outgoing, Subscription, connect
from tests.internals.engine import AsyncConnection, ConnectionPool, QueueWatch, Ready, peek
from tests.internals.transports import Received
from tests.servers.broker import Broker

LOOKS = 5
MARKED = {"activemq": False, "artemis": False, "rabbitmq": True}


async def look(broker: Broker, queue: Destination) -> list[Ready]:
    pool = ConnectionPool(idle_timeout=timedelta(0))
    watch = QueueWatch(AsyncConnection(broker.settings(), pool=pool), queue, poll=timedelta(seconds=0.1))
    seen = [await asyncio.wait_for(watch.wait(), 30) for _ in range(LOOKS)]
    watch.close()
    return seen


def receive(connection: Connection, queue: Destination) -> JmsMessage:
    arrived: list[Received] = []
    there = threading.Event()

    def on_received(received: Received) -> None:
        arrived.append(received)
        there.set()

    consumer = connection.consume(Subscription(destination=queue, prefetch=1), on_received)
    assert there.wait(30)
    message = arrived[0].message
    consumer.acknowledge(arrived)
    connection.synchronize()
    consumer.close()
    return message


def test_a_message_that_was_looked_at_is_still_there_and_marked_only_where_the_table_says(
    broker: Broker,
) -> None:
    queue = Destination.queue(f"looked.{uuid.uuid4().hex}")
    connection = connect(broker.settings())
    connection.send([Outgoing(destination=queue, message=JmsMessage.text("here"))])
    seen = asyncio.run(look(broker, queue))
    assert [ready.message and ready.message.body for ready in seen] == ["here"] * LOOKS
    assert peek(connection, queue, None, timedelta(seconds=5))
    message = receive(connection, queue)
    assert message.body == "here"
    assert message.redelivered is MARKED[connection.broker.product]
    assert not peek(connection, queue, None, timedelta(seconds=0.5))
    connection.close()
