"""RabbitMQ's management API answers nonsense, slowly, or about queues whose names are paths."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeAlias

import httpx
import pytest

from airflow_provider_jmsjca.errors import ConfigurationError, ConnectionLostError, PermanentBrokerError
from airflow_provider_jmsjca.transports.administration import MessageSelection
from airflow_provider_jmsjca.transports.base import ConnectionSettings
from airflow_provider_jmsjca.transports.capabilities import BrokerInfo
from airflow_provider_jmsjca.transports.stomp.administration.http_api import HttpApiAdministration
from airflow_provider_jmsjca.transports.stomp.dialects.rabbitmq import RabbitMqDialect

Answering: TypeAlias = Callable[..., HttpApiAdministration]


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Iterator[Answering]:
    """A function that returns the administration of an API which answers as its argument does."""
    made = []

    def make(answer: Callable[[httpx.Request], httpx.Response], **settings: Any) -> HttpApiAdministration:
        monkeypatch.setattr(httpx, "Client", partial(httpx.Client, transport=httpx.MockTransport(answer)))
        given = {"management_url": "http://broker:15672", "password": "secret", **settings}
        link: Any = SimpleNamespace(
            broker=BrokerInfo(product="rabbitmq", version="3.10.8", address="broker:61613"),
            settings=ConnectionSettings(scheme="stomp", hosts=(("broker", 61613),), **given),
            dialect=RabbitMqDialect(),
        )
        made.append(HttpApiAdministration(link))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"<html>",
        b"\xff",
        b"null",
        b"7",
        b'"text"',
        b"[[]]",
        b'{"items": 1, "page_count": 1}',
        b'{"items": [{}], "page_count": 1}',
        b'{"items": [{"name": "q", "messages": Infinity}], "page_count": 1}',
        b'{"items": [{"name": "q"}], "page_count": Infinity}',
        b"[" * 100_000,
    ],
)
def test_nonsense(answering: Answering, answer: bytes) -> None:
    administration = answering(lambda _: httpx.Response(200, content=answer))
    with pytest.raises(PermanentBrokerError, match="cannot be read"):
        administration.queues()
    if answer != b"null":
        with pytest.raises(PermanentBrokerError, match="cannot be read"):
            administration.browse("q")


def test_pages_without_queues_end_the_list(answering: Answering) -> None:
    administration = answering(lambda _: httpx.Response(200, json={"items": [], "page_count": 10**9}))
    assert administration.queues() == []


def test_an_answer_that_trickles_in_ends_at_the_reply_timeout(answering: Answering) -> None:
    """Each read is in time; the whole answer would never be."""

    def trickle() -> Iterator[bytes]:
        while True:
            yield b" "

    administration = answering(
        lambda _: httpx.Response(200, content=trickle()), reply_timeout=timedelta(seconds=0.1)
    )
    with pytest.raises(ConnectionLostError, match="reply timeout"):
        administration.queues()


@pytest.mark.parametrize("name", ["a/b", "../x", "a?b#c", "%2F", "größe \n"])
def test_a_queue_name_stays_one_segment_of_the_path(answering: Answering, name: str) -> None:
    asked = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.raw_path)
        return httpx.Response(200, json={"name": name})

    answering(answer).delete(name, MessageSelection())
    assert all(re.fullmatch(rb"/api/queues/%2F/[^/?]+(/contents)?", each) for each in asked), asked
    assert len(asked) == 2


@pytest.mark.parametrize("name", [".", "..", "\udcff"])
def test_a_name_that_no_path_carries(answering: Answering, name: str) -> None:
    """`DELETE queues/%2F/./contents` would delete a queue named `contents`, also when the dot is escaped."""
    administration = answering(lambda _: httpx.Response(200, json={"name": name}))
    for ask in (administration.statistics, administration.browse):
        with pytest.raises(ConfigurationError, match="name"):
            ask(name)
    with pytest.raises(ConfigurationError, match="name"):
        administration.delete(name, MessageSelection())
    with pytest.raises(ConfigurationError, match="name"):
        answering(lambda _: httpx.Response(200), virtual_host=name)


def test_a_url_that_is_none(answering: Answering) -> None:
    administration = answering(lambda _: httpx.Response(200), management_url="http://u:secret@broker:port")
    with pytest.raises(ConfigurationError, match="management_url") as caught:
        administration.queues()
    assert "secret" not in str(caught.value)


def test_hostile_messages(answering: Answering) -> None:
    """Headers that forge others and a body that is not text leave the message readable."""
    headers = {"destination": "/queue/other", "a\nb:c": "\r\n\0", "": "x", "n": {"deep": [1]}}
    row = {
        "payload": base64.b64encode(b"\xff\x00").decode(),
        "payload_encoding": "base64",
        "properties": {"headers": headers, "priority": "high", "timestamp": 10**30},
    }
    [found] = answering(lambda _: httpx.Response(200, content=json.dumps([row]))).browse("q")
    assert found.body == b"\xff\x00"
    assert str(found.destination) == "queue://q"


ALARM = {"alarms": [{"resource": "memory", "node": "rabbit@a"}]}
NODES = [
    {"name": "rabbit@b", "mem_used": 1, "mem_limit": 2},
    {"name": "rabbit@a", "mem_used": 641728512, "mem_limit": 419430400},
]


@pytest.mark.parametrize(
    ("nodes", "shown"),
    [
        (httpx.Response(200, json=NODES), "memory of rabbit@a (612 MiB used, limit 400 MiB)"),
        (httpx.Response(401), "memory of rabbit@a"),
        (httpx.Response(200, json=[]), "memory of rabbit@a"),
        (httpx.Response(200, json=[{"name": "rabbit@a"}]), "memory of rabbit@a"),
    ],
)
def test_an_alarm_has_figures_where_the_user_may_see_them(
    answering: Answering, nodes: httpx.Response, shown: str
) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return nodes if request.url.path == "/api/nodes" else httpx.Response(503, json=ALARM)

    [found] = answering(answer).resources()
    assert found.blocking
    assert str(found) == shown
    assert "rabbitmqctl set_vm_memory_high_watermark" in found.remedy


@pytest.mark.parametrize("nodes", [b"[7]", b'[{"name": "rabbit@a", "mem_used": []}]'])
def test_figures_that_are_nonsense(answering: Answering, nodes: bytes) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        is_nodes = request.url.path == "/api/nodes"
        return httpx.Response(200, content=nodes) if is_nodes else httpx.Response(503, json=ALARM)

    with pytest.raises(PermanentBrokerError, match="cannot be read"):
        answering(answer).resources()


@pytest.mark.parametrize("status", [200, 401])
def test_the_time_is_that_of_the_answer(answering: Answering, status: int) -> None:
    date = {"date": "Mon, 04 May 2026 12:00:01 GMT"}
    found = answering(lambda _: httpx.Response(status, headers=date)).time()
    assert found.isoformat() == "2026-05-04T12:00:01+00:00"


@pytest.mark.parametrize("date", [None, "", "yesterday", "Mon, 99 May 2026 12:00:01 GMT"])
def test_a_time_that_is_nonsense(answering: Answering, date: str | None) -> None:
    headers = {} if date is None else {"date": date}
    with pytest.raises(PermanentBrokerError, match="cannot be read"):
        answering(lambda _: httpx.Response(200, headers=headers)).time()
