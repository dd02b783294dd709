from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from airflow_provider_jmsjca.core.destination import Destination, DestinationKind
from airflow_provider_jmsjca.core.message import BodyKind
from airflow_provider_jmsjca.errors import CapabilityError, ConfigurationError
from airflow_provider_jmsjca.transports.base import Capabilities
from airflow_provider_jmsjca.transports.stomp import dialects
from airflow_provider_jmsjca.transports.stomp.dialects import recognise
from airflow_provider_jmsjca.transports.stomp.dialects.activemq import ActiveMqDialect
from airflow_provider_jmsjca.transports.stomp.dialects.artemis import ArtemisDialect
from airflow_provider_jmsjca.transports.stomp.dialects.dialect import Dialect
from airflow_provider_jmsjca.transports.stomp.dialects.generic import GenericDialect
from airflow_provider_jmsjca.transports.stomp.dialects.rabbitmq import RabbitMqDialect
from airflow_provider_jmsjca.transports.stomp.dialects.settlement import Recovery
from airflow_provider_jmsjca.transports.stomp.wire.frames import Frame


@pytest.mark.parametrize(
    ("server", "dialect", "product", "version"),
    [
        ("ActiveMQ/6.3.1", ActiveMqDialect, "activemq", "6.3.1"),
        (
            "ActiveMQ-Artemis/2.56.0 ActiveMQ Artemis Messaging Engine",
            ArtemisDialect,
            "artemis",
            "2.56.0",
        ),
        ("RabbitMQ/3.10.8", RabbitMqDialect, "rabbitmq", "3.10.8"),
        ("apache-apollo/1.7.1", GenericDialect, "apache-apollo", "1.7.1"),
        ("SomeServer", GenericDialect, "SomeServer", ""),
        ("", GenericDialect, "unknown", ""),
    ],
)
def test_by_server_header(server: str, dialect: type[Dialect], product: str, version: str) -> None:
    found, name, number = recognise(server)
    assert type(found) is dialect
    assert (name, number) == (product, version)


def test_a_registered_dialect_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialects, "_known", dict(dialects.BY_SERVER))
    monkeypatch.setattr(dialects, "BY_SERVER", dialects._known)
    own = GenericDialect()
    dialects.register_dialect("Toy", own)
    assert recognise("Toy/1.0")[0] is own


@pytest.mark.parametrize(
    ("server", "said"),
    [
        ("RabbitMQ", "server 'RabbitMQ' has a built-in dialect, which can't be replaced"),
        ("Toy/1.0", "server 'Toy/1.0': expected the name in the server header of CONNECTED, up to the slash"),
        ("", "server '': expected the name in the server header of CONNECTED, up to the slash"),
    ],
)
def test_a_name_that_can_not_be_registered(server: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        dialects.register_dialect(server, GenericDialect())
    assert str(caught.value) == said


class Prefixed(GenericDialect):
    """Writes destinations in a form of its own, and doesn't read it."""

    def destination(self, destination: Destination) -> str:
        return f"/toy/{destination.name}"


class Flattened(GenericDialect):
    """Writes queues and topics alike, and reads all as queues."""

    def destination(self, destination: Destination) -> str:
        return f"toy.{destination.name}"

    def destination_from(self, text: str) -> Destination | None:
        return Destination.queue(text.removeprefix("toy."))


class QueuesOnly(Flattened):
    """Says that there are no topics."""

    def destination(self, destination: Destination) -> str:
        if destination.kind is DestinationKind.TOPIC:
            raise CapabilityError("toy has no topics")
        return super().destination(destination)


class Counting(GenericDialect):
    """Believes a header that whoever sends a message may set."""

    def delivery_count(self, headers: Mapping[str, str]) -> int:
        return int(headers["x-tries"]) + 1


class Identifying(GenericDialect):
    """Hides the header of its id from the function; a sender may set it all the same."""

    identifier = "x-id"
    hidden = GenericDialect.hidden | {"x-id"}


class Expiring(GenericDialect):
    """A sender may set the header of the expiration."""

    expires = "x-until"


class Guarded(Counting):
    """The header is the broker's alone."""

    hidden = GenericDialect.hidden | {"x-tries"}
    taken = GenericDialect.taken | {"x-tries"}


class Raising(GenericDialect):
    """Knows no destination that it reads."""

    def destination_from(self, text: str) -> Destination | None:
        raise KeyError(text)


class Valued(GenericDialect):
    """Has a value where a method is asked."""

    recovery = Recovery.RESUBSCRIBE  # type: ignore[assignment]


FORGED = (
    "server 'Toy': {} trusts the header {!r}, but a sender can set it as a property: add it to hidden and "
    "to taken"
)


def test_what_a_dialect_believes_is_neither_a_property_nor_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialects, "_known", {})
    dialects.register_dialect("Toy", own := Guarded())
    headers: list[tuple[str, str]] = []
    own.property_headers(headers, {"x-tries": "0"})
    assert headers == [("JMS_JMSJCA_Property_x-tries", "0")]
    assert own.decode_properties({"x-tries": "4"}) == {}


def test_a_broker_may_have_queues_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialects, "_known", {})
    dialects.register_dialect("Toy", own := QueuesOnly())
    assert dialects._known == {"Toy": own}


@pytest.mark.parametrize("dialect", [*dialects.BY_SERVER.values(), dialects.GENERIC], ids=type)
def test_the_dialects_of_the_package_believe_no_property(dialect: Dialect) -> None:
    assert dialects._asked(dialect) <= dialect.hidden & dialect.taken


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (Counting(), FORGED.format("Counting", "x-tries")),
        (Identifying(), FORGED.format("Identifying", "x-id")),
        (Expiring(), FORGED.format("Expiring", "x-until")),
        (
            Valued(),
            (
                "server 'Toy': Valued.recovery is Recovery.RESUBSCRIBE; "
                "expected a method, as recovery() of GenericDialect"
            ),
        ),
        (
            Raising(),
            (
                "server 'Toy': Raising raises KeyError: '/queue/orders' when it writes queue://orders and "
                "reads that again: see its destination() and destination_from()"
            ),
        ),
        (GenericDialect, "server 'Toy': expected an object of a dialect, such as GenericDialect()"),
        (
            Prefixed(),
            (
                "server 'Toy': Prefixed writes queue://orders as '/toy/orders', which it reads as "
                "queue:///toy/orders: override destination_from() as the inverse of destination()"
            ),
        ),
        (
            Flattened(),
            (
                "server 'Toy': Flattened writes topic://orders as 'toy.orders', which it reads as "
                "queue://orders: override destination_from() as the inverse of destination()"
            ),
        ),
    ],
)
def test_a_dialect_that_can_not_be_registered(given: Any, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialects, "_known", {})
    with pytest.raises(ConfigurationError) as caught:
        dialects.register_dialect("Toy", given)
    assert str(caught.value) == said


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        ({"selector": True}, r"claims selector, and doesn't override subscribe\(\)"),
        ({"delivery_count": True}, r"claims delivery_count, and doesn't override delivery_count\(\)"),
        ({"stable_message_id": True}, r"claims stable_message_id, and doesn't override lasting\(\)"),
        ({"durable_subscription": True}, r"doesn't override subscribe\(\) and delete_durable\(\)"),
        ({"atomic_commit": True}, r"claims atomic_commit, and its unit_kind isn't UnitKind\.TRANSACTION"),
        ({"deduplicating_send": True}, r"deduplicating_send, and doesn't override special_headers\(\)"),
        ({"backlog": True}, r"claims backlog, which only Artemis' own management can be asked for"),
        ({"typed_properties": True}, r"doesn't override property_headers\(\) and decode_properties\(\)"),
        ({"body_kinds": frozenset(BodyKind)}, r"body_kinds, and doesn't override encode_body\(\) and deco"),
    ],
)
def test_a_claim_without_what_it_needs_is_refused(claim: dict[str, Any], words: str) -> None:
    class Boasting(GenericDialect):
        capabilities = Capabilities(**claim)

    with pytest.raises(ConfigurationError, match=words):
        dialects.register_dialect("Boasting", Boasting())
    assert "Boasting" not in dialects.BY_SERVER


def test_an_acknowledgement_that_no_ack_can_carry_is_refused() -> None:
    class Texts(GenericDialect):
        def acknowledgement(self, frame: Frame) -> Any:
            return frame.headers()["message-id"]

    class Fails(GenericDialect):
        def acknowledgement(self, frame: Any) -> bytes | None:
            return bytes(frame.headers["message-id"])

    with pytest.raises(ConfigurationError, match=r"Texts\.acknowledgement\(\) returns str; expected bytes"):
        dialects.register_dialect("Texts", Texts())
    with pytest.raises(ConfigurationError, match=r"Fails\.acknowledgement\(\) raises TypeError: .*None"):
        dialects.register_dialect("Fails", Fails())
    assert not {"Texts", "Fails"} & set(dialects.BY_SERVER)


def test_a_dialect_that_cannot_hand_back_whatever_came_is_refused() -> None:
    """It would fail while a consumer is closed."""

    class Texts(GenericDialect):
        def orphan(self, token: bytes, keeper: str) -> Any:
            return f"{keeper}@@{token!r}"

    class Decodes(GenericDialect):
        def orphan(self, token: bytes, keeper: str) -> bytes:
            return f"{keeper}@@{token.decode()}".encode()

    with pytest.raises(ConfigurationError, match=r"Texts\.orphan\(\) returns str; expected bytes"):
        dialects.register_dialect("Texts", Texts())
    with pytest.raises(ConfigurationError, match=r"Decodes\.orphan\(\) raises UnicodeDecodeError: .*text"):
        dialects.register_dialect("Decodes", Decodes())
    assert not {"Texts", "Decodes"} & set(dialects.BY_SERVER)


def test_an_acknowledgement_of_one_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    class ByMessageId(GenericDialect):
        def acknowledgement(self, frame: Frame) -> bytes | None:
            return frame.first(b"\nmessage-id:")

    monkeypatch.setattr(dialects, "_known", {})
    monkeypatch.setattr(dialects, "BY_SERVER", dialects._known)
    dialects.register_dialect("Toy", ByMessageId())
    dialect, *_ = recognise("Toy/1.0")
    assert dialect.acknowledgement(Frame(b"MESSAGE", b"\nack:1\nmessage-id:2", b"")) == b"2"
