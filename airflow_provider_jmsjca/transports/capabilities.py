"""Product and version of a broker, and its capabilities."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from airflow_provider_jmsjca.core.message import BodyKind
from airflow_provider_jmsjca.core.name_syntax import LITERAL, NameSyntax
from airflow_provider_jmsjca.errors import CapabilityError


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Capabilities of a broker over a transport. All are off unless a transport enables them.

    The contract suite verifies the capabilities of every transport, and the page of brokers lists them. The
    package itself depends on most of them. `delivery_count`, `redelivered_flag`, `typed_properties`,
    `priority` and `message_groups` inform users who choose a broker.

    Attributes:
        atomic_commit: The sends and acknowledgements of a unit are atomic. Where a transaction belongs to a
            session, this excludes acknowledgements of messages from other sessions. Without this capability,
            sends are confirmed before the acknowledgements: a crash in between duplicates messages but loses
            none.
        deduplicating_send: The broker drops a second message with the same `Outgoing.deduplication_id`.
        delivery_count: `JmsMessage.delivery_count` is set.
        redelivered_flag: `JmsMessage.redelivered` is true for every redelivery.
        stable_message_id: `message_id` stays the same when a message from any producer is redelivered.
        selector: The broker filters by message selector.
        browse: Messages can be read without consuming them.
        backlog: The broker reports the size of a queue (`Connection.backlog`).
        durable_subscription: Topics keep messages for a named subscriber that is disconnected.
        delayed_delivery: `Outgoing.delay` is honoured without blocking later messages.
        typed_properties: The broker preserves property types.
        unit_frees_prefetch: Acknowledging in a unit frees prefetch before its commit. Without this
            capability a unit can't settle more messages than the prefetch.
        cumulative_acknowledgement: With `Subscription.in_order`, an acknowledgement settles all earlier
            messages of its consumer, and none of other consumers.
        own_sessions: `cumulative_acknowledgement` holds for each consumer with `Subscription.own_session`.
            Such a consumer takes a connection of its own.
        priority: Higher priorities overtake lower ones on the default configuration.
        message_groups: `JMSXGroupID` keeps a group on one consumer.
        body_kinds: The kinds of body that the broker preserves.
        max_property_characters: Maximum length of a property value; `None`: no known limit.
    """

    atomic_commit: bool = False
    deduplicating_send: bool = False
    delivery_count: bool = False
    redelivered_flag: bool = False
    stable_message_id: bool = False
    selector: bool = False
    browse: bool = False
    backlog: bool = False
    durable_subscription: bool = False
    delayed_delivery: bool = False
    typed_properties: bool = False
    unit_frees_prefetch: bool = False
    cumulative_acknowledgement: bool = False
    own_sessions: bool = False
    priority: bool = False
    message_groups: bool = False
    body_kinds: frozenset[BodyKind] = frozenset({BodyKind.TEXT, BodyKind.BYTES, BodyKind.EMPTY})
    max_property_characters: int | None = None

    def require(self, broker: BrokerInfo, *names: str, purpose: str, otherwise: str = "") -> None:
        """Refuse a configuration that needs missing capabilities.

        Args:
            broker: The broker, named in the error.
            names: Capabilities needed, by attribute name.
            purpose: The feature that needs them, as the subject of a sentence ("the message selector").
            otherwise: An alternative, as the end of a sentence; empty: there is none.

        Raises:
            CapabilityError: A capability is missing; the text has one sentence for each.
        """
        missing = [name for name in names if not getattr(self, name)]
        if missing:
            raise CapabilityError(
                f"{purpose} needs the capability {name!r}, which {broker} does not have{otherwise}"
                for name in missing
            )

    def table(self) -> dict[str, object]:
        """Return every capability by name, for reports."""
        return {item.name: getattr(self, item.name) for item in fields(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerInfo:
    """Product, version and address of a broker.

    Attributes:
        product: `activemq`, `artemis`, `rabbitmq`, `memory`, or the name the broker gives itself.
        version: Version that the broker reports; empty if it reports none.
        address: `host:port` of the connection.
        names: Syntax of its destination names.
    """

    product: str
    version: str
    address: str
    names: NameSyntax = field(default=LITERAL, repr=False)

    def __str__(self) -> str:
        return f"{self.product} {self.version} at {self.address}".replace("  ", " ")
