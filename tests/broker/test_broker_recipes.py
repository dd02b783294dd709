"""The settings of docs/how-to/broker-limits.md do what the page says, on the brokers."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_jmsjca import (
    Destination,
    InDoubtError,
    JmsConnection,
    JmsError,
    JmsMessage,
    Outgoing,
    PermanentBrokerError,
    connect,
)
from tests.docs.blocks import blocks
from tests.servers.activemq import ActiveMQClassic
from tests.servers.artemis import Artemis
from tests.servers.broker import Broker
from tests.servers.rabbitmq import PROGRAM, RabbitMQ

PAGE = [block for block in blocks(Path(__file__).parents[2]) if block.page == "docs/how-to/broker-limits.md"]
XML = [block.text for block in PAGE if block.language == "xml"]
ORDERS = Destination.queue("orders")
EXPIRED = "queue://orders.expired"


def sooner(text: str) -> str:
    """Return a setting of the page with a second for its minute, and ten messages for its thousand."""
    for given, here in (('"max-length": 1000', '"max-length": 10'), (">1000</max-size", ">10</max-size")):
        text = text.replace(given, here)
    return text.replace("60000", "1000").replace("5000", "500")


def insert(file: Path, *places: tuple[str, str]) -> None:
    """Write texts into a file, each before the first place of its name."""
    text = file.read_text(encoding="utf-8")
    for before, what in places:
        assert before in text
        text = text.replace(before, what + before, 1)
    file.write_text(text, encoding="utf-8")


class LimitedActiveMQ(ActiveMQClassic):
    """With the plugin and the policy of the page."""

    def _prepare(self) -> None:
        super()._prepare()
        plugin, policy = XML[:2]
        file = self.folder / "activemq.xml"
        # Of two elements the broker takes one.
        own = re.compile("<destinationPolicy>.*</destinationPolicy>", re.DOTALL)
        file.write_text(own.sub("", file.read_text(encoding="utf-8")), encoding="utf-8")
        insert(
            file,
            ("</plugins>", sooner(plugin)),
            ("<sslContext>", sooner(policy)),
        )


class LimitedArtemis(Artemis):
    """With the settings of the page; the broker's file has both elements already."""

    def _prepare(self) -> None:
        super()._prepare()
        setting, address = (
            re.search(rf"<{name}>(.*?)</{name}>", sooner(XML[2]), re.DOTALL)
            for name in ("address-settings", "addresses")
        )
        assert setting
        assert address
        insert(
            self.folder / "etc" / "broker.xml",
            ("</address-settings>", setting[1]),
            ("</addresses>", address[1]),
            ("<acceptors>", "<message-expiry-scan-period>500</message-expiry-scan-period>"),
        )


class LimitedRabbitMQ(RabbitMQ):
    """With the policy of the page."""

    def set_policy(self) -> None:
        (command,) = [each for block in PAGE for each in block.commands if each.startswith("rabbitmqctl")]
        subprocess.run(
            [PROGRAM.with_name("rabbitmqctl"), *shlex.split(sooner(command))[1:]],
            env={**os.environ, **self._environment()},
            check=True,
            capture_output=True,
            timeout=60,
        )


LIMITED = {"activemq": LimitedActiveMQ, "artemis": LimitedArtemis, "rabbitmq": LimitedRabbitMQ}


@pytest.fixture(scope="module", params=LIMITED)
def limited(request: pytest.FixtureRequest, servers_folder: Path) -> Iterator[Broker]:
    # The shared one is asked for first: where the broker can't be had, it says so and skips.
    request.getfixturevalue(request.param)
    broker: Broker = LIMITED[request.param](servers_folder / f"limited-{request.param}")
    broker.start()
    if isinstance(broker, LimitedRabbitMQ):
        broker.put_on_disk("orders", "orders.expired")
        broker.set_policy()
    yield broker
    broker.stop()


def test_a_message_expires_into_the_queue_of_the_page(limited: Broker) -> None:
    with JmsConnection(connect(limited.settings())) as connection:
        with connection.session(transacted=True) as session:
            session.send(ORDERS, JmsMessage.text("forgotten"))
            session.commit()

        with connection.session(transacted=True) as session:
            expired = session.receive(EXPIRED, timeout=30)
            assert expired is not None
            assert expired.body == "forgotten"
            assert session.receive(ORDERS, timeout=0.5) is None
            session.commit()


@pytest.mark.parametrize(
    ("limited", "refusal"),
    [("artemis", PermanentBrokerError), ("rabbitmq", InDoubtError)],
    indirect=["limited"],
)
def test_a_full_queue_refuses_what_is_sent(limited: Broker, refusal: type[JmsError]) -> None:
    connection = connect(limited.settings())
    with pytest.raises(refusal):
        connection.send(
            Outgoing(destination=ORDERS, message=JmsMessage.text(f"{number}")) for number in range(20)
        )
    connection.close()
