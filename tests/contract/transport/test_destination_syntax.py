"""Each broker's own syntax for destinations: what it selects, waiting messages included."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from airflow_provider_jmsjca import (
    CapabilityError,
    Connection,
    Destination,
    DestinationKind,
    JmsMessage,
    Outgoing,
    Subscription,
)
from tests.contract.transport.collector import Collector
from tests.contract.transport.traffic import Connect

QUEUE, TOPIC = DestinationKind.QUEUE, DestinationKind.TOPIC


@dataclass(frozen=True, slots=True, kw_only=True)
class Syntax:
    """One way to name destinations; `@` stands for a name that no other test uses.

    Attributes:
        lab: The broker that has it.
        consumed: What is consumed.
        sent: Where messages go, one to each; all of them must arrive.
        elsewhere: Where messages go that must not arrive.
        kind: Of `consumed`.
        sent_kind: Of the others; as `kind` unless it says so.
        waiting: Whether it also selects messages that were there before.
    """

    lab: str
    consumed: str
    sent: Sequence[str]
    elsewhere: Sequence[str] = ()
    kind: DestinationKind = QUEUE
    sent_kind: DestinationKind | None = None
    waiting: bool = True

    def __str__(self) -> str:
        return f"{self.lab} {self.kind}://{self.consumed}"

    def named(self, name: str, unique: str, kind: DestinationKind | None = None) -> Destination:
        return Destination(kind or self.kind, name.replace("@", unique))


def of(lab: str, *rows: tuple[str, Sequence[str], Sequence[str]], **more: Any) -> list[Syntax]:
    return [
        Syntax(lab=lab, consumed=consumed, sent=sent, elsewhere=elsewhere, **more)
        for consumed, sent, elsewhere in rows
    ]


SYNTAX = [
    *of(
        "activemq",
        ("@.one", ["@.one"], ["@.two"]),
        ("@.>", ["@", "@.one", "@.one.deep"], []),
        ("@.*", ["@.one", "@.two"], ["@.one.deep"]),
        ("@.*.deep", ["@.one.deep", "@.two.deep"], ["@.one"]),
        ("@.one,@.two", ["@.one", "@.two"], ["@.three"]),
        ("@.one,@.deep.>", ["@.one", "@.deep.two", "@.deep.three"], ["@.two"]),
        ("@.one?consumer.priority=5", ["@.one"], []),
        ("@.>?consumer.exclusive=true", ["@.one", "@.two"], []),
    ),
    *of(
        "activemq",
        ("@.>", ["@.one", "@.one.deep"], []),
        ("@.*", ["@.one", "@.two"], ["@.one.deep"]),
        kind=TOPIC,
        waiting=False,
    ),
    *of(
        "activemq",
        ("Consumer.A.VirtualTopic.@", ["VirtualTopic.@"], ["VirtualTopic.@.two"]),
        ("Consumer.A.VirtualTopic.@.>", ["VirtualTopic.@.one", "VirtualTopic.@.two"], []),
        sent_kind=TOPIC,
        waiting=False,
    ),
    *of(
        "artemis",
        ("@.one", ["@.one"], ["@.two"]),
        ("@.one::@.one", ["@.one"], ["@.two"]),
    ),
    # A queue of its own, which gets a copy of what is sent from then on.
    *of(
        "artemis",
        ("@.#", ["@.one", "@.one.deep"], []),
        ("@.*", ["@.one", "@.two"], ["@.one.deep"]),
        waiting=False,
    ),
    *of(
        "artemis",
        ("@.#", ["@.one", "@.one.deep"], []),
        ("@.*", ["@.one", "@.two"], ["@.one.deep"]),
        ("@.one::@.mine", ["@.one"], ["@.two"]),
        kind=TOPIC,
        waiting=False,
    ),
    *of("rabbitmq", ("@.one", ["@.one"], ["@.two"]), ("@/one", ["@/one"], ["@/two"])),
    *of(
        "rabbitmq",
        ("@.#", ["@", "@.one", "@.one.deep"], []),
        ("@.*", ["@.one", "@.two"], ["@.one.deep"]),
        kind=TOPIC,
        waiting=False,
    ),
]


def each(*rows: Syntax) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        ("lab", "syntax"), [(row.lab, row) for row in rows], ids=map(str, rows), indirect=["lab"]
    )


def send(connection: Connection, syntax: Syntax, name: str, mark: str) -> list[str]:
    """Send a message to each destination; return the bodies that must arrive."""
    kind = syntax.sent_kind or syntax.kind
    connection.send(
        Outgoing(destination=syntax.named(each, name, kind), message=JmsMessage.text(f"{mark} {each}"))
        for each in (*syntax.elsewhere, *syntax.sent)
    )
    return [f"{mark} {each}" for each in sorted(syntax.sent)]


def bodies(collector: Collector) -> list[Any]:
    return sorted(message.body for message in collector.messages)


@each(*SYNTAX)
def test_a_consumer_gets_what_its_destination_names(
    syntax: Syntax, connect: Connect, connection: Connection, name: str
) -> None:
    before = send(connection, syntax, name, "before") if syntax.waiting else []
    collector = Collector()
    consumer = connect().consume(
        Subscription(destination=syntax.named(syntax.consumed, name), prefetch=10), collector
    )
    collector.wait(len(before))
    if syntax.waiting:  # a rollback hands all of them back, and waits for them again
        consumer.recover()
        collector.wait(2 * len(before))
        assert bodies(collector) == sorted(2 * before)
        consumer.acknowledge(collector.received[len(before) :])
        collector.received.clear()
    after = send(connection, syntax, name, "after")
    collector.wait(len(after))
    collector.settle_down()
    assert bodies(collector) == after
    consumer.acknowledge(collector.received)
    consumer.close()


@each(
    Syntax(lab="activemq", consumed="@.one,@.two", sent=["@.one", "@.two"]),
    Syntax(lab="activemq", consumed="@.one,topic://@.two", sent=["@.one"]),
    Syntax(lab="activemq", consumed="@.one", sent=["@.one"]),
    Syntax(lab="artemis", consumed="@.one::@.one", sent=["@.one"]),
    Syntax(lab="rabbitmq", consumed="@/one", sent=["@/one"]),
)
def test_a_message_goes_to_what_its_destination_names(
    syntax: Syntax, connection: Connection, connect: Connect, name: str
) -> None:
    target = syntax.named(syntax.consumed, name)
    for destination in syntax.sent if "::" in syntax.consumed else ():  # such a queue isn't made by sending
        connection.consume(Subscription(destination=syntax.named(destination, name)), Collector()).close()
    connection.send([Outgoing(destination=target, message=JmsMessage.text("x"))])
    for destination in syntax.sent:
        collector = Collector()
        consumer = connect().consume(Subscription(destination=syntax.named(destination, name)), collector)
        consumer.acknowledge(collector.wait(1))
        assert collector.bodies == ["x"]


@pytest.mark.parametrize("lab", ["activemq"], indirect=True)
def test_a_list_of_topics_is_refused(connection: Connection, name: str) -> None:
    """ActiveMQ would deliver what is sent to the first one only."""
    listed = Destination.topic(f"{name}.one,{name}.two")
    with pytest.raises(CapabilityError, match="only the first"):
        connection.consume(Subscription(destination=listed), Collector())


@pytest.mark.parametrize("lab", ["activemq"], indirect=True)
def test_a_durable_wildcard_keeps_messages_of_every_topic(connect: Connect, name: str) -> None:
    subscription = Subscription(destination=Destination.topic(f"{name}.>"), durable_name="s1")
    for count in (0, 2):
        connection = connect(client_id=name)
        collector = Collector()
        consumer = connection.consume(subscription, collector)
        consumer.acknowledge(collector.wait(count))
        consumer.close(delete_durable=count > 0)
        connect().send(
            Outgoing(destination=Destination.topic(f"{name}.{each}"), message=JmsMessage.text(each))
            for each in ("one", "two")
        )
        connection.close()
    assert sorted(map(str, collector.bodies)) == ["one", "two"]
