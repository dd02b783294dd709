"""Sending in bulk over a connection that is cut in the middle."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.errors import InDoubtError
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import Outgoing
from tests.broker.test_listener import bodies
from tests.servers.broker import Broker
from tests.servers.proxy import TcpProxy

MESSAGES = 20_000
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
