"""A broker that blocks a connection, and holds its messages, as RabbitMQ does in an alarm."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_jmsjca import Activation, ConnectionSettings
from airflow_provider_jmsjca.engine.activations.limits import RunLimits
from airflow_provider_jmsjca.engine.collecting.batch_spec import EndReason
from tests.servers.stomp_peer import ACTIVEMQ, Fault, block, scripted_broker, stall
from tests.unit.engine.listening import fail

RABBITMQ = "RabbitMQ/3.10.8"
SECOND = timedelta(seconds=1)


@pytest.mark.parametrize(
    ("fault", "server", "later", "ended_by"),
    [
        (block, RABBITMQ, {"most": 1}, EndReason.BLOCKED),
        (stall, RABBITMQ, {"most": 1}, EndReason.BLOCKED),
        (block, RABBITMQ, {"new_messages": True}, EndReason.BLOCKED),
        (block, RABBITMQ, {"redelivered": True}, EndReason.IDLE),
        (block, ACTIVEMQ, {"new_messages": True, "redelivered": True}, EndReason.BLOCKED),
        (block, ACTIVEMQ, {}, EndReason.IDLE),
    ],
    ids=[
        "nothing",
        "no heart-beat either",
        "another message",
        "a redelivery",
        "another redelivery",
        "the message by its id",
    ],
)
def test_a_run_is_not_idle_before_the_broker_gives_back_what_it_held(
    fault: Fault, server: str, later: dict[str, Any], ended_by: EndReason
) -> None:
    """The connection is blocked when the listener moves its message; what comes later differs."""
    with scripted_broker(fault, step="SEND", server=server, **later) as peer:
        settings = ConnectionSettings(
            scheme="stomp", hosts=(("127.0.0.1", peer.port),), reply_timeout=SECOND, heart_beat=timedelta(0)
        )
        spec = {"destination": "queue://orders", "redelivery_handling": "1:move(queue:dlq)"}
        listener = Activation(spec, fail, connection=settings)
        listener.run(idle_for=0.5, run_for=60)
        assert peer.connects > 1
    assert listener.ended_by is ended_by


@pytest.mark.parametrize(
    ("idle", "blocked", "ended_by"),
    [(4, True, None), (5, False, EndReason.IDLE), (5, True, None), (9, True, EndReason.BLOCKED)],
)
def test_a_blocked_run_waits_for_the_longer_bound(
    idle: float, blocked: bool, ended_by: EndReason | None
) -> None:
    ends = RunLimits(idle_for=SECOND * 5, failure_timeout=SECOND * 9)
    found = ends.end_reason(settled=0, elapsed=9, idle=idle, failing=0, blocked=blocked)
    assert (found and found[0]) is ended_by
