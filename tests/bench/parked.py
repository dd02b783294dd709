"""What limbo costs when there is much in it: a page of the list, and sending all of it.

Beside the rate stands that of the same messages without limbo: sent in transactions of the same size.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
import timeit
from collections.abc import Iterator
from datetime import UTC, datetime

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.engine.limbo import LimboSender
from airflow_provider_jmsjca.engine.session.connection import JmsConnection
from airflow_provider_jmsjca.store.base import LimboEntry, LimboSelection, LimboState
from airflow_provider_jmsjca.store.sql.store import open_store
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import ConnectionSettings, Outgoing
from tests.bench.rates import BODY
from tests.servers.folders import run_folder

PARKED = 100_000
_AT_ONCE = 1_000
_TRANSACTION = 100
_LEAST_PER_SECOND = 2_000
_MOST_MILLISECONDS = 50
_PAGES = 20


def report(settings: ConnectionSettings, parked: int = PARKED) -> Iterator[str]:
    """Yield a line for each measurement, with its goal.

    Args:
        settings: Of the broker that gets the messages, on the queue `bench.parked`.
        parked: How many there are; the property `number` counts them from 0.
    """
    target = Destination.queue("bench.parked")
    run_folder().mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=run_folder()) as folder,
        contextlib.closing(open_store(f"sqlite:///{folder}/store.db")) as store,
    ):
        now = datetime.now(UTC)
        for begun in range(0, parked, _AT_ONCE):
            entries = [
                LimboEntry(
                    jms_conn_id="broker",
                    destination=str(target),
                    message=JmsMessage.text(BODY, {"number": number}),
                    due_at=now,
                )
                for number in range(begun, min(begun + _AT_ONCE, parked))
            ]
            store.limbo.put(entries, now)
        for name, selection in (
            ("all", LimboSelection()),
            ("those that wait", LimboSelection(state=LimboState.WAITING)),
            ("those for a destination", LimboSelection(destination=str(target))),
            ("those for a destination that has none", LimboSelection(destination="queue://other")),
        ):
            times = [
                seconds
                for after in (0, parked // 2, parked - 100)
                for seconds in timeit.repeat(
                    lambda after=after, selection=selection: store.limbo.page(selection, after=after),  # type: ignore[misc]  # timeit's types
                    repeat=_PAGES,
                    number=1,
                )
            ]
            usual, worst = statistics.median(times) * 1000, max(times) * 1000
            yield (
                f"  {_verdict(usual < _MOST_MILLISECONDS)}  {usual:.1f} ms for a page of the list of "
                f"{parked:,} parked messages, {name}; {worst:.1f} at most "
                f"(goal: under {_MOST_MILLISECONDS} ms)"
            )
        sender = LimboSender(store.limbo, lambda _: JmsConnection(connect(settings)))
        began = time.monotonic()
        released = sender.send_due()
        rate = parked / (time.monotonic() - began)
        left = store.limbo.page(limit=1)
        if (released.sent, released.failed, left) != (parked, 0, []):
            raise AssertionError(f"of {parked:,} parked messages {released} were released")
        yield (
            f"  {_verdict(rate >= _LEAST_PER_SECOND)}  {rate:,.0f} messages/s released from limbo with "
            f"{parked:,} parked in SQLite (goal: {_LEAST_PER_SECOND:,}); "
            f"{_bound(settings, target, parked):,.0f} without limbo, in transactions of {_TRANSACTION}"
        )


def _bound(settings: ConnectionSettings, target: Destination, messages: int) -> float:
    # To the same queue: with two of this length the broker has no memory left, and stops its producers.
    outgoing = Outgoing(destination=target, message=JmsMessage.text(BODY))
    began = time.monotonic()
    with JmsConnection(connect(settings)) as connection, connection.session(transacted=True) as session:
        for begun in range(0, messages, _TRANSACTION):
            session.send_all([outgoing] * min(_TRANSACTION, messages - begun))
            session.commit()
    return messages / (time.monotonic() - began)


def _verdict(met: bool) -> str:
    return "met   " if met else "MISSED"
