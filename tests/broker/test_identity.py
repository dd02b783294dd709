"""New messages under ids that were seen before: none is taken for a repetition."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

from airflow_provider_jmsjca import Destination, JmsMessage, Outgoing, Subscription, connect
from tests.broker.test_stomp_traps import raw_send
from tests.internals.collecting import BatchSpec, ClaimResult, ClaimSpec, CollectResult, claim, collect
from tests.internals.engine import open_connection, peek
from tests.internals.spool import SpoolBatch
from tests.internals.transports import Received
from tests.servers.broker import Broker
from tests.servers.fixtures import PrivateBroker
from tests.unit.engine.listening import until


def send(broker: Broker, queue: Destination, *messages: JmsMessage) -> None:
    connection = connect(broker.settings())
    connection.send(Outgoing(destination=queue, message=each) for each in messages)
    connection.close()


def collector(broker: Broker, queue: Destination, spool: Path) -> Callable[[str], CollectResult]:
    def run(batch_id: str) -> CollectResult:
        spec = BatchSpec(
            subscription=Subscription(destination=queue),
            idle_time=timedelta(seconds=2),
            max_time=timedelta(seconds=60),
        )
        with SpoolBatch(spool, batch_id, source=str(queue), activation="a") as batch:
            return collect(partial(open_connection, broker.settings()), batch, spec, stop=threading.Event())

    return run


def test_an_artemis_that_was_set_up_anew_gives_the_ids_of_old_messages_to_new_ones(
    private_broker: PrivateBroker, tmp_path: Path
) -> None:
    broker = private_broker("artemis")
    queue = Destination.queue("orders")
    run = collector(broker, queue, tmp_path)
    sent = [JmsMessage.text("paid", properties={"order": str(number)}) for number in range(5)]
    send(broker, queue, *sent)
    assert run("b1").stored == 5
    broker.stop()
    shutil.rmtree(broker.folder / "data")
    broker.start()
    send(broker, queue, *(JmsMessage.text("paid", properties={"order": f"new {n}"}) for n in range(5)))
    found = run("b2")
    assert (found.received, found.duplicates, found.stored) == (5, 0, 5)


def test_a_look_makes_no_repetition_of_a_new_message(
    rabbitmq: Broker, queue_name: str, tmp_path: Path
) -> None:
    """There the id is the producer's word, and whatever was handed back is flagged ever after."""
    queue = Destination.queue(queue_name)
    run = collector(rabbitmq, queue, tmp_path)
    head = (f"destination:/queue/{queue_name}", "persistent:true", "amqp-message-id:ID\\c1")
    raw_send(rabbitmq, *head, "order:1")
    assert run("b1").stored == 1
    raw_send(rabbitmq, *head, "order:2")
    connection = connect(rabbitmq.settings())
    seen: list[Received] = []
    connection.consume(Subscription(destination=queue), seen.append)
    until(lambda: seen)
    assert seen[0].message.message_id == "ID:1"
    connection.close()
    found = run("b2")
    assert (found.received, found.duplicates, found.stored) == (1, 0, 1)


def test_equal_messages_are_stored_and_handled_as_often_as_they_were_sent(
    rabbitmq: Broker, queue_name: str, tmp_path: Path
) -> None:
    """Same id and body, no time of sending, and a look has flagged them: that makes no repetition of them."""
    queue = Destination.queue(queue_name)
    head = (f"destination:/queue/{queue_name}", "persistent:true", "amqp-message-id:order-7")
    for _ in range(4):
        raw_send(rabbitmq, *head, body="paid")
    connection = connect(rabbitmq.settings())
    assert peek(connection, queue, None) is not None

    def claimed(batch_id: str) -> ClaimResult:
        spec = ClaimSpec(subscription=Subscription(destination=queue))
        return claim(
            connection, lambda: SpoolBatch(tmp_path, batch_id, source=str(queue), activation="a"), spec
        )

    found = [claimed(f"run{number}") for number in range(2)]
    assert [(each.manifest is not None, each.repeated) for each in found] == [(True, 0)] * 2
    connection.close()
    result = collector(rabbitmq, queue, tmp_path)("b1")
    assert (result.received, result.duplicates, result.stored) == (2, 0, 2)
