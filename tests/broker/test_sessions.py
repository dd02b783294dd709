"""Sessions that hold much unsettled."""

from __future__ import annotations

import time
from typing import Any

import pytest

from airflow_provider_jmsjca import (
    AcknowledgeMode,
    CapabilityError,
    Destination,
    JmsConnection,
    JmsMessage,
    Outgoing,
    PoisonMessageError,
    connect,
)
from tests.internals.transports import ActiveMqDialect, ArtemisDialect, RabbitMqDialect
from tests.pace import at_most
from tests.servers.broker import Broker

MESSAGES = 1000


@pytest.mark.parametrize(
    ("mode", "held"),
    [
        (AcknowledgeMode.SESSION_TRANSACTED, 200),
        (AcknowledgeMode.SESSION_TRANSACTED, 201),
        (AcknowledgeMode.SESSION_TRANSACTED, 1000),
        (AcknowledgeMode.CLIENT, 200),
    ],
)
def test_what_is_settled_together_may_be_more_than_the_broker_hands_out_at_once(
    broker: Broker, queue_name: str, mode: AcknowledgeMode, held: int
) -> None:
    """ActiveMQ hands out 200 messages, and then nothing for half a minute unless one is acknowledged.

    In a transaction each is at once; in client mode there is no such way, there or with its Java client.
    """
    queue = Destination.queue(queue_name)
    raw = connect(broker.settings())
    raw.send(
        [Outgoing(destination=queue, message=JmsMessage.text(str(number))) for number in range(MESSAGES)]
    )
    raw.close()
    began = time.monotonic()
    transacted = mode is AcknowledgeMode.SESSION_TRANSACTED
    mode_given = {"transacted": True} if transacted else {"acknowledge_mode": mode}
    with JmsConnection(connect(broker.settings())) as connection:
        with connection.session(prefetch=held, **mode_given) as session:
            for number in range(MESSAGES):
                message = session.receive(queue, timeout=20)
                assert message is not None, f"nothing after {number}"
                assert message.body == str(number)
                if (number + 1) % held == 0 or number + 1 == MESSAGES:
                    session.commit() if transacted else session.acknowledge()
        with connection.session() as session:
            assert session.receive(queue, timeout=0) is None
    assert time.monotonic() - began < at_most(15)


@pytest.mark.parametrize("selector", ["NOT region = 'us'", "TRUE <> (region = 'us')"])
def test_a_selector_selects_what_jms_says(broker: Broker, queue_name: str, selector: str) -> None:
    """ActiveMQ reads `NOT region = 'us'` as `(NOT region) = 'us'`, and then delivers nothing any more."""
    queue = Destination.queue(queue_name)
    with JmsConnection(connect(broker.settings())) as connection, connection.session() as session:
        if not connection.capabilities.selector:
            with pytest.raises(CapabilityError, match="selector"):
                session.receive(queue, timeout=0, selector=selector)
            return
        for region in ("us", "eu"):
            session.send(queue, JmsMessage.text(region, properties={"region": region}))
        message = session.receive(queue, timeout=10, selector=selector)
        assert message is not None
        assert message.body == "eu"


@pytest.mark.parametrize("mode", [AcknowledgeMode.AUTO, AcknowledgeMode.DUPS_OK])
def test_what_can_not_be_decoded_stays_and_those_behind_it_are_settled(
    broker: Broker, queue_name: str, mode: AcknowledgeMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where one acknowledgement settles everything before it."""
    queue = Destination.queue(queue_name)
    raw = connect(broker.settings())
    bodies = ["a", "poison", *(str(number) for number in range(300))]
    raw.send([Outgoing(destination=queue, message=JmsMessage.text(body)) for body in bodies])
    raw.close()
    with monkeypatch.context() as patched:
        for dialect in (ActiveMqDialect, ArtemisDialect, RabbitMqDialect):
            decode_body: Any = dialect.decode_body

            def refuse(
                self: Any, frame: Any, headers: Any, decode_body: Any = decode_body
            ) -> tuple[Any, Any]:
                if frame.body == b"poison":
                    raise PoisonMessageError("as if it were no text")
                return decode_body(self, frame, headers)  # type: ignore[no-any-return]

            patched.setattr(dialect, "decode_body", refuse)
        got, refused = [], 0
        with (
            JmsConnection(connect(broker.settings())) as connection,
            connection.session(acknowledge_mode=mode, prefetch=50) as session,
        ):
            while len(got) < len(bodies) - 1:
                try:
                    message = session.receive(queue, timeout=10)
                except PoisonMessageError:
                    refused += 1
                    continue
                assert message is not None
                got.append(message.body)
    assert got == [body for body in bodies if body != "poison"]
    assert 1 <= refused <= 2
    with JmsConnection(connect(broker.settings())) as connection, connection.session() as session:
        message = session.receive(queue, timeout=10)
        assert message is not None
        assert message.body == "poison"
        assert session.receive(queue, timeout=0) is None
