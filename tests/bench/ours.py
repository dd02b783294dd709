"""This package doing the work, through what its users call: sessions, the listener, the batch collector."""

from __future__ import annotations

import functools
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import ClassVar

from airflow_provider_jmsjca.core.activation import ActivationSpec
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.engine.activations.listener import Listener
from airflow_provider_jmsjca.engine.activations.run import one_connection
from airflow_provider_jmsjca.engine.connecting.connector import open_connection
from airflow_provider_jmsjca.engine.delivering.delivery import Delivery
from airflow_provider_jmsjca.engine.delivering.settings import ListenerContext, listener_settings
from airflow_provider_jmsjca.engine.session.connection import JmsConnection
from airflow_provider_jmsjca.engine.session.session import AcknowledgeMode, JmsSession
from airflow_provider_jmsjca.store.base import Store
from airflow_provider_jmsjca.store.sql.store import open_store
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import Connection, Outgoing
from tests.bench import batch
from tests.bench.filling import fill
from tests.bench.rates import (
    BODY,
    INDIVIDUAL,
    LISTENER,
    LISTENER_BATCH,
    LISTENER_BATCH_FEW,
    LISTENER_BATCH_SEVERAL,
    LISTENER_CC,
    LISTENER_STORED,
    LISTENER_SYNC,
    OURS,
    PATIENCE,
    PUBLISH,
    PUBLISH_BULK,
    PUBLISH_BYTES,
    PUBLISH_BYTES_BULK,
    PUBLISH_TRANSACTION,
    SEALED,
    SESSIONS,
    TRANSACTED,
    TRANSACTION,
    Measured,
    Meter,
)
from tests.bench.rival import Leg, new_queue
from tests.servers.broker import Broker
from tests.servers.folders import run_folder

HANDLING = "3:100; 5:1000; 10:move(queue:$.dlq)"
PREFETCH = 500
PREFETCH_SEVERAL = 1000
"""Of the listener in `cc`, as the Java client's sessions have together, and the bare socket."""


class Ours:
    """This package."""

    who: ClassVar[str] = OURS

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._settings = broker.settings()

    def manner(self) -> str:
        """Return how it works and what it waits for."""
        return (
            "in bulk is what the publishing operator does: transactions of 1000 where there are any, else "
            "a receipt for each message; commits are confirmed, with atomic transactions or receipts alike; "
            f"individual acknowledgements are a session in dups_ok mode, prefetch {PREFETCH}; the listener "
            f"delivers under {HANDLING!r}, transacted, and acknowledges messages "
            f"whose handlers have returned, up to 100 with one frame; prefetch in cc {PREFETCH_SEVERAL}"
        )

    def legs(self) -> Mapping[str, Leg]:
        """Return its pieces of work."""
        return {
            PUBLISH_BYTES: self._publish_bytes,
            INDIVIDUAL: self._publish_and_receive,
            LISTENER: functools.partial(self._listen, LISTENER, "serial"),
            LISTENER_CC: functools.partial(self._listen, LISTENER_CC, "cc", prefetch=PREFETCH_SEVERAL),
            LISTENER_SYNC: functools.partial(self._listen, LISTENER_SYNC, "sync"),
            LISTENER_BATCH: self._batches,
            TRANSACTED: self._transacted,
            SEALED: self._sealed,
        }

    def close(self) -> None:
        """Nothing is left open."""

    def _publish_bytes(self, messages: int) -> Iterator[Measured]:
        body = BODY.encode()
        yield self._publish_bulk(PUBLISH_BYTES_BULK, messages, lambda: JmsMessage.bytes(body))
        destination = Destination.queue(new_queue())
        with JmsConnection(connect(self._settings)) as connection:
            yield self._publish(
                connection, PUBLISH_BYTES, destination, messages, lambda: JmsMessage.bytes(body)
            )
            self._receive_singly(connection, destination, messages)

    def _publish_bulk(self, what: str, messages: int, make: Callable[[], JmsMessage]) -> Measured:
        meter, destination = Meter(self._broker), Destination.queue(new_queue())
        transport = connect(self._settings)
        with JmsConnection(transport) as connection:
            meter.start()
            transport.send(Outgoing(destination=destination, message=make()) for _ in range(messages))
            meter.stop()
            self._receive_singly(connection, destination, messages)
        return meter.result(what, self.who, messages)

    def _publish(
        self,
        connection: JmsConnection,
        what: str,
        destination: Destination,
        messages: int,
        make: Callable[[], JmsMessage],
    ) -> Measured:
        meter = Meter(self._broker)
        with connection.session(transacted=True) as session:
            meter.start()
            for number in range(1, messages + 1):
                session.send(destination, make())  # the others make a new one each time too
                if number % PUBLISH_TRANSACTION == 0:
                    session.commit()
            session.commit()
            meter.stop()
        return meter.result(what, self.who, messages)

    def _publish_and_receive(self, messages: int) -> Iterator[Measured]:
        yield self._publish_bulk(PUBLISH_BULK, messages, lambda: JmsMessage.text(BODY))
        destination = Destination.queue(new_queue())
        with JmsConnection(connect(self._settings)) as connection:
            yield self._publish(connection, PUBLISH, destination, messages, lambda: JmsMessage.text(BODY))
            yield self._receive_singly(connection, destination, messages)

    def _receive_singly(self, connection: JmsConnection, destination: Destination, messages: int) -> Measured:
        meter = Meter(self._broker)
        with connection.session(acknowledge_mode=AcknowledgeMode.DUPS_OK, prefetch=PREFETCH) as session:
            meter.start()
            for _ in range(messages):
                _receive(session, destination)
            meter.stop()
        return meter.result(INDIVIDUAL, self.who, messages)

    def _transacted(self, messages: int) -> Iterator[Measured]:
        queue, meter = new_queue(), Meter(self._broker)
        destination = Destination.queue(queue)
        fill(self._settings, queue, messages)
        with (
            JmsConnection(connect(self._settings)) as connection,
            connection.session(transacted=True, prefetch=2 * TRANSACTION) as session,
        ):
            meter.start()
            for number in range(1, messages + 1):
                _receive(session, destination)
                if number % TRANSACTION == 0:
                    session.commit()
            session.commit()
            meter.stop()
        yield meter.result(TRANSACTED, self.who, messages)

    def _batches(self, messages: int) -> Iterator[Measured]:
        several = {LISTENER_BATCH: 1, LISTENER_BATCH_FEW: 4, LISTENER_BATCH_SEVERAL: SESSIONS}
        for what, endpoints in several.items():
            spec = {"endpoint_pool_max_size": endpoints, "batch_size": TRANSACTION}
            yield from self._listen(what, "cc", messages, **spec)
        spec = {"endpoint_pool_max_size": 1, "batch_size": TRANSACTION}
        run_folder().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=run_folder()) as folder:
            store = open_store(f"sqlite:///{folder}/store.db")
            stored = spec | {"use_store": True, "duplicate_event_elimination": True}
            yield from self._listen(LISTENER_STORED, "cc", messages, store=store, **stored)
            store.close()

    def _listen(
        self, what: str, mode: str, messages: int, *, store: Store | None = None, **more: object
    ) -> Iterator[Measured]:
        queue, meter = new_queue(), Meter(self._broker)
        fill(self._settings, queue, messages)
        done = threading.Event()
        numbers = iter(range(1, messages + 1))

        def handle(delivery: Delivery) -> None:
            if delivery.end_of_batch:
                return
            assert delivery.body is not None
            if next(numbers) == messages:
                done.set()

        def connected() -> Connection:
            connection = connect(self._settings)
            meter.start()  # as for the others, who are connected before their clocks start
            return connection

        fields: dict[str, object] = {"concurrency_mode": mode, "redelivery_handling": HANDLING} | more
        spec = ActivationSpec(destination=f"queue://{queue}", **fields)  # type: ignore[arg-type]
        listener = Listener(
            one_connection(listener_settings(spec, ListenerContext(store=store)), connected), handle
        )
        listener.start()
        came = done.wait(PATIENCE)
        meter.stop()
        listener.stop()
        assert came, f"the listener had {listener.counts.delivered} of {messages} messages"
        assert listener.counts.committed == messages
        yield meter.result(what, self.who, messages)

    def _sealed(self, messages: int) -> Iterator[Measured]:
        queue, meter = new_queue(), Meter(self._broker)
        destination = Destination.queue(queue)
        connection = connect(self._settings)
        batch.publish(connection, destination, messages, len(BODY))
        connection.close()
        run_folder().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=run_folder()) as spool:
            opener = functools.partial(open_connection, self._settings)
            meter.start()
            found = batch.measure(opener, destination, messages, Path(spool))
            meter.stop()
        yield meter.result(SEALED, self.who, messages, found.seconds)


def _receive(session: JmsSession, destination: Destination) -> None:
    message = session.receive(destination, timeout=PATIENCE)
    assert message is not None
    assert message.body is not None
