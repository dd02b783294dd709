"""The brokers the suite runs over, behind one face."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_jmsjca import Connection, ConnectionSettings, Destination, connect, memory_broker
from tests.servers.broker import Broker
from tests.servers.catalogue import BROKERS
from tests.servers.proxy import TcpProxy
from tests.unit.engine.brokers import SessionConnection

CONNECT_TIMEOUT = timedelta(seconds=3)
HEART_BEAT = timedelta(seconds=1)


over_network = pytest.mark.parametrize("lab", sorted(BROKERS), indirect=True)
"""For tests of what only a network can do."""


class Line(ABC):
    """A way to the broker that a test can damage."""

    settings: ConnectionSettings

    @abstractmethod
    def cut(self) -> None:
        """End every connection that uses it; later ones are welcome."""

    @abstractmethod
    def freeze(self) -> None:
        """Keep every connection open and let nothing through."""


class Lab(ABC):
    """One broker.

    Attributes:
        name: As in the report.
    """

    name: str

    @abstractmethod
    def settings(self, **overrides: Any) -> ConnectionSettings:
        """Return what `connect` needs."""

    def connect(self, settings: ConnectionSettings) -> Connection:
        """Open a connection."""
        return connect(settings)

    @property
    def management_url(self) -> str | None:
        """Root of the broker's HTTP API, where administration needs one."""
        return None

    def put_on_disk(self, queue: Destination) -> None:
        """Make a queue that a kill leaves in place."""
        del queue  # nothing in this process is ever on a disk

    @abstractmethod
    def kill(self) -> None:
        """Kill -9."""

    @abstractmethod
    def start(self) -> None:
        """Start again; returns when it is up."""

    @abstractmethod
    def line(self) -> AbstractContextManager[Line]:
        """Return a line of its own to the broker."""

    def forbidden(self) -> Destination | None:
        """Return a queue the user may not send to; `None` where everything is allowed."""
        return None


class MemoryLab(Lab):
    """The in-process broker."""

    name = "memory"

    def __init__(self) -> None:
        self.broker = memory_broker(f"contract-{uuid.uuid4().hex[:8]}")
        self.broker.require_login("user", "right")
        self._forbidden = Destination.queue("forbidden")
        self.broker.forbid(self._forbidden)

    def settings(self, **overrides: Any) -> ConnectionSettings:
        settings = ConnectionSettings(
            scheme="vm",
            hosts=((self.broker.name, None),),
            username="user",
            password="right",
            connect_timeout=CONNECT_TIMEOUT,
        )
        return replace(settings, **overrides)

    def kill(self) -> None:
        self.broker.kill()

    def start(self) -> None:
        self.broker.restart()

    @contextmanager
    def line(self) -> Iterator[MemoryLine]:
        yield MemoryLine(self)

    def forbidden(self) -> Destination | None:
        return self._forbidden


class SessionLab(MemoryLab):
    """The in-process broker, with messages that belong to sessions, as over a Java client."""

    name = "sessions"

    def connect(self, settings: ConnectionSettings) -> Connection:
        return SessionConnection(self.broker, settings)


class MemoryLine(Line):
    """All lines of the in-process broker are one."""

    def __init__(self, lab: MemoryLab) -> None:
        self.settings = lab.settings()
        self._broker = lab.broker

    def cut(self) -> None:
        self._broker.restart()

    def freeze(self) -> None:
        raise NotImplementedError


class StompLab(Lab):
    """A real broker over STOMP."""

    def __init__(self, name: str, broker: Broker) -> None:
        self.name = name
        self.broker = broker

    def settings(self, *, tls: bool = False, **overrides: Any) -> ConnectionSettings:
        overrides = {"connect_timeout": CONNECT_TIMEOUT, **overrides}
        return self.broker.settings(tls=tls, **overrides)

    @property
    def management_url(self) -> str | None:
        port = self.broker.ports.get("management")
        return None if port is None else f"http://{self.broker.address()[0]}:{port}"

    def put_on_disk(self, queue: Destination) -> None:
        self.broker.put_on_disk(queue.name)

    def kill(self) -> None:
        self.broker.kill()

    def start(self) -> None:
        self.broker.start()

    def forbidden(self) -> Destination | None:
        # RabbitMQ keeps names that begin so for itself, our Artemis lets nobody send there; Classic adds up
        # all permissions that match, so that a user who may use every queue can't be kept from one.
        names = {"rabbitmq": "amq.forbidden", "artemis": "forbidden.queue"}
        return Destination.queue(names[self.name]) if self.name in names else None

    @contextmanager
    def line(self) -> Iterator[StompLine]:
        with TcpProxy(self.broker.address()) as proxy:
            yield StompLine(self, proxy)


class StompLine(Line):
    """A TCP proxy in front of the broker."""

    def __init__(self, lab: StompLab, proxy: TcpProxy) -> None:
        self.settings = lab.settings(hosts=(proxy.address,), heart_beat=HEART_BEAT)
        self._proxy = proxy

    def cut(self) -> None:
        self._proxy.cut()

    def freeze(self) -> None:
        self._proxy.freeze()
