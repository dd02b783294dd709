"""A small HTTP server for the health and the metrics of a process.

| event | effect |
|---|---|
| a request is larger than 8 KiB | it is refused with status 431 |
| a client is slow | its connection is closed after 5 seconds |
| more than 8 clients are connected | the connections of further clients are closed at once |
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import socketserver
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from types import TracebackType
from typing import Any, Final, Protocol, Self

from airflow_provider_jmsjca.core.delivery.outage import ActivationState
from airflow_provider_jmsjca.core.metrics import CONTENT_TYPE
from airflow_provider_jmsjca.engine.delivering.statistics import Statistics
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.logs import safe_logger

_log = safe_logger("airflow_provider_jmsjca.listener")

_MOST_BYTES: Final = 8 * 1024
_MOST_CLIENTS: Final = 8
_WITHIN_SECONDS: Final = 5.0
_HIGHEST_PORT: Final = 65_535
_REQUEST_LINE = re.compile(rb"(?P<method>[A-Z]{1,16}) (?P<path>/[!-~]*) HTTP/1\.[01]")
_JSON: Final = "application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The health of a listener.

    Attributes:
        healthy: Whether the listener consumes, or is suspended by hand.
        state: State of the listener's connection.
        suspended: Whether delivery is suspended by hand.
        refused: Reasons why some or all destinations are not consumed; see `Statistics.refused`.
        stop_reason: Why the listener stopped; empty until it has stopped.
    """

    healthy: bool
    state: str
    suspended: bool
    refused: tuple[str, ...]
    stop_reason: str


class HealthyListener(Protocol):
    """The part of a listener from which its health is read."""

    @property
    def ready(self) -> bool:
        """Whether the listener consumes."""

    @property
    def running(self) -> bool:
        """Whether the listener was started and hasn't stopped."""

    @property
    def suspended(self) -> bool:
        """Whether delivery is suspended by hand."""

    @property
    def state(self) -> ActivationState:
        """State of the connection."""

    @property
    def stop_reason(self) -> str:
        """Why the listener stopped."""

    def statistics(self) -> Statistics:
        """Return a snapshot of the listener's statistics."""


def health_of(listener: HealthyListener) -> Health:
    """Return the health of a listener; call it from any thread."""
    suspended = listener.suspended
    return Health(
        healthy=listener.ready or (listener.running and suspended),
        state=str(listener.state),
        suspended=suspended,
        refused=listener.statistics().refused,
        stop_reason=listener.stop_reason,
    )


class HealthServer:
    """Answers `GET /healthz` and `GET /metrics` over HTTP, in threads of its own.

    `/healthz` answers 200 while the listener consumes or is suspended by hand, and 503 otherwise. Its body is
    JSON: `healthy`, `state`, `suspended`, `refused`, `stop_reason`. `/metrics` answers in Prometheus' text
    format.

    There is no login and no TLS: anyone who reaches the port reads the names of destinations and the
    errors of the broker.

    Args:
        health: Returns the health; called for each request to `/healthz`, in the thread of that request.
        metrics: Returns the text of `/metrics`; called for each request to it, in the thread of that request.
        port: TCP port, 0 to 65535; 0 takes a free one.
        host: Address to listen on.

    Attributes:
        host: The address on which it listens.
        port: The port in use.

    Raises:
        ConfigurationError: The address can't be used.
    """

    def __init__(
        self, health: Callable[[], Health], metrics: Callable[[], str], *, port: int, host: str
    ) -> None:
        if type(port) is not int or not 0 <= port <= _HIGHEST_PORT:
            raise ConfigurationError(f"port is {port!r}; expected a whole number from 0 to {_HIGHEST_PORT}")
        try:
            self._server = _Server(host, port, {"/healthz": _healthz(health), "/metrics": _metrics(metrics)})
        except OSError as error:
            raise ConfigurationError(
                f"the health endpoint can't listen on {host!r}, port {port}: {error.strerror or error}; "
                "choose another address, or port 0 for a free one"
            ) from error
        self.host = host
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="jms-health", daemon=True
        )
        self._thread.start()
        self._lock = threading.Lock()
        self._closed = False

    @property
    def url(self) -> str:
        """Root of the endpoint, such as `http://127.0.0.1:8080`."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    def close(self) -> None:
        """Stop listening; requests under way are still answered. Closing twice is harmless."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> Self:
        """Return the server."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the server."""
        self.close()


@dataclass(frozen=True, slots=True)
class _Answer:
    status: HTTPStatus
    body: bytes = b""
    content_type: str = "text/plain; charset=utf-8"


def _healthz(health: Callable[[], Health]) -> Callable[[], _Answer]:
    def answer() -> _Answer:
        found = health()
        body = {
            "healthy": found.healthy,
            "state": found.state,
            "suspended": found.suspended,
            "refused": list(found.refused),
            "stop_reason": found.stop_reason,
        }
        status = HTTPStatus.OK if found.healthy else HTTPStatus.SERVICE_UNAVAILABLE
        return _Answer(status, json.dumps(body).encode("ascii") + b"\n", _JSON)

    return answer


def _metrics(metrics: Callable[[], str]) -> Callable[[], _Answer]:
    return lambda: _Answer(HTTPStatus.OK, metrics().encode("utf-8"), CONTENT_TYPE)


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def __init__(self, host: str, port: int, pages: dict[str, Callable[[], _Answer]]) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.pages = pages
        self._free = threading.BoundedSemaphore(_MOST_CLIENTS)
        super().__init__((host, port), _Request)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        del request, client_address
        _log.warning("A request for health or metrics failed", exc_info=True)


class _Request(socketserver.BaseRequestHandler):
    """Handles one request; the connection is closed after the answer."""

    server: _Server

    def handle(self) -> None:
        deadline = time.monotonic() + _WITHIN_SECONDS
        with contextlib.suppress(OSError):  # a client that is slow or gone
            head = self._read_head(deadline)
            if head is None:
                return
            method, answer = self._answer(head)
            self._send(answer, with_body=method != b"HEAD", deadline=deadline)

    def _read_head(self, deadline: float) -> bytes | None:
        """Return the bytes up to the end of the headers, 8 KiB at most; `None` if the client closes first."""
        head = b""
        while b"\r\n\r\n" not in head and len(head) < _MOST_BYTES:
            self.request.settimeout(max(0.001, deadline - time.monotonic()))
            found = self.request.recv(_MOST_BYTES - len(head))
            if not found:
                return None
            head += found
        return head

    def _answer(self, head: bytes) -> tuple[bytes, _Answer]:
        if b"\r\n\r\n" not in head:
            return b"", _Answer(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        line = _REQUEST_LINE.fullmatch(head.partition(b"\r\n")[0])
        if line is None:
            return b"", _Answer(HTTPStatus.BAD_REQUEST)
        method = line["method"]
        page = self.server.pages.get(line["path"].partition(b"?")[0].decode("ascii"))
        if page is None:
            return method, _Answer(HTTPStatus.NOT_FOUND, b"expected /healthz or /metrics\n")
        if method not in {b"GET", b"HEAD"}:
            return method, _Answer(HTTPStatus.METHOD_NOT_ALLOWED)
        try:
            return method, page()
        except Exception:  # noqa: BLE001 - the outermost edge of this thread; the client gets an answer
            _log.warning("A request for health or metrics failed", exc_info=True)
            return method, _Answer(HTTPStatus.INTERNAL_SERVER_ERROR)

    def _send(self, answer: _Answer, *, with_body: bool, deadline: float) -> None:
        headers = [
            f"HTTP/1.1 {answer.status.value} {answer.status.phrase}",
            f"Content-Type: {answer.content_type}",
            f"Content-Length: {len(answer.body)}",
            "Cache-Control: no-store",
            "X-Content-Type-Options: nosniff",
            "Connection: close",
        ]
        if answer.status is HTTPStatus.METHOD_NOT_ALLOWED:
            headers.append("Allow: GET, HEAD")
        head = "\r\n".join(headers).encode("ascii") + b"\r\n\r\n"
        self.request.settimeout(max(0.001, deadline - time.monotonic()))
        self.request.sendall(head + (answer.body if with_body else b""))
