"""RabbitMQ's acknowledgements cover a connection: each batch of a listener has one of its own."""

from __future__ import annotations

import logging
import threading
import uuid
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from urllib.parse import quote

import httpx
import pytest

from airflow_provider_jmsjca import Delivery
from tests.broker.listening import activation, bodies, send, until
from tests.servers.ports import HOST
from tests.servers.proxy import TcpProxy
from tests.servers.rabbitmq import RabbitMQ

BATCH = 10
ENDPOINTS = 3
BATCHES = {
    "concurrency_mode": "cc", "endpoint_pool_max_size": ENDPOINTS, "batch_size": BATCH,
    "batch_idle_timeout": timedelta(milliseconds=200),
}  # fmt: skip


class Handled:
    """Notes the bodies of handled messages."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __call__(self, delivery: Delivery) -> None:
        if not delivery.end_of_batch:
            with self._lock:
                self.seen[str(delivery.message.body)] += 1


def losses_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    messages = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    return [message for message in messages if "The connection to rabbitmq" in message]


def test_each_batch_has_a_connection_and_none_outlives_the_listener(
    rabbitmq: RabbitMQ, queue_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The loss of any of them is the loss of all, and the listener connects again."""
    sent = [str(number) for number in range(200)]
    handled = Handled()
    with TcpProxy(rabbitmq.address()) as proxy:
        settings = replace(rabbitmq.settings(), hosts=(proxy.address,))
        listener = activation(settings, queue_name, handled, **BATCHES)
        listener.start()
        try:
            for cut in range(3):
                until(lambda: proxy.connections == 1 + ENDPOINTS)
                send(rabbitmq.settings(), queue_name, *sent[cut * 50 : cut * 50 + 50])
                until(lambda goal=cut * 50 + 50: listener.counts.committed >= goal)
                assert proxy.cut(1) == 1
                until(lambda losses=cut + 1: len(losses_in(caplog)) >= losses)
            send(rabbitmq.settings(), queue_name, *sent[150:])
            until(lambda: listener.counts.committed >= len(sent))
            until(lambda: proxy.connections == 1 + ENDPOINTS)
        finally:
            listener.stop()
        until(lambda: proxy.connections == 0)
    assert set(handled.seen) == set(sent)
    assert len(losses_in(caplog)) == 3
    assert bodies(rabbitmq.settings(), queue_name) == []


def test_where_a_user_may_not_have_so_many_the_batches_share_one(
    rabbitmq: RabbitMQ, queue_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Each message then takes an acknowledgement of its own, and the log says why."""
    user = f"few-{uuid.uuid4().hex[:8]}"
    rabbitmq_api(rabbitmq, f"users/{user}", {"password": user, "tags": ""})
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    rabbitmq_api(rabbitmq, f"permissions/%2F/{user}", everything)
    rabbitmq_api(rabbitmq, f"user-limits/{user}/max-connections", {"value": 3})
    sent = [str(number) for number in range(100)]
    send(rabbitmq.settings(), queue_name, *sent)
    handled = Handled()
    settings = replace(rabbitmq.settings(), username=user, password=user)
    with caplog.at_level(logging.WARNING):
        listener = activation(settings, queue_name, handled, **BATCHES)
        listener.start()
        try:
            until(lambda: listener.counts.committed == len(sent))
        finally:
            listener.stop()
    assert handled.seen == Counter(sent)
    assert bodies(rabbitmq.settings(), queue_name) == []
    [warning] = [each.getMessage() for each in caplog.records if "connection for each" in each.getMessage()]
    assert f"for each of {ENDPOINTS} concurrent batches of queue://{queue_name}" in warning


def rabbitmq_api(rabbitmq: RabbitMQ, path: str, body: dict[str, object]) -> None:
    httpx.put(
        f"http://{HOST}:{rabbitmq.ports['management']}/api/{quote(path, safe='/%')}",
        json=body,
        auth=(rabbitmq.username, rabbitmq.password),
        timeout=30,
    ).raise_for_status()
