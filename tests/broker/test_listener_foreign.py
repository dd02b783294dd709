"""What other clients send, that handlers and moves must do justice to."""

from __future__ import annotations

import contextlib
import socket
from datetime import timedelta
from typing import Self

import pytest

from airflow_provider_jmsjca import Delivery, JmsMessage, connect
from tests.broker.listening import activation, bodies, drained
from tests.broker.test_stomp_traps import raw_send
from tests.dead_letters import original_of
from tests.servers.broker import Broker

ONE = "1:move(queue:$.dlq)"
SOON = timedelta(seconds=10)


def fail(_: Delivery) -> None:
    raise ValueError("no stock")


class Requester:
    """Another STOMP client, whose answers come to a temporary queue of its own."""

    def __init__(self, broker: Broker) -> None:
        settings = broker.settings()
        self._socket = socket.create_connection(broker.address(), 10)
        self._came = b""
        self._say("CONNECT", "accept-version:1.2", "host:/", f"login:{settings.username}",
                  f"passcode:{settings.password}")  # fmt: skip
        self.frame()
        with contextlib.closing(connect(settings)) as ours:
            product = ours.broker.product
        if product == "activemq":  # RabbitMQ subscribes by itself
            self._say("SUBSCRIBE", "id:1", "destination:/temp-queue/answers", "ack:auto", "receipt:there")
            self.frame()

    def _say(self, *lines: str, body: str = "") -> None:
        self._socket.sendall("\n".join([*lines, "", f"{body}\0"]).encode())

    def ask(self, queue: str) -> None:
        self._say("SEND", f"destination:/queue/{queue}", "reply-to:/temp-queue/answers",
                  "content-type:text/plain", "persistent:true", "receipt:sent", body="ping")  # fmt: skip
        assert self.frame().startswith("RECEIPT")

    def frame(self) -> str:
        while b"\0" not in self._came:
            self._came += self._socket.recv(65536)
        frame, _, self._came = self._came.partition(b"\0")
        return frame.decode().lstrip("\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()


@pytest.fixture(params=["activemq", "rabbitmq"])
def with_temporary(request: pytest.FixtureRequest) -> Broker:
    """Brokers that put the name of a temporary queue into `reply-to`."""
    broker = request.getfixturevalue(request.param)
    assert isinstance(broker, Broker)
    return broker


@pytest.mark.parametrize("redirect", [False, True], ids=["copied", "redirected"])
def test_who_asks_over_a_temporary_queue_is_answered(
    with_temporary: Broker, queue_name: str, *, redirect: bool
) -> None:
    """Also by who takes care of the dead letter."""
    settings = with_temporary.settings()

    def answer(delivery: Delivery) -> None:
        assert delivery.reply_to is not None
        delivery.send(delivery.reply_to, JmsMessage.text(f"pong from {delivery.message.destination}"))

    with Requester(with_temporary) as requester:
        requester.ask(queue_name)
        assert activation(settings, queue_name, answer).run(max_messages=1, run_for=SOON).committed == 1
        assert requester.frame().endswith(f"pong from queue://{queue_name}")
        requester.ask(queue_name)
        moving = activation(settings, queue_name, fail, redelivery_handling=ONE, redelivery_redirect=redirect)
        assert moving.run(max_messages=1, run_for=SOON).moved == 1
        dead_letters = f"{queue_name}.dlq"
        assert activation(settings, dead_letters, answer).run(max_messages=1, run_for=SOON).committed == 1
        assert requester.frame().endswith(f"pong from queue://{dead_letters}")


@pytest.mark.parametrize("redirect", [False, True], ids=["copied", "redirected"])
def test_a_priority_that_jms_does_not_know_is_moved_and_stored(
    rabbitmq: Broker, queue_name: str, *, redirect: bool
) -> None:
    """RabbitMQ has 0 to 255. Once such a message was neither moved nor redirected, and came for ever."""
    settings = rabbitmq.settings()
    raw_send(rabbitmq, f"destination:/queue/{queue_name}", "persistent:true", "priority:10")
    moving = activation(settings, queue_name, fail, redelivery_handling=ONE, redelivery_redirect=redirect)
    counts = moving.run(max_messages=1, run_for=SOON)
    assert (counts.delivered, counts.moved) == (1, 1)
    (message,) = drained(settings, f"{queue_name}.dlq")
    assert message.priority == 10
    assert (original_of(message) is None) is redirect
    assert JmsMessage.from_json(message.to_json()) == message
    assert bodies(settings, queue_name) == []


def test_a_priority_that_jms_does_not_know_is_archived(rabbitmq: Broker, queue_name: str) -> None:
    settings = rabbitmq.settings()
    raw_send(rabbitmq, f"destination:/queue/{queue_name}", "persistent:true", "priority:255")
    archiving = activation(
        settings, queue_name, lambda _: None, archive_destination=f"queue://{queue_name}.archive"
    )
    assert archiving.run(max_messages=1, run_for=SOON).committed == 1
    assert [message.priority for message in drained(settings, f"{queue_name}.archive")] == [255]
