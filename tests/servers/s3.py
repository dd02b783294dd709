"""An S3 server: moto's, which keeps everything in its memory.

Requests are served one after the other, so that a conditional put is one step there too. Two names in a key
make it misbehave: below `unconditional/` it ignores conditions, as some stores do; below `answer-lost/` it
does what the first put of a key asks, and says that it failed; below `slow/` it has a segment in hand for a
while before it stores it, whatever became of the client.

It is also a stand-in for Google Cloud Storage, whose XML interface differs in names of headers: no emulator
was found that has this interface and honours its condition.

Source: the reference of Google Cloud Storage's XML API, headers `x-goog-*`.
"""

from __future__ import annotations

import io
import json
import socket
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from tests.servers.ports import HOST
from tests.servers.server import Server

BUCKET = "jms"
_IN_HAND_SECONDS = 0.3
_ANYBODY = "AWS4-HMAC-SHA256 Credential=any/20200101/us-east-1/s3/aws4_request, Signature=any"
_ASKED_IN_HAND = "/-/in-hand"


class S3(Server):
    """A server that takes any credentials, with one bucket. What it holds ends with it."""

    name: ClassVar[str] = "s3"
    port_names: ClassVar[tuple[str, ...]] = ("s3",)

    @property
    def endpoint(self) -> str:
        """Where it listens, as a URL."""
        return f"http://{HOST}:{self.ports['s3']}"

    @property
    def in_flight(self) -> int:
        """How many segments it has in hand that aren't stored yet."""
        with urllib.request.urlopen(f"{self.endpoint}{_ASKED_IN_HAND}", timeout=30) as answer:  # noqa: S310 - http
            return int(answer.read())

    def options(self, endpoint: str | None = None) -> dict[str, str]:
        """Return what a client needs, as `ObjectPath.parse` takes it."""
        return {
            "aws_endpoint_url": endpoint or self.endpoint,
            "aws_access_key_id": "any",
            "aws_secret_access_key": "any",
            "aws_region": "us-east-1",
        }

    def google_options(self) -> dict[str, str]:
        """Return what a client of Google Cloud Storage needs, as `ObjectPath.parse` takes it."""
        account = {
            "type": "service_account",
            "gcs_base_url": self.endpoint,
            "disable_oauth": True,
            "client_email": "",
            "private_key": "",
            "private_key_id": "",
        }
        return {"google_service_account_key": json.dumps(account)}

    def _prepare(self) -> None:
        pass

    def _command(self) -> Sequence[str | Path]:
        return [sys.executable, "-m", "tests.servers.s3", str(self.ports["s3"])]

    def _working_folder(self) -> Path:
        return Path(__file__).parent.parent.parent

    def _answers(self) -> bool:
        try:
            with socket.create_connection((HOST, self.ports["s3"]), timeout=5):
                pass
            request = urllib.request.Request(f"{self.endpoint}/{BUCKET}", method="PUT")  # noqa: S310 - http
            with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - http
                return bool(answer.status == 200)
        except OSError:
            return False


def _one_at_a_time(application: Callable[..., Iterable[bytes]]) -> Callable[..., list[bytes]]:
    lock = threading.Lock()
    lost: set[str] = set()
    in_flight: list[str] = []

    def serve(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        start_response = _as_google_knows_it(environ, start_response)
        path = environ["PATH_INFO"]
        if path == _ASKED_IN_HAND:
            start_response("200 OK", [])
            return [str(len(in_flight)).encode()]
        if "/slow/" in path and "/segment-" in path and environ["REQUEST_METHOD"] == "PUT":
            environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
            in_flight.append(path)
            time.sleep(_IN_HAND_SECONDS)
            in_flight.remove(path)
        with lock:
            if "/unconditional/" in path:
                environ.pop("HTTP_IF_NONE_MATCH", None)
            if "/answer-lost/" in path and environ["REQUEST_METHOD"] == "PUT" and path not in lost:
                lost.add(path)
                list(application(environ, lambda *_: None))
                start_response("500 Internal Server Error", [])
                return []
            return list(application(environ, start_response))

    return serve


def _as_google_knows_it(environ: dict[str, Any], start_response: Callable[..., Any]) -> Callable[..., Any]:
    """Let headers of Google's be Amazon's in the request, and Amazon's be Google's too in the answer."""
    if not environ.get("HTTP_AUTHORIZATION", "").startswith("AWS"):
        environ["HTTP_AUTHORIZATION"] = _ANYBODY
    for name in [name for name in environ if name.startswith("HTTP_X_GOOG_META_")]:
        environ[name.replace("GOOG", "AMZ")] = environ.pop(name)
    if environ.pop("HTTP_X_GOOG_IF_GENERATION_MATCH", None) == "0":
        environ["HTTP_IF_NONE_MATCH"] = "*"

    def start(status: str, headers: list[tuple[str, str]], *more: Any) -> Any:
        meta = [(name, value) for name, value in headers if name.lower().startswith("x-amz-meta-")]
        return start_response(
            status, [*headers, *((f"x-goog-{name[6:]}", value) for name, value in meta)], *more
        )

    return start


def main() -> None:
    """Serve on the port that the command line names."""
    from moto.moto_server.werkzeug_app import (  # noqa: PLC0415 - slow to import
        DomainDispatcherApplication,
        create_backend_app,
    )
    from werkzeug.serving import run_simple  # noqa: PLC0415 - slow to import

    application = DomainDispatcherApplication(create_backend_app)
    run_simple(HOST, int(sys.argv[1]), _one_at_a_time(application), threaded=True)


if __name__ == "__main__":
    main()
