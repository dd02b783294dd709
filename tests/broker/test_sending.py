"""Sending in bulk over a connection that is cut in the middle."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from airflow_provider_jmsjca import Destination, InDoubtError, JmsMessage, Outgoing, Subscription, connect
from tests.broker.listening import bodies
from tests.internals.transports import Received
from tests.servers.broker import Broker
from tests.servers.proxy import TcpProxy

MESSAGES = 20_000
IN_ORDER = 12_000
TRANSACTION = 1000


@pytest.mark.parametrize("cut_at", [1_700, 5_300])
def test_what_arrived_before_the_cut_is_a_beginning_without_gaps(
    broker: Broker, queue_name: str, cut_at: int
) -> None:
    """Several transactions or two thousand receipts are under way then; ActiveMQ keeps whole transactions."""
    queue = Destination.queue(queue_name)
    settings = broker.settings()
    (host, port), *_ = settings.hosts
    assert port is not None
    with TcpProxy((host, port)) as proxy:
        connection = connect(replace(settings, hosts=((host, proxy.port),)))
        cutting = threading.Event()

        def cut() -> None:
            cutting.wait(60)
            proxy.cut()

        thread = threading.Thread(target=cut)
        thread.start()

        def messages() -> Iterator[Outgoing]:
            for number in range(MESSAGES):
                if number == cut_at:
                    cutting.set()
                yield Outgoing(destination=queue, message=JmsMessage.text(str(number)))

        with pytest.raises(InDoubtError):
            connection.send(messages())
        thread.join()
        atomic = connection.capabilities.atomic_commit
    arrived = bodies(settings, queue_name)
    assert arrived == [str(number) for number in range(len(arrived))]
    assert len(arrived) < MESSAGES
    assert arrived or cut_at < 3 * TRANSACTION, "the test cuts before anything was sent"
    assert not atomic or len(arrived) % TRANSACTION == 0


def test_a_bulk_keeps_its_order_while_somebody_reads(broker: Broker, queue_name: str) -> None:
    """ActiveMQ gets it over two connections."""
    queue, settings = Destination.queue(queue_name), broker.settings()
    arrived: list[int] = []
    everything = threading.Event()

    def take(received: Received) -> None:
        arrived.append(int(str(received.message.body)))
        received.consumer.acknowledge((received,))
        if len(arrived) == IN_ORDER:
            everything.set()

    reader, sender = connect(settings), connect(settings)
    try:
        reader.consume(Subscription(destination=queue, prefetch=500), take)
        sent = sender.send(
            Outgoing(destination=queue, message=JmsMessage.text(str(number))) for number in range(IN_ORDER)
        )
        assert sent == IN_ORDER
        assert everything.wait(60), f"only {len(arrived)} arrived"
        reader.synchronize()
    finally:
        reader.close()
        sender.close()
    assert arrived == list(range(IN_ORDER))


def test_a_connection_with_a_client_id_sends_in_bulk_too(broker: Broker, queue_name: str) -> None:
    """It can't have a second one beside it."""
    connection = connect(replace(broker.settings(), client_id=f"bulk-{queue_name}"))
    try:
        count = connection.send(
            Outgoing(destination=Destination.queue(queue_name), message=JmsMessage.text(str(number)))
            for number in range(4 * TRANSACTION)
        )
    finally:
        connection.close()
    assert count == 4 * TRANSACTION
    assert bodies(broker.settings(), queue_name) == [str(number) for number in range(4 * TRANSACTION)]
