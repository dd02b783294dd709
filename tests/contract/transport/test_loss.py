"""Connections that break, and load."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque

import pytest

from airflow_provider_jmsjca import (
    Connection,
    ConnectionLostError,
    Destination,
    InDoubtError,
    JmsError,
    JmsMessage,
    Outgoing,
    Subscription,
    TransientBrokerError,
)
from tests.contract.transport.collector import DEADLINE, Collector
from tests.contract.transport.lab import Lab, over_network
from tests.contract.transport.traffic import Connect, assert_left, commit_something, publish, settle
from tests.internals.transports import ConnectionState, Received
from tests.pace import at_most


class Losses:
    def __init__(self) -> None:
        self.reasons: list[JmsError] = []
        self.threads: list[int] = []
        self.told = threading.Event()

    def __call__(self, reason: JmsError) -> None:
        self.reasons.append(reason)
        self.threads.append(threading.get_ident())
        self.told.set()


def test_a_cut_connection_is_told_once_and_messages_come_back(
    lab: Lab, connect: Connect, queue: Destination
) -> None:
    with lab.line() as line:
        connection = connect(settings=line.settings)
        bodies = publish(connection, queue, 3)
        collector, losses, late = Collector(), Losses(), Losses()
        connection.on_lost(losses)
        consumer = connection.consume(Subscription(destination=queue), collector)
        received = collector.wait(3)
        line.cut()
        assert losses.told.wait(DEADLINE)
        assert connection.state is ConnectionState.LOST
        connection.on_lost(late)
        assert late.told.wait(DEADLINE)
        for use in (
            lambda: consumer.acknowledge(received),
            consumer.recover,
            connection.synchronize,
            lambda: commit_something(connection, queue),
        ):
            with pytest.raises(ConnectionLostError):
                use()
        with pytest.raises((ConnectionLostError, InDoubtError)):
            connection.send([Outgoing(destination=queue, message=JmsMessage.text("x"))])
        connection.close()
    assert len(losses.reasons) == 1
    assert isinstance(losses.reasons[0], ConnectionLostError)
    assert threading.get_ident() not in losses.threads + late.threads
    assert_left(connect, queue, bodies)


def test_a_callback_that_raises_ends_the_connection_and_loses_nothing(
    connect: Connect, queue: Destination, caplog: pytest.LogCaptureFixture
) -> None:
    connection, losses = connect(), Losses()
    bodies = publish(connection, queue, 2)
    connection.on_lost(losses)

    def fail(received: Received) -> None:
        raise RuntimeError(f"a bug with {received.message.body!r}")

    with caplog.at_level(logging.ERROR):
        connection.consume(Subscription(destination=queue), fail)
        assert losses.told.wait(DEADLINE)
    # Not the text: Airflow's logging, once in use in this process, writes it in a format of its own.
    logged = [str(record.exc_info[1]) for record in caplog.records if record.exc_info]
    assert any(text.startswith("a bug") for text in logged)
    assert connection.state is ConnectionState.LOST
    with pytest.raises(ConnectionLostError, match="a bug"):
        connection.synchronize()
    assert_left(connect, queue, bodies)


def test_closing_is_no_loss(connect: Connect) -> None:
    connection = connect()
    losses = Losses()
    connection.on_lost(losses)
    connection.close()
    assert not losses.told.wait(0.3)


@over_network
def test_a_hung_broker_is_noticed_within_three_heart_beats(lab: Lab, connect: Connect) -> None:
    with lab.line() as line:
        connection = connect(settings=line.settings)
        losses = Losses()
        connection.on_lost(losses)
        line.freeze()
        began = time.monotonic()
        assert losses.told.wait(3 * line.settings.heart_beat.total_seconds() + at_most(0.5))
        assert connection.state is ConnectionState.LOST
        connection.close()
        assert time.monotonic() - began < 3 + at_most(2)


def test_a_new_connection_after_a_restart_finds_the_persistent_messages(
    private_lab: Lab, connect: Connect, queue: Destination
) -> None:
    settings = private_lab.settings()
    private_lab.put_on_disk(queue)
    connection = connect(settings=settings)
    bodies = publish(connection, queue, 10)
    losses = Losses()
    connection.on_lost(losses)
    private_lab.kill()
    assert losses.told.wait(DEADLINE)
    with pytest.raises(TransientBrokerError, match=str(settings.hosts[0][0])):
        connect(settings=settings)
    private_lab.start()
    connection.close()
    assert_left(lambda: connect(settings=settings), queue, bodies)


def test_5000_messages_without_a_stall(connection: Connection, connect: Connect, queue: Destination) -> None:
    arrivals = [time.monotonic()]

    def note(received: Received) -> None:
        settle(received)
        arrivals.append(time.monotonic())

    publisher = threading.Thread(target=publish, args=(connection, queue, 5000))
    publisher.start()
    collector = Collector(note)
    connect().consume(Subscription(destination=queue), collector)
    collector.wait(5000, 60)
    publisher.join(DEADLINE)
    assert collector.bodies == [str(number) for number in range(5000)]
    # A broker that waits for acknowledgements it has no room for shows as a pause of half a minute.
    assert max(later - earlier for earlier, later in itertools.pairwise(arrivals)) < 8


class Shift:
    """Publishes and acknowledges on several threads until every message has arrived."""

    def __init__(self, connection: Connection, queue: Destination, total: int) -> None:
        self.arrived: set[object] = set()
        self.twice: list[object] = []
        self.faults: list[JmsError] = []
        self.done = threading.Event()
        self._connection = connection
        self._queue = queue
        self._total = total
        self._inbox: deque[Received] = deque()
        self._lock = threading.Lock()
        self._consumer = connection.consume(Subscription(destination=queue), self._inbox.append)

    def work(self, worker: int, count: int) -> None:
        try:
            for number in range(count):
                message = JmsMessage.text(f"{worker}-{number}")
                self._connection.send([Outgoing(destination=self._queue, message=message)])
                self._settle_one()
            while not self.done.wait(0.005):
                self._settle_one()
        except JmsError as fault:
            self.faults.append(fault)
            self.done.set()

    def _settle_one(self) -> None:
        try:
            received = self._inbox.popleft()
        except IndexError:
            return
        self._consumer.acknowledge([received])
        with self._lock:
            body = received.message.body
            (self.twice.append if body in self.arrived else self.arrived.add)(body)
            if len(self.arrived) == self._total:
                self.done.set()


def test_eight_threads_on_one_connection(connection: Connection, queue: Destination) -> None:
    shift = Shift(connection, queue, total=400)
    threads = [threading.Thread(target=shift.work, args=(worker, 50), daemon=True) for worker in range(8)]
    for thread in threads:
        thread.start()
    assert shift.done.wait(20), f"{len(shift.arrived)} of 400 arrived"
    for thread in threads:
        thread.join(DEADLINE)
    assert (shift.faults, shift.twice) == ([], [])
    assert len(shift.arrived) == 400
    connection.synchronize()
