"""Stands in for the interface of Kubernetes, as far as a real `spark-submit` uses it: no pod ever runs."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.servers.ports import HOST


class StandInKubernetes:
    """What was asked for.

    Attributes:
        address: The interface's URL.
        made: The objects that were to be made, pods, services and the like.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.made: list[dict[str, Any]] = []

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        """Return the objects of one kind."""
        return [each for each in self.made if each["kind"] == kind]


@contextmanager
def stand_in_kubernetes() -> Iterator[StandInKubernetes]:
    """Answer as if every object was made that somebody asks for."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _make(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            stand_in.made.append(asked)
            asked["metadata"]["uid"] = f"uid-{len(stand_in.made)}"
            content = json.dumps(asked).encode()
            self.send_response(201)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_PATCH = _make  # noqa: N815 - names of the base class

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer((HOST, 0), Handler) as server:
        stand_in = StandInKubernetes(f"http://{HOST}:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield stand_in
        finally:
            server.shutdown()
            thread.join(10)
