"""A listener that ends and begins anew: a message that only waited in it has had no attempt, on any queue."""

from __future__ import annotations

import threading
from collections import Counter
from functools import partial

import pytest

from airflow_provider_jmsjca import Delivery, Destination, DestinationKind, JmsMessage, Outgoing, connect
from tests.broker.listening import activation, until
from tests.servers.broker import Broker

MESSAGES = 50
RESTARTS = 4


@pytest.mark.parametrize(
    ("kind", "queue_type"),
    [("activemq", ""), ("artemis", ""), ("rabbitmq", ""), ("rabbitmq", "quorum")],
)
def test_messages_that_waited_over_restarts_are_handled_and_not_moved(
    request: pytest.FixtureRequest, queue_name: str, kind: str, queue_type: str
) -> None:
    """A quorum queue counts each of their deliveries, and what is beyond the limit was never handled."""
    broker: Broker = request.getfixturevalue(kind)
    options = (("x-queue-type", queue_type),) if queue_type else ()
    queue = Destination(DestinationKind.QUEUE, queue_name, options)
    connection = connect(broker.settings())
    connection.send(Outgoing(destination=queue, message=JmsMessage.text(str(n))) for n in range(MESSAGES))
    connection.close()
    calls: Counter[str] = Counter()

    def handle(ended: threading.Event, delivery: Delivery) -> None:
        calls[delivery.body] += 1
        ended.wait(30)

    name = f"jmsjca://?name=queue://{queue_name}" + "".join(f"&{key}={value}" for key, value in options)
    for run in range(RESTARTS + 1):
        ended = threading.Event()
        listener = activation(
            broker.settings(),
            queue_name,
            partial(handle, ended),
            destination=name,
            redelivery_handling="3:move(queue:$.dead)",
        )
        listener.start()
        until(lambda run=run: len(calls) > run)  # the others wait behind this one
        if run < RESTARTS:
            threading.Timer(0.2, ended.set).start()
        else:
            ended.set()
            until(lambda: len(calls) == MESSAGES)
        listener.stop()
        assert listener.statistics().counts.moved == 0
    assert calls == Counter(map(str, range(MESSAGES)))
