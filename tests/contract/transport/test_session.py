"""Sessions over every transport; what they promise must not depend on the broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_provider_jmsjca import AcknowledgeMode, Destination, JmsConnection, JmsMessage, JmsSession
from tests.contract.transport.traffic import Connect, assert_left, publish


@pytest.fixture
def jms(connect: Connect) -> Iterator[JmsConnection]:
    with JmsConnection(connect()) as opened:
        yield opened


def take(session: JmsSession, queue: Destination, count: int, *, redelivered: bool = False) -> list[object]:
    bodies: list[object] = []
    for _ in range(count):
        message = session.receive(queue, timeout=10)
        assert message is not None, f"nothing more after {bodies}"
        assert message.redelivered or not redelivered
        bodies.append(message.body)
    return bodies


@pytest.mark.parametrize("size", [1, 3000], ids=["small", "3 kB"])
def test_a_transaction_comes_again_in_order_after_rollback(
    connect: Connect, jms: JmsConnection, queue: Destination, size: int
) -> None:
    sent = [f"{number:{size}}" for number in range(20)]
    with jms.session(transacted=True) as session:
        for body in sent:
            session.send(queue, JmsMessage.text(body))
        session.commit()
        assert take(session, queue, 15) == sent[:15]
        session.rollback()
        assert take(session, queue, 15, redelivered=True) + take(session, queue, 5) == sent
        session.commit()
        assert session.receive(queue, timeout=0) is None
    assert_left(connect, queue, [])


def test_order_holds_over_several_transactions(
    connect: Connect, jms: JmsConnection, queue: Destination
) -> None:
    bodies = publish(connect(), queue, 60)
    taken: list[object] = []
    with jms.session(transacted=True) as session:
        for size in (1, 7, 2, 20, 30):
            taken += take(session, queue, size)
            session.commit()
    assert taken == bodies
    assert_left(connect, queue, [])


def test_auto_settles_one_by_one_and_leaves_the_rest(
    connect: Connect, jms: JmsConnection, queue: Destination
) -> None:
    bodies = publish(connect(), queue, 5)
    with jms.session() as session:
        assert take(session, queue, 2) == bodies[:2]
    assert_left(connect, queue, bodies[2:])


def test_client_mode_recovers_what_was_not_acknowledged(
    connect: Connect, jms: JmsConnection, queue: Destination
) -> None:
    bodies = publish(connect(), queue, 6)
    with jms.session(acknowledge_mode=AcknowledgeMode.CLIENT) as session:
        take(session, queue, 2)
        session.acknowledge()
        assert take(session, queue, 3) == bodies[2:5]
        session.recover()
        assert take(session, queue, 3, redelivered=True) + take(session, queue, 1) == bodies[2:]
    assert_left(connect, queue, bodies[2:])


def test_a_session_moves_messages(
    connect: Connect, jms: JmsConnection, queue: Destination, name: str
) -> None:
    bodies = publish(connect(), queue, 3)
    with jms.session(transacted=True) as session:
        for _ in range(3):
            message = session.receive(queue, timeout=10)
            assert message is not None
            session.send(f"queue://{name}.target", message)
        session.commit()
    assert_left(connect, queue, [])
    assert_left(connect, Destination.queue(f"{name}.target"), bodies)
