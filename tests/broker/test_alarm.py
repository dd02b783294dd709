"""RabbitMQ's memory alarm: the broker reads nothing from connections that send, and keeps their messages."""

from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_provider_jmsjca import Activation, Delivery, JmsMessage
from tests.broker.listening import send, until
from tests.servers.fixtures import PrivateBroker
from tests.servers.rabbitmq import RabbitMQ

MESSAGES = {"a", "b", "c"}


def test_a_run_in_an_alarm_ends_as_blocked_and_the_next_run_gets_the_rest(
    private_broker: PrivateBroker, queue_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    broker = private_broker("rabbitmq")
    assert isinstance(broker, RabbitMQ)
    settings = broker.settings(reply_timeout=timedelta(seconds=1))
    answers: set[str] = set()

    def answer(delivery: Delivery) -> None:
        delivery.send(f"queue://{queue_name}.out", JmsMessage.text(str(delivery.body)))

    spec = {"destination": f"queue://{queue_name}", "redelivery_handling": "1:100"}
    listener = Activation(spec, answer, connection=settings)
    send(settings, queue_name, *MESSAGES)
    broker.raise_alarm()
    blocked = listener.run(idle_for=2, run_for=60)
    assert (str(listener.ended_by), blocked.committed) == ("blocked", 0)
    assert "the broker sent no receipt for 1 s" in caplog.text

    broker.clear_alarm()
    reading = {"destination": f"queue://{queue_name}.out"}
    reader = Activation(reading, lambda each: answers.add(str(each.body)), connection=settings)
    listener.start()
    reader.start()
    until(lambda: answers == MESSAGES)
    listener.stop()
    reader.stop()
