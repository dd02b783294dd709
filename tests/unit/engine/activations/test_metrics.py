"""The metrics of a listener, and its health over HTTP."""

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_provider_jmsjca.core.activation import ActivationSpec
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.engine.activations.activation import Activation
from airflow_provider_jmsjca.engine.activations.health import Health, HealthServer
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import Outgoing
from tests.unit.core.prometheus import parsed
from tests.unit.engine.listening import Site, until


def values_of(listener: Activation) -> dict[str, float]:
    return {name: value for name, _, value in parsed(listener.metrics())}


@pytest.fixture(params=["serial", "cc", "batch"])
def spec(request: pytest.FixtureRequest) -> ActivationSpec:
    fields: dict[str, Any] = {"destination": "queue://orders", "redelivery_handling": "2:move(queue:$.dlq)"}
    if request.param == "batch":
        fields |= {"batch_size": 2, "concurrency_mode": "cc"}
    else:
        fields["concurrency_mode"] = request.param
    return ActivationSpec(**fields)


def send(site: Site, spec: ActivationSpec, *bodies: str) -> None:
    connection = connect(site.settings)
    connection.send(
        Outgoing(destination=spec.destinations[0], message=JmsMessage.text(each)) for each in bodies
    )
    connection.close()


def test_the_metrics_of_a_listener_are_those_of_its_messages(site: Site, spec: ActivationSpec) -> None:
    def handle(delivery: Any) -> None:
        time.sleep(0.01)
        if getattr(delivery, "body", "") == "bad":
            raise ValueError

    listener = Activation(spec, handle, connection=site.settings)
    assert values_of(listener)["jms_connections_up"] == 0
    assert values_of(listener)["jms_connections_down"] == 0
    with listener:
        send(site, spec, "good", "bad")
        until(lambda: listener.counts.settled == 2)
        until(lambda: values_of(listener)["jms_in_flight"] == 0)
        found = values_of(listener)
        assert found["jms_commits_total"] == 1
        assert found["jms_deliveries_total"] == listener.counts.delivered >= 3
        assert found["jms_moves_total"] == found["jms_dead_letters_total"] == 1
        assert found["jms_handler_seconds_total"] >= 0.03
        assert (found["jms_connections_up"], found["jms_connections_down"]) == (1, 0)
        listener.suspend()
        until(lambda: values_of(listener)["jms_suspended"] == 1)
        listener.resume()
    labels = {tuple(labels) for _, labels, _ in parsed(listener.metrics())}
    assert labels == {("activation", "destination", "kind")}
    assert 'destination="queue://orders",kind="listener"' in listener.metrics()


def test_a_lost_connection_is_an_outage(site: Site) -> None:
    listener = Activation({"destination": "queue://orders"}, print, connection=site.settings)
    with listener:
        assert values_of(listener)["jms_outages_total"] == 0
        site.broker.kill()
        site.broker.restart()
        until(lambda: values_of(listener)["jms_outages_total"] == 1)
        until(lambda: listener.ready)
        assert values_of(listener)["jms_connections_up"] == 1


def get(url: str) -> tuple[int, str, str]:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310  # http only
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read().decode()


def test_health_and_metrics_are_served_until_the_listener_ends(site: Site) -> None:
    listener = Activation({"destination": "queue://orders"}, print, connection=site.settings)
    health = listener.serve_health(port=0)
    assert health.url == f"http://127.0.0.1:{health.port}"
    status, kind, body = get(f"{health.url}/healthz")
    assert (status, kind, json.loads(body)["state"]) == (503, "application/json", "Down")
    with listener:
        status, kind, body = get(f"{health.url}/healthz")
        assert (status, json.loads(body)) == (
            200,
            {"healthy": True, "state": "Up", "suspended": False, "refused": [], "stop_reason": ""},
        )
        status, kind, body = get(f"{health.url}/metrics?x=1")
        assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
        assert {name for name, _, _ in parsed(body)} >= {"jms_commits_total", "jms_connections_up"}
        assert get(f"{health.url}/other")[0] == 404
        listener.suspend()
        until(lambda: json.loads(get(f"{health.url}/healthz")[2])["suspended"])
        assert get(f"{health.url}/healthz")[0] == 200
        listener.restart()
        until(lambda: get(f"{health.url}/healthz")[0] == 200)
    with pytest.raises(urllib.error.URLError):
        get(f"{health.url}/healthz")


def test_the_end_of_a_run_ends_it_too(site: Site) -> None:
    listener = Activation({"destination": "queue://orders"}, print, connection=site.settings)
    health = listener.serve_health(port=0)
    listener.run(idle_for=0.1)
    with pytest.raises(urllib.error.URLError):
        get(f"{health.url}/healthz")


@pytest.mark.parametrize("port", [-1, 65_536, "8080", True, None])
def test_a_port_that_is_none_is_refused(site: Site, port: Any) -> None:
    listener = Activation({"destination": "queue://orders"}, print, connection=site.settings)
    with pytest.raises(ConfigurationError, match=r"port is .*; expected a whole number from 0 to 65535"):
        listener.serve_health(port=port)


def test_a_port_in_use_is_refused_with_a_way_out(site: Site) -> None:
    listener = Activation({"destination": "queue://orders"}, print, connection=site.settings)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=rf"port {port}: .*; choose another"):
            listener.serve_health(port=port)


# -- hostile clients --------------------------------------------------------------------------------------

HEALTHY = Health(healthy=True, state="Up", suspended=False, refused=(), stop_reason="")


@pytest.fixture
def endpoint() -> Iterator[HealthServer]:
    with HealthServer(lambda: HEALTHY, lambda: "jms 1\n", port=0, host="127.0.0.1") as server:
        yield server


def exchange(endpoint: HealthServer, request: bytes) -> bytes:
    with socket.create_connection((endpoint.host, endpoint.port), timeout=10) as client:
        client.sendall(request)
        answer = b""
        try:
            while found := client.recv(4096):
                answer += found
        except ConnectionResetError:  # it was closed before all was read
            pass
    return answer


@pytest.mark.parametrize(
    ("request_head", "status"),
    [
        (b"GET /healthz HTTP/1.1\r\n\r\n", b"200"),
        (b"HEAD /metrics HTTP/1.0\r\n\r\n", b"200"),
        (b"POST /healthz HTTP/1.1\r\nContent-Length: 0\r\n\r\n", b"405"),
        (b"GET /../etc/passwd HTTP/1.1\r\n\r\n", b"404"),
        (b"GET healthz HTTP/1.1\r\n\r\n", b"400"),
        (b"GET /a b HTTP/1.1\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", b"400"),
        (b"GET /healthz HTTP/1.1\nX: 1\r\n\r\n", b"400"),
        (b"GET /healthz HTTP/1.1\r\nX: ".ljust(8 * 1024, b"a"), b"431"),
    ],
)
def test_requests_are_read_strictly(endpoint: HealthServer, request_head: bytes, status: bytes) -> None:
    answer = exchange(endpoint, request_head)
    assert answer.startswith(b"HTTP/1.1 " + status)
    head, _, body = answer.partition(b"\r\n\r\n")
    length = int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0])
    assert len(body) == (0 if request_head.startswith(b"HEAD") else length)


def test_slow_clients_are_dropped_and_hold_up_nobody(
    endpoint: HealthServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_provider_jmsjca.engine.activations.health._WITHIN_SECONDS", 0.3)
    slow = [socket.create_connection((endpoint.host, endpoint.port), timeout=10) for _ in range(4)]
    for client in slow:
        client.sendall(b"GET /healthz")
    assert get(f"{endpoint.url}/healthz")[0] == 200
    for client in slow:
        assert client.recv(10) == b""
        client.close()


def test_more_clients_than_allowed_are_closed_at_once(endpoint: HealthServer) -> None:
    held = [socket.create_connection((endpoint.host, endpoint.port), timeout=10) for _ in range(8)]
    until(lambda: threading.active_count() >= 8)
    until(lambda: exchange(endpoint, b"GET /healthz HTTP/1.1\r\n\r\n") == b"")
    for client in held:
        client.close()
    until(lambda: exchange(endpoint, b"GET /healthz HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 200"))


def test_a_page_that_fails_is_an_error_of_that_request(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> str:
        raise RuntimeError("broken")

    with HealthServer(lambda: HEALTHY, fail, port=0, host="127.0.0.1") as server:
        assert get(f"{server.url}/metrics")[0] == 500
        assert get(f"{server.url}/healthz")[0] == 200
    assert "A request for health or metrics failed" in caplog.text
