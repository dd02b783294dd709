"""The listener over each broker in each mode: delays, moves, deletion, batches, hold-until-ack, stops."""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter, defaultdict
from datetime import timedelta
from typing import Any, cast

import pytest

from airflow_provider_jmsjca import (
    ActivationSpec,
    CapabilityError,
    Connection,
    ConnectionSettings,
    Delivery,
    Destination,
    DestinationKind,
    JmsMessage,
    Outgoing,
    PoisonMessageError,
    Subscription,
    connect,
)
from tests.broker.listening import activation, bodies, drained, send, until
from tests.dead_letters import original_of
from tests.internals.engine import Listener, listener_settings, one_connection
from tests.internals.transports import Consumer, OnReceived
from tests.pace import at_most
from tests.servers.broker import Broker

MODES: tuple[dict[str, Any], ...] = (
    {"concurrency_mode": "serial"},
    {"concurrency_mode": "cc", "endpoint_pool_max_size": 3},
    {"concurrency_mode": "sync", "endpoint_pool_max_size": 3},
)
ONE_ENDPOINT = {"concurrency_mode": "cc", "endpoint_pool_max_size": 1}
every_mode = pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode["concurrency_mode"])
pooled_modes = pytest.mark.parametrize("mode", MODES[1:], ids=lambda mode: mode["concurrency_mode"])
PATIENCE = timedelta(seconds=30)


def fail(_: Delivery) -> None:
    raise ValueError("no stock")


def send_expiring(settings: ConnectionSettings, name: str) -> int:
    """Send a message that expires in an hour, and return when that is."""
    expiration = int((time.time() + 3600) * 1000)
    connection = connect(settings)
    message = JmsMessage.text("a", {"region": "eu"}, correlation_id="c1", expiration=expiration)
    connection.send([Outgoing(destination=Destination.queue(name), message=message)])
    connection.close()
    return expiration


@every_mode
def test_published_vector_of_delays(broker: Broker, queue_name: str, mode: dict[str, Any]) -> None:
    """J137b, J149, J152: then a move that keeps what the message was, and says until when."""
    settings = broker.settings()
    expiration = send_expiring(settings, queue_name)
    began: list[float] = []

    def timed(delivery: Delivery) -> None:
        began.append(time.monotonic())
        fail(delivery)

    handling = "5:10; 6:15; 10:30; 15:move(queue:$.a)"
    counts = activation(settings, queue_name, timed, redelivery_handling=handling, **mode).run(
        max_messages=1, run_for=PATIENCE
    )
    assert (counts.delivered, counts.moved) == (15, 1)
    assert began[-1] - began[4] >= 0.220
    (message,) = drained(settings, f"{queue_name}.a")
    letter = original_of(message)
    assert letter is not None
    assert (letter.message.body, dict(letter.message.properties)) == ("a", {"region": "eu"})
    assert (message.correlation_id, letter.state.seen) == ("c1", 15)
    assert message.expiration == 0, "a dead letter waits until somebody looks at it"
    assert abs(letter.message.expiration - expiration) < 2000
    assert bodies(settings, queue_name) == []


@every_mode
def test_redirected_unchanged(broker: Broker, queue_name: str, mode: dict[str, Any]) -> None:
    """J94, J149, J168: but for its expiry, which would take the message away; it stands beside it."""
    settings = broker.settings()
    expiration = send_expiring(settings, queue_name)
    spec = {"redelivery_handling": "1:move(queue:$.dlq)", "redelivery_redirect": True} | mode
    counts = activation(settings, queue_name, fail, **spec).run(max_messages=1, run_for=PATIENCE)
    assert (counts.delivered, counts.moved) == (1, 1)
    (message,) = drained(settings, f"{queue_name}.dlq")
    properties = dict(message.properties)
    original = properties.pop("JMS_Sun_JMSJCA_OriginalJMSExpiration")
    assert (message.body, message.correlation_id, properties) == ("a", "c1", {"region": "eu"})
    assert message.expiration == 0
    assert abs(int(str(original)) - expiration) < 2000


@every_mode
def test_to_each_message_its_own(broker: Broker, queue_name: str, mode: dict[str, Any]) -> None:
    """J128, J133, J169, J171, J173: deleted, moved by its own handling, poison, and the others."""
    settings = broker.settings()
    send(settings, queue_name, "deleted", "special", "poison", "late", *map(str, range(20)))
    attempts: Counter[str] = Counter()
    read: list[tuple[str | None, str | None]] = []

    def handle(delivery: Delivery) -> None:
        attempts[delivery.body] += 1
        match delivery.body:
            case "special":
                delivery.redelivery_handling = "1:move(queue:$.special)"
                raise ValueError("special")
            case "poison":
                raise PoisonMessageError("nonsense")
            case "late":
                read.append((delivery.get_string("_JMSJCA_UserRollbackDatastep"), delivery.exception_message))
                delivery.set_property("JMS_Sun_JMSJCA_UserRollbackData.step", "2")
                if delivery.redelivery_count == 0:
                    raise ValueError("once")
            case "deleted":
                raise ValueError("always")

    counts = activation(
        settings,
        queue_name,
        handle,
        redelivery_handling="3:delete",
        dead_letter_destination=f"queue://{queue_name}.dead",
        **mode,
    ).run(max_messages=24, run_for=PATIENCE)
    assert (counts.committed, counts.moved, counts.deleted) == (21, 2, 1)
    wanted = {"deleted": 3, "special": 1, "poison": 1, "late": 2}
    assert attempts == wanted | {str(number): 1 for number in range(20)}
    assert read == [(None, None), ("2", "once")]
    assert bodies(settings, f"{queue_name}.special") == ["special"]
    assert bodies(settings, f"{queue_name}.dead") == ["poison"]
    assert bodies(settings, queue_name) == []


@pytest.mark.parametrize(
    ("broker", "refused"),
    [("artemis", "forbidden.queue"), ("rabbitmq", "amq.forbidden")],
    indirect=["broker"],
)
def test_a_refused_move_leaves_the_message_to_be_delivered(
    broker: Broker, refused: str, queue_name: str
) -> None:
    """J142, J167: where a broker refuses its user a queue; ours of ActiveMQ doesn't."""
    settings = broker.settings()
    send(settings, queue_name, "a")
    attempts: list[int] = []

    def fail_twice(delivery: Delivery) -> None:
        attempts.append(delivery.redelivery_count)
        if len(attempts) < 3:
            raise ValueError("not yet")

    listener = activation(settings, queue_name, fail_twice, redelivery_handling=f"2:move(queue:{refused})")
    counts = listener.run(max_messages=1, run_for=PATIENCE)
    assert (len(attempts), counts.committed, counts.moved) == (3, 1, 0)
    assert bodies(settings, queue_name) == []


@pytest.mark.parametrize("mode", [*MODES[1:], ONE_ENDPOINT], ids=["cc", "sync", "one endpoint"])
def test_batches_side_by_side(broker: Broker, queue_name: str, mode: dict[str, Any]) -> None:
    """J183, J185, J187, J189, J190: one thread, one transaction each; the one that fails comes again."""
    settings = broker.settings()
    send(settings, queue_name, *map(str, range(95)))
    threads: dict[int, set[int]] = defaultdict(set)
    members: dict[int, list[str]] = defaultdict(list)
    ends: dict[int, tuple[int | None, bool]] = {}
    raised: set[str] = set()
    failed: set[int] = set()
    lock = threading.Lock()

    def handle(delivery: Delivery) -> None:
        with lock:
            threads[delivery.unit].add(threading.get_ident())
            if delivery.end_of_batch:
                ends[delivery.unit] = delivery.batch_index, delivery.rollback_only
                return
            members[delivery.unit].append(delivery.body)
        delivery.send(f"queue://{queue_name}.out", JmsMessage.text(delivery.body))
        if int(delivery.body) % 10 == 7 and delivery.body not in raised:
            raised.add(delivery.body)
            failed.add(delivery.unit)
            raise ValueError(delivery.body)
        if delivery.body == "53":
            failed.add(delivery.unit)
            raise PoisonMessageError(delivery.body)

    spec = {"batch_size": 10, "dead_letter_destination": f"queue://{queue_name}.dead"}
    counts = activation(settings, queue_name, handle, **spec, **mode).run(max_messages=95, run_for=PATIENCE)
    lost = sum(len(members[unit]) for unit in failed)
    assert (counts.committed, counts.rolled_back, counts.delivered) == (94, lost, 94 + lost)
    assert (counts.moved, counts.failed) == (1, 0)
    assert ends == {unit: (len(those), unit in failed) for unit, those in members.items()}
    assert max(map(len, members.values())) == 10
    assert {len(those) for those in threads.values()} == {1}
    assert sorted(map(int, bodies(settings, f"{queue_name}.out"))) == [*range(53), *range(54, 95)]
    assert bodies(settings, f"{queue_name}.dead") == ["53"]
    assert bodies(settings, queue_name) == []


@pooled_modes
def test_what_batches_send_under_one_id_is_there_once(
    broker: Broker, queue_name: str, mode: dict[str, Any]
) -> None:
    """J127, J183: where the broker drops duplicates; elsewhere an id is refused."""
    settings = broker.settings()
    send(settings, queue_name, *"abcabc")
    refused: list[str] = []

    def handle(delivery: Delivery) -> None:
        if delivery.end_of_batch:
            return
        try:
            delivery.send(
                f"queue://{queue_name}.out",
                JmsMessage.text(delivery.body),
                deduplication_id=f"{queue_name}-{delivery.body}",
            )
        except CapabilityError as error:
            refused.append(str(error))

    activation(settings, queue_name, handle, batch_size=6, **mode).run(max_messages=6, run_for=PATIENCE)
    if broker.name == "artemis":
        assert sorted(bodies(settings, f"{queue_name}.out")) == ["a", "b", "c"]
    else:
        assert len(refused) == 6
        assert "a deduplication id" in refused[0]
        assert "deduplicating_send" in refused[0]


@pooled_modes
def test_held_until_acknowledged(broker: Broker, queue_name: str, mode: dict[str, Any]) -> None:
    """J192, J194, J197, J198: what raises or wishes for it comes again; at a stop the rest stays."""
    settings = broker.settings()
    send(settings, queue_name, "a", "b", "c")
    held: queue.SimpleQueue[Delivery] = queue.SimpleQueue()

    def hold(delivery: Delivery) -> None:
        if delivery.body == "a" and delivery.redelivery_count == 0:
            raise ValueError("a")
        held.put(delivery)

    listener = activation(settings, queue_name, hold, hold_until_ack=True, **mode)
    listener.start()
    found = {delivery.body: delivery for delivery in (held.get(timeout=10) for _ in range(3))}
    assert found["a"].redelivery_count == 1
    found["b"].set_rollback_only()
    found["b"].acknowledge()
    again = held.get(timeout=10)
    assert (again.body, again.redelivery_count) == ("b", 1)
    for delivery in (found["a"], again):
        delivery.send(f"queue://{queue_name}.out", JmsMessage.text(delivery.body))
        delivery.acknowledge()
    until(lambda: listener.counts.committed == 2)
    found["c"].send(f"queue://{queue_name}.out", JmsMessage.text("never"))
    assert listener.stop(timedelta(seconds=10))
    assert bodies(settings, queue_name) == ["c"]
    assert sorted(bodies(settings, f"{queue_name}.out")) == ["a", "b"]


@pooled_modes
def test_held_batches(broker: Broker, queue_name: str, mode: dict[str, Any]) -> None:
    """J193, J198, J200: each waits for all of its own; at the stop the other goes back whole."""
    settings = broker.settings()
    send(settings, queue_name, *"abcdef")
    held: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
    # Artemis counts bytes: it gives one receiver what the other has room for, unless both have room enough.
    spec = mode | {"endpoint_pool_max_size": 2, "hold_until_ack": True, "prefetch": 6}
    listener = activation(settings, queue_name, held.put, batch_size=3, batch_idle_timeout=30, **spec)
    listener.start()
    units: dict[int, list[Delivery]] = defaultdict(list)
    for _ in range(8):
        delivery = held.get(timeout=10)
        units[delivery.unit].append(delivery)
    first, second = units.values()
    for unit in (first, second):
        assert [delivery.end_of_batch for delivery in unit] == [False, False, False, True]
    for delivery in reversed(first[1:]):
        delivery.acknowledge()
    second[0].acknowledge()
    assert listener.counts.committed == 0
    first[0].acknowledge()
    until(lambda: listener.counts.committed == 3)
    assert listener.stop(timedelta(seconds=10))
    assert sorted(bodies(settings, queue_name)) == sorted(delivery.body for delivery in second[:3])


@pytest.mark.parametrize(("kind", "receivers"), [("queue", 3), ("topic", 1)])
def test_sync_has_receivers_of_its_own(broker: Broker, queue_name: str, kind: str, receivers: int) -> None:
    """J83, J84: several on a queue; on a topic each would get every message."""
    settings = broker.settings()
    opened: list[Subscription] = []

    class Counting:
        def __init__(self) -> None:
            self._inner = connect(settings)

        def consume(self, subscription: Subscription, on_received: OnReceived) -> Consumer:
            consumer = self._inner.consume(subscription, on_received)
            opened.append(subscription)
            return consumer

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

    destination = Destination(name=queue_name, kind=DestinationKind(kind))
    got: list[str] = []
    listener = Listener(
        one_connection(
            listener_settings(ActivationSpec(destination=str(destination), **MODES[2])),
            lambda: cast("Connection", Counting()),
        ),
        lambda delivery: got.append(delivery.body),
    )
    listener.start()
    until(lambda: len(opened) == receivers)
    connection = connect(settings)
    connection.synchronize()
    if kind == "queue" and connection.capabilities.backlog:
        assert connection.backlog(destination).consumers == receivers
    connection.send(
        Outgoing(destination=destination, message=JmsMessage.text(str(number))) for number in range(30)
    )
    connection.close()
    until(lambda: listener.counts.committed == 30)
    assert listener.stop(timedelta(seconds=10))
    assert sorted(map(int, got)) == list(range(30))
    assert len(opened) == receivers


@every_mode
def test_stop_in_a_delay(broker: Broker, queue_name: str, mode: dict[str, Any]) -> None:
    """A delay of 5 s never delays a stop by more than half a second, whatever waits behind."""
    settings = broker.settings()
    send(settings, queue_name, "first", *["x"] * 300)

    def fail_first(delivery: Delivery) -> None:
        if delivery.body == "first":
            fail(delivery)

    listener = activation(settings, queue_name, fail_first, redelivery_handling="1:5000", **mode)
    listener.start()
    until(lambda: listener.counts.rolled_back == 1)
    began = time.monotonic()
    assert listener.stop(timedelta(seconds=10))
    assert time.monotonic() - began < at_most(0.5)
    assert "first" in bodies(settings, queue_name)
