"""A killed RabbitMQ forgets acknowledgements: how many, and who still knows.

A busy queue writes them to the disk every 32,768 (`queue_index_max_journal_entries`), or when it has had
nothing to do for a moment. A listener that lives on knows what it settled; one that is killed too doesn't.
`JMSJCA_CHAOS=full` kills just before the queue writes, when it has the most to forget.

Source: docs/reference/broker-facts.md.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_provider_jmsjca import ActivationSpec, Delivery, Destination, JmsMessage, Outgoing, connect
from tests.chaos.conftest import Report
from tests.internals.core import Backoff
from tests.internals.engine import Listener, listener_settings, one_connection
from tests.servers.broker import Broker

FULL = os.environ.get("JMSJCA_CHAOS") == "full"
MESSAGES, KILL_AT = (60_000, 43_000) if FULL else (3_000, 2_000)
PREFETCH = 100
FORGOTTEN_AT_MOST = 32_768
# Ten times what the queue takes until it writes by itself.
QUIET_SECONDS = 2.5


def send(broker: Broker, queue: str) -> None:
    connection = connect(broker.settings())
    target = Destination.queue(queue)
    connection.send(Outgoing(destination=target, message=JmsMessage.text(str(n))) for n in range(MESSAGES))
    connection.close()


def listener(broker: Broker, queue: str, handler: Callable[[Delivery], object]) -> Listener:
    settings = listener_settings(ActivationSpec(destination=f"queue://{queue}", prefetch=PREFETCH))
    outage = replace(settings.delivery.outage, backoff=Backoff(steps=(timedelta(seconds=0.2),)))
    settings = replace(settings, delivery=replace(settings.delivery, outage=outage))
    return Listener(one_connection(settings, functools.partial(connect, broker.settings())), handler)


@pytest.mark.timeout(900)
def test_a_listener_that_lives_on_knows_what_it_settled(
    private_broker: Callable[[str], Broker], queue_name: str, report: Report
) -> None:
    broker = private_broker("rabbitmq")
    broker.put_on_disk(queue_name)
    send(broker, queue_name)
    delivered: Counter[int] = Counter()
    reached = threading.Event()

    def note(delivery: Delivery) -> None:
        delivered[int(delivery.body)] += 1
        if len(delivered) == KILL_AT and not reached.is_set():
            broker.kill()  # here, where nothing goes on meanwhile: a queue that rests writes
            reached.set()

    activation = listener(broker, queue_name, note)
    activation.start()
    assert reached.wait(300)
    broker.start()
    counts = activation.run(idle_for=timedelta(seconds=3))
    again = sum(delivered.values()) - len(delivered)
    report(
        f"rabbitmq killed under a listener after {KILL_AT} messages: {counts.repeated} came again and"
        f" were known, {again} were delivered again"
    )
    assert set(delivered) == set(range(MESSAGES))
    assert again <= PREFETCH
    assert 0 < counts.repeated <= FORGOTTEN_AT_MOST


@pytest.mark.timeout(900)
@pytest.mark.parametrize("pause", [0.0, QUIET_SECONDS], ids=["busy", "quiet"])
def test_a_new_listener_gets_what_the_broker_forgot(
    private_broker: Callable[[str], Broker], queue_name: str, report: Report, pause: float
) -> None:
    broker = private_broker("rabbitmq")
    broker.put_on_disk(queue_name)
    send(broker, queue_name)
    delivered: Counter[int] = Counter()

    def note(delivery: Delivery) -> None:
        delivered[int(delivery.body)] += 1

    first = listener(broker, queue_name, note)
    if pause:
        first.run(max_messages=KILL_AT)
        time.sleep(pause)
        broker.kill()
    else:
        full = threading.Event()

        def note_until_killed(delivery: Delivery) -> None:
            note(delivery)
            if len(delivered) == KILL_AT:
                broker.kill()
                full.set()

        first = listener(broker, queue_name, note_until_killed)
        first.start()
        assert full.wait(300)
        first.stop(timedelta(seconds=10))
    broker.start()
    listener(broker, queue_name, note).run(idle_for=timedelta(seconds=3))
    again = sum(delivered.values()) - len(delivered)
    report(
        f"rabbitmq killed {'after a pause' if pause else 'while busy'}: {again} of {KILL_AT} settled again"
    )
    assert set(delivered) == set(range(MESSAGES))
    assert again <= (0 if pause else FORGOTTEN_AT_MOST + PREFETCH)
