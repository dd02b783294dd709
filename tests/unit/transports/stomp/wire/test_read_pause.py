"""Letting fast messages gather."""

from __future__ import annotations

import pytest

from airflow_provider_jmsjca.transports.base import Subscription
from airflow_provider_jmsjca.transports.stomp.wire.frames import Frame
from airflow_provider_jmsjca.transports.stomp.wire.wire import GATHERING_SECONDS, LEAST_PREFETCH, ReadPause
from tests.unit.transports.stomp.test_connection import (
    QUEUE,
    Pair,
    pair,  # noqa: F401 - a fixture
)

MESSAGE = Frame(b"MESSAGE", b"", b"")
RECEIPT = Frame(b"RECEIPT", b"", b"")


def _gathering() -> ReadPause:
    gathering = ReadPause()
    gathering.allowed = True
    return gathering


def test_nothing_gathers_unless_it_may() -> None:
    gathering = ReadPause()
    assert [gathering.pause_after(1, 0, 1300, now) for now in (10.0, 10.00003)] == [0.0, 0.0]


def test_fast_messages_gather() -> None:
    gathering = _gathering()
    reads = [(1, 10.0), (2, 10.00006), (1, 10.0001), (33, 10.0011)]
    pauses = [gathering.pause_after(count, 0, 1300 * count, now) for count, now in reads]
    assert pauses == [0.0, GATHERING_SECONDS, GATHERING_SECONDS, 0.0]  # of the last there is enough


def test_messages_that_come_one_by_one_are_read_at_once() -> None:
    gathering = _gathering()
    assert not any(gathering.pause_after(1, 0, 1300, 10.0 + each * 0.0002) for each in range(50))


def test_who_waits_for_receipts_isnt_kept_waiting() -> None:
    gathering = _gathering()
    gathering.pause_after(1, 0, 1300, 10.0)
    assert gathering.pause_after(1, 1, 1300, 10.00003) == 0.0
    assert gathering.pause_after(1, 0, 1300, 10.00006) == 0.0
    assert gathering.pause_after(20, 0, 20_000, 10.0021) == GATHERING_SECONDS


def test_part_of_a_message_is_read_on_at_once() -> None:
    gathering = _gathering()
    assert [gathering.pause_after(0, 0, 1300, now) for now in (10.0, 10.00003)] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("server", "prefetch", "allowed"),
    [
        (b"RabbitMQ/3.10.8", None, True),
        (b"RabbitMQ/3.10.8", LEAST_PREFETCH, True),
        (b"RabbitMQ/3.10.8", LEAST_PREFETCH - 1, False),
        (b"ActiveMQ/6.3.1", None, False),
    ],
)
def test_where_they_may(
    pair: Pair,  # noqa: F811 - the fixture
    server: bytes,
    prefetch: int | None,
    allowed: bool,
) -> None:
    connection = pair.up(server)
    subscription = Subscription(destination=QUEUE, prefetch=prefetch)
    thread, _ = pair.in_background(connection.consume, subscription, lambda _: None)
    pair.peer.receipt(pair.peer.hear()[1])
    thread.join(5)
    assert connection.link.wire.gathering.allowed is allowed
