"""The relay through which listings of Google Cloud Storage and Azure are read."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest

from tests.internals.spool import ListingRelay, SkippedNames

PAGE = b"<r><Contents><Key>a</Key></Contents><Contents><Key>a//b</Key></Contents></r>"


class Store(ThreadingHTTPServer):
    """Answers as the test says, and remembers the requests."""

    status, location = 200, ""
    asked: list[tuple[str, str | None]]


class _Handler(BaseHTTPRequestHandler):
    server: Store

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers["Authorization"]))
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(PAGE)))
        if self.server.location:
            self.send_header("Location", self.server.location)
        self.end_headers()
        self.wfile.write(PAGE)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def store() -> Iterator[Store]:
    with Store(("127.0.0.1", 0), _Handler) as server:
        server.asked = []
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(relay: ListingRelay, path: str, method: str = "GET") -> tuple[int, bytes, str | None]:
    """Return status, body and the header `Location`."""
    address = urlsplit(relay.url)
    connection = http.client.HTTPConnection(address.netloc, timeout=30)
    with contextlib.closing(connection):
        path = path if path.startswith("http") else f"{address.path}{path}"
        connection.request(method, path, headers={"Authorization": "Bearer token"})
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.headers["Location"]


def test_a_page_is_asked_for_with_the_credentials_of_the_client(store: Store) -> None:
    with ListingRelay(f"http://127.0.0.1:{store.server_port}/account/", SkippedNames("gs://b")) as relay:
        status, page, _ = ask(relay, "/bucket?list-type=2&prefix=a%2F")
    assert (status, page) == (200, b"<r><Contents><Key>a</Key></Contents></r>")
    assert store.asked == [("/account/bucket?list-type=2&prefix=a%2F", "Bearer token")]


def test_credentials_follow_no_redirect(store: Store) -> None:
    store.status, store.location = 302, f"http://127.0.0.1:{store.server_port}/elsewhere"
    with ListingRelay(f"http://127.0.0.1:{store.server_port}", SkippedNames("gs://b")) as relay:
        assert ask(relay, "/bucket") == (302, PAGE, None)
    assert store.asked == [("/bucket", "Bearer token")]


def test_other_requests_are_refused(store: Store) -> None:
    with ListingRelay(f"http://127.0.0.1:{store.server_port}", SkippedNames("gs://b")) as relay:
        asked = (("PUT", "/bucket/a"), ("DELETE", "/bucket/a"), ("GET", "http://127.0.0.1:9/x"))
        statuses = [ask(relay, path, method)[0] for method, path in asked]
    assert statuses == [501, 501, 400]
    assert store.asked == []


def test_a_store_that_is_away_is_asked_again_by_the_client(store: Store) -> None:
    store.shutdown()
    store.server_close()
    with ListingRelay(f"http://127.0.0.1:{store.server_port}", SkippedNames("gs://b")) as relay:
        assert ask(relay, "/bucket")[0] == 503
