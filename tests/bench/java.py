"""The same work done by a broker's own JMS client in Java: `JavaClient.java`, run from its source."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from tests.bench.rates import (
    BODY,
    COMMITS_SEVERAL,
    INDIVIDUAL,
    INDIVIDUAL_SEVERAL,
    JAVA,
    PUBLISH,
    PUBLISH_BYTES,
    PUBLISH_TRANSACTION,
    SESSIONS,
    TRANSACTED,
    TRANSACTION,
    Measured,
    Meter,
)
from tests.bench.rival import Leg, new_queue
from tests.servers.activemq import ActiveMQClassic
from tests.servers.artifacts import fetch
from tests.servers.broker import Broker
from tests.servers.errors import ServerUnavailableError
from tests.servers.java import find_java
from tests.servers.ports import HOST

SOURCE = Path(__file__).with_name("JavaClient.java")
RABBITMQ_LOCK = Path(__file__).with_name("rabbitmq-jms-3.7.0.lock")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Client:
    """What tells the brokers' clients apart.

    Attributes:
        name: With its version.
        jars: What it is made of.
        factory: Class of its connection factory.
        properties: Of the factory.
        receive: `receive` or `listen`, whichever is the quicker of the two here.
        shared: What is added to a queue's name where several sessions share it.
        manner: How it works and what it waits for.
    """

    name: str
    jars: Sequence[Path]
    factory: str
    properties: Mapping[str, str]
    receive: str
    manner: str
    shared: str = ""


def _client(broker: Broker) -> _Client:
    if isinstance(broker, ActiveMQClassic):
        return _Client(
            name="ActiveMQ's own over OpenWire",
            jars=broker.jars(),
            factory="org.apache.activemq.ActiveMQConnectionFactory",
            properties={
                "userName": broker.username,
                "password": broker.password,
                "brokerURL": f"tcp://{HOST}:{broker.ports['openwire']}",
                "watchTopicAdvisories": "false",
            },
            receive="receive",
            manner=(
                "commits are confirmed; acknowledgements outside of transactions are sent and not confirmed; "
                f"prefetch 1000, with {SESSIONS} sessions {1000 // SESSIONS} each"
            ),
            # With 1000 each the broker's only writer waits for a full socket, and its reader for the writer.
            shared=f"?consumer.prefetchSize={1000 // SESSIONS}",
        )
    if broker.name == "rabbitmq":
        return _Client(
            name="RabbitMQ's JMS client over AMQP",
            jars=fetch(RABBITMQ_LOCK),
            factory="com.rabbitmq.jms.admin.RMQConnectionFactory",
            properties={
                "host": HOST,
                "port": str(broker.ports["amqp"]),
                "username": broker.username,
                "password": broker.password,
                "channelsQos": "500",
            },
            # Its receive() asks the broker for each message.
            receive="listen",
            manner=(
                "commits are confirmed (AMQP transactions); acknowledgements outside of them are sent and "
                "not confirmed; a message listener, prefetch 500"
            ),
        )
    raise ServerUnavailableError(f"no Java client for {broker.name} is pinned here")


class JavaRival:
    """A Java virtual machine that lives for all rounds, so that its code is compiled when it counts.

    Raises:
        ServerError: There is no Java that compiles, no client for this broker, or it can't be downloaded.
    """

    who: ClassVar[str] = JAVA

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._client = _client(broker)
        jars = ":".join(map(str, self._client.jars))
        self._process = subprocess.Popen(
            [_compiler(), "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", jars, SOURCE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        settings = [f"{name}={value}" for name, value in self._client.properties.items()]
        self._say("\n".join((self._client.factory, *settings, "")))

    def manner(self) -> str:
        """Return how it works and what it waits for."""
        return f"{self._client.name}; {self._client.manner}"

    def legs(self) -> Mapping[str, Leg]:
        """Return its pieces of work."""
        return {
            PUBLISH_BYTES: self._publish_bytes,
            INDIVIDUAL: self._publish_and_receive,
            INDIVIDUAL_SEVERAL: functools.partial(self._share, INDIVIDUAL_SEVERAL, 0),
            COMMITS_SEVERAL: functools.partial(self._share, COMMITS_SEVERAL, 1),
            TRANSACTED: self._transacted,
        }

    def close(self) -> None:
        """End the virtual machine."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _publish_bytes(self, messages: int) -> Iterator[Measured]:
        queue = new_queue()
        yield self._run(PUBLISH_BYTES, "publish-bytes", queue, messages, PUBLISH_TRANSACTION)
        self._run(INDIVIDUAL, self._client.receive, queue, messages, 0)

    def _publish_and_receive(self, messages: int) -> Iterator[Measured]:
        queue = new_queue()
        yield self._run(PUBLISH, "publish-text", queue, messages, PUBLISH_TRANSACTION)
        yield self._run(INDIVIDUAL, self._client.receive, queue, messages, 0)

    def _transacted(self, messages: int) -> Iterator[Measured]:
        queue = new_queue()
        self._run(PUBLISH, "publish-text", queue, messages, PUBLISH_TRANSACTION)
        yield self._run(TRANSACTED, self._client.receive, queue, messages, TRANSACTION)

    def _share(self, what: str, transaction: int, messages: int) -> Iterator[Measured]:
        queue = new_queue()
        self._run(PUBLISH, "publish-text", queue, messages, PUBLISH_TRANSACTION)
        shared = f"{queue}{self._client.shared}"
        yield self._run(what, self._client.receive, shared, messages, transaction, sessions=SESSIONS)

    def _run(
        self, what: str, mode: str, queue: str, messages: int, transaction: int, *, sessions: int = 1
    ) -> Measured:
        assert self._process.stdout is not None
        meter = Meter(self._broker, self._process.pid)
        meter.start()
        self._say(f"{mode} {queue} {messages} {transaction} {len(BODY)} {sessions}")
        answer = self._process.stdout.readline().strip()
        meter.stop()
        if not answer:
            raise RuntimeError(f"the Java client failed while it did: {what}; its trace stands above")
        return meter.result(what, self.who, messages, float(answer))

    def _say(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{text}\n")
        self._process.stdin.flush()


def _compiler() -> Path:
    java = find_java()
    modules = subprocess.run([java, "--list-modules"], capture_output=True, text=True, check=True)
    if "jdk.compiler" not in modules.stdout:
        raise ServerUnavailableError(f"{java} has no compiler (Debian: openjdk-17-jdk-headless)")
    return java
