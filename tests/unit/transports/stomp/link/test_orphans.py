"""Messages whose subscription has ended before they were settled."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_jmsjca.core.destination import Destination, DestinationKind
from airflow_provider_jmsjca.errors import CapabilityError
from airflow_provider_jmsjca.transports.stomp.dialects import BY_SERVER, GenericDialect
from airflow_provider_jmsjca.transports.stomp.dialects.dialect import Dialect
from airflow_provider_jmsjca.transports.stomp.link.link import UnsettledAfterUnsubscribe


class QueuesAlone(GenericDialect):
    """A server without topics."""

    def destination(self, destination: Destination) -> str:
        if destination.kind is DestinationKind.TOPIC:
            raise CapabilityError("this server has no topics")
        return super().destination(destination)


@pytest.mark.parametrize(
    ("dialect", "said"),
    [
        (QueuesAlone(), [b"NACK", b"NACK"]),
        (BY_SERVER["RabbitMQ"], [b"SUBSCRIBE", b"NACK", b"NACK"]),
    ],
)
def test_they_go_back_through_another_subscription_only_where_the_broker_needs_one(
    dialect: Dialect, said: list[bytes]
) -> None:
    frames: list[bytes] = []
    receipts = SimpleNamespace(ask=lambda: "r1")
    link: Any = SimpleNamespace(
        dialect=dialect,
        wire=SimpleNamespace(append=frames.append, write=frames.append),
        replies=SimpleNamespace(receipts=lambda blame: receipts),  # noqa: ARG005 - as the real one
        wait=lambda receipts: None,  # noqa: ARG005
        new_subscription_id=lambda: "s9",
    )
    UnsettledAfterUnsubscribe(link).hand_back([b"T_s1@@x@@1", b"T_s1@@x@@2"])
    assert [frame.split(b"\n", 1)[0] for frame in frames] == said


def test_a_token_goes_back_as_it_came_escapes_and_all() -> None:
    token = b"ID\\c1\xff"
    assert QueuesAlone().orphan(token, "") == token
