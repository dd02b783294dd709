"""Names of destinations on the wire: what a broker writes is read as what it was told."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from airflow_provider_jmsjca.core.destination import Destination, DestinationKind
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.transports.base import Outgoing, Subscription
from airflow_provider_jmsjca.transports.stomp.dialects.activemq import ActiveMqDialect
from airflow_provider_jmsjca.transports.stomp.dialects.artemis import ArtemisDialect
from airflow_provider_jmsjca.transports.stomp.dialects.dialect import Dialect, consumer_headers
from airflow_provider_jmsjca.transports.stomp.dialects.generic import GenericDialect
from airflow_provider_jmsjca.transports.stomp.dialects.rabbitmq import RabbitMqDialect

ACTIVEMQ, ARTEMIS, GENERIC, RABBITMQ = (
    ActiveMqDialect(),
    ArtemisDialect(),
    GenericDialect(),
    RabbitMqDialect(),
)

KINDS = st.sampled_from(DestinationKind)
PRINTABLE = st.characters(exclude_categories=["C"])
NAMES = st.text(st.one_of(st.sampled_from("%/2Ff ?.:ü"), PRINTABLE), min_size=1, max_size=12)


def read_by_the_plugin(header: str) -> tuple[str, str]:
    """Do what RabbitMQ's plugin does with a header: split it at slashes, and make slashes of `%2F`."""
    nothing, kind, name = header.split("/")
    assert not nothing
    return kind, "/".join(name.split("%2F"))


def written_by_the_plugin(kind: str, name: str) -> str:
    """Do what RabbitMQ's plugin does with a name: encode slashes, percent signs and what isn't ASCII."""
    encoded = "".join(
        f"%{byte:02X}" if byte > 126 or byte < 32 or byte in b"/%" else chr(byte) for byte in name.encode()
    )
    return f"/{kind}/{encoded}"


@given(KINDS, NAMES)
def test_rabbitmq_is_told_the_name(kind: DestinationKind, name: str) -> None:
    assume("%2F" not in name)
    assert read_by_the_plugin(RABBITMQ.destination(Destination(kind, name))) == (kind, name)


@given(KINDS, NAMES)
def test_rabbitmq_is_understood(kind: DestinationKind, name: str) -> None:
    assert RABBITMQ.destination_from(written_by_the_plugin(kind, name)) == Destination(kind, name)


@pytest.mark.parametrize("dialect", [ACTIVEMQ, ARTEMIS, GENERIC, RABBITMQ])
@given(kind=KINDS, name=NAMES)
def test_reply_to_comes_back(dialect: Dialect, kind: DestinationKind, name: str) -> None:
    destination = Destination(kind, name)
    try:
        header = dialect.reply_to(destination)
    except ConfigurationError:
        assert "%2F" in name or name != name.strip() or "?" in name
        return
    assert dialect.reply_to_from(header) == destination


@pytest.mark.parametrize("kind", DestinationKind)
def test_a_name_that_the_plugin_reads_as_another_is_refused(kind: DestinationKind) -> None:
    named = Destination(kind, "a%2Fb")
    with pytest.raises(ConfigurationError, match="reads %2F in a name as a slash"):
        RABBITMQ.subscribe(Subscription(destination=named), None)
    with pytest.raises(ConfigurationError, match="expected a name without %2F"):
        RABBITMQ.encode(Outgoing(destination=named, message=JmsMessage.text("x")), lambda: "1")
    assert RABBITMQ.reply_to_from(RABBITMQ.reply_to(Destination.queue("a%2Fb"))) == Destination.queue("a%2Fb")


@pytest.mark.parametrize("name", [" a", "a ", "a\t", "?a=b", ","])
def test_a_name_of_which_activemq_drops_a_part_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="expected a name"):
        ACTIVEMQ.destination(Destination.queue(name))


@pytest.mark.parametrize("name", ["/queue/a", "queue://a", "topic:a", "a"])
def test_a_name_of_artemis_that_looks_like_a_type_is_literal(name: str) -> None:
    subscription = Subscription(destination=Destination.queue(name))
    headers = {"destination": name, "destination-type": "ANYCAST"}
    assert ARTEMIS.origin(headers, subscription) == Destination.queue(name)


def options(**given: str) -> Destination:
    return replace(Destination.queue("q"), options=tuple((k.replace("_", "-"), v) for k, v in given.items()))


@pytest.mark.parametrize(
    ("given_options", "reason"),
    [
        ({"x_queue_type": "stream"}, "a stream delivers only.* expected one of: classic, quorum"),
        ({"x_overflow": "drop-head"}, "the STOMP plugin ignores it"),
        ({"x_overflow": "reject-publish"}, "the STOMP plugin ignores it"),
    ],
)
def test_options_of_rabbitmq_that_break_a_promise_are_refused(
    given_options: dict[str, str], reason: str
) -> None:
    queue = options(**given_options)
    with pytest.raises(ConfigurationError, match=reason):
        consumer_headers(RABBITMQ, queue)
    with pytest.raises(ConfigurationError, match=reason):
        RABBITMQ.encode(Outgoing(destination=queue, message=JmsMessage.text("x")), lambda: "1")


def test_a_queue_that_drops_messages_is_warned_about_once(caplog: pytest.LogCaptureFixture) -> None:
    queue = replace(options(x_max_length="5"), name="bounded")
    for body in "ab":
        RABBITMQ.encode(Outgoing(destination=queue, message=JmsMessage.text(body)), lambda: "1")
    said = [record.getMessage() for record in caplog.records]
    assert [each.partition(", unless ")[0] for each in said] == [
        "destination queue://bounded: with x-max-length a full queue drops its oldest messages"
    ]
