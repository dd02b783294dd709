"""A message broker that speaks STOMP: ours, or one that runs already."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, NoReturn
from urllib.parse import quote, unquote, urlsplit

from airflow_provider_jmsjca.transports.base import ConnectionSettings, TlsSettings
from tests.servers.certificates import Certificates, make_certificates
from tests.servers.errors import ServerError
from tests.servers.ports import HOST
from tests.servers.server import Server

USER = "jmsjca"


class Broker(Server):
    """A broker of our own on loopback ports `stomp` and `stomps`, with one user and no anonymous access.

    Attributes:
        controllable: Whether it can be killed, suspended and started again.
    """

    port_names: ClassVar[tuple[str, ...]] = ("stomp", "stomps")
    controllable: ClassVar[bool] = True
    username = USER

    @property
    def password_file(self) -> Path:
        """Where the password is kept, readable for us alone."""
        self._kept_secret("password")
        return self.folder / "password"

    @property
    def ca_file(self) -> str | None:
        """PEM certificate that has to be trusted to reach the TLS port."""
        return str(self._certificates().authority)

    @property
    def has_tls(self) -> bool:
        """Whether it has a TLS address."""
        return True

    def address(self, *, tls: bool = False) -> tuple[str, int]:
        """Return host and port."""
        return HOST, self.ports["stomps" if tls else "stomp"]

    def url(self, *, tls: bool = False) -> str:
        """Return the URL with user and password."""
        host, port = self.address(tls=tls)
        scheme = "stomp+ssl" if tls else "stomp"
        return f"{scheme}://{quote(self.username, safe='')}:{quote(self.password, safe='')}@{host}:{port}"

    def put_on_disk(self, *queues: str) -> None:
        """Make queues that a kill leaves in place. Most brokers do that by themselves."""

    def delete_queue(self, queue: str) -> None:
        """Delete a queue with its messages, though it has consumers.

        Raises:
            ServerError: There is no way to, on this broker.
        """
        raise ServerError(f"{self.name} has no way to delete {queue}")

    def settings(self, *, tls: bool = False, **overrides: Any) -> ConnectionSettings:
        """Return what a transport needs to reach it.

        Args:
            tls: Whether to use the TLS port.
            overrides: Fields of the settings that shall be different.
        """
        fields: dict[str, Any] = {
            "scheme": "stomp+ssl" if tls else "stomp",
            "hosts": (self.address(tls=tls),),
            "username": self.username,
            "password": self.password,
            "tls": TlsSettings(ca_file=self.ca_file) if tls else None,
        }
        return ConnectionSettings(**{**fields, **overrides})

    def fetch(self) -> None:
        """Download or install what it needs and isn't there yet.

        Raises:
            ServerError: It can't be had.
        """

    def _certificates(self) -> Certificates:
        return make_certificates(self.folder / "tls", store_password=self._kept_secret("tls-password"))

    def _answers(self) -> bool:
        return logs_in(self.address(), self.username, self.password)


class RunningBroker(Broker):
    """A broker somebody else runs, named by environment variables: it is used, never started or stopped."""

    name: ClassVar[str] = "running"
    controllable: ClassVar[bool] = False

    def __init__(self, kind: str, environment: Mapping[str, str] = os.environ) -> None:
        variable = variable_of(kind)
        self._plain = _parse(variable, environment[variable], "stomp")
        tls_variable = variable.removesuffix("_URL") + "_TLS_URL"
        tls_url = environment.get(tls_variable)
        self._tls = _parse(tls_variable, tls_url, "stomp+ssl") if tls_url else None
        self._tls_variable = tls_variable
        self._ca_file = environment.get(variable.removesuffix("_URL") + "_CA")
        self.kind = kind
        self.username, self._password = self._plain[2], self._plain[3]
        self.ports = {"stomp": self._plain[1]} | ({"stomps": self._tls[1]} if self._tls else {})

    @property
    def password(self) -> str:
        """As in the URL."""
        return self._password

    @property
    def ca_file(self) -> str | None:
        """PEM file named by the environment; `None` means the system's authorities."""
        return self._ca_file

    @property
    def running(self) -> bool:
        """It is said to."""
        return True

    @property
    def has_tls(self) -> bool:
        """Whether the environment names a TLS address."""
        return self._tls is not None

    def address(self, *, tls: bool = False) -> tuple[str, int]:
        """Return host and port."""
        if not tls:
            return self._plain[:2]
        if self._tls is None:
            raise ServerError(f"{self.kind} has no TLS address: set {self._tls_variable}")
        return self._tls[:2]

    def launch(self) -> NoReturn:
        """Refuse: it isn't ours."""
        self._refuse()

    def start(self, deadline: float = 0) -> NoReturn:  # noqa: ARG002 - as in Server
        """Refuse: it isn't ours."""
        self._refuse()

    def stop(self, deadline: float = 0) -> None:
        """Leave it running."""

    def kill(self) -> NoReturn:
        """Refuse: it isn't ours."""
        self._refuse()

    def suspend(self) -> NoReturn:
        """Refuse: it isn't ours."""
        self._refuse()

    def resume(self) -> NoReturn:
        """Refuse: it isn't ours."""
        self._refuse()

    def wait_ready(self, deadline: float = 5) -> None:
        """Check that it takes the user and password."""
        if not logs_in(self.address(), self.username, self.password, timeout=deadline):
            host, port = self.address()
            raise ServerError(f"{self.kind} at {host}:{port} ({variable_of(self.kind)}) takes no login")

    def _refuse(self) -> NoReturn:
        raise ServerError(f"{self.kind} is not ours to start or end: {variable_of(self.kind)} names it")

    def _prepare(self) -> NoReturn:
        self._refuse()

    def _command(self) -> NoReturn:
        self._refuse()


def variable_of(kind: str) -> str:
    """Return the environment variable that names a running broker of a kind."""
    return f"JMSJCA_TEST_{kind.upper()}_URL"


def logs_in(
    address: tuple[str, int], username: str, password: str, *, virtual_host: str = "/", timeout: float = 5.0
) -> bool:
    """Return whether the broker answers a STOMP CONNECT with CONNECTED in time."""
    frame = (
        f"CONNECT\naccept-version:1.1,1.2\nhost:{virtual_host}\nlogin:{username}\npasscode:{password}\n\n\0"
    )
    try:
        with socket.create_connection(address, timeout=timeout) as connection:
            connection.settimeout(timeout)
            connection.sendall(frame.encode())
            answer = b""
            while b"\n" not in answer.lstrip():
                data = connection.recv(4096)
                if not data:
                    return False
                answer += data
            return answer.lstrip().startswith(b"CONNECTED")
    except OSError:
        return False


def _parse(variable: str, url: str, scheme: str) -> tuple[str, int, str, str]:
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = None
    faults = [] if parts.scheme == scheme else [f"the scheme is {parts.scheme!r}"]
    found = {"user": parts.username, "password": parts.password, "host": parts.hostname, "port": port}
    faults += [f"no {what}" for what, value in found.items() if not value]
    if port is None or faults:
        raise ServerError(f"{variable}: expected {scheme}://user:password@host:port: {', '.join(faults)}")
    return parts.hostname or "", port, unquote(parts.username or ""), unquote(parts.password or "")
