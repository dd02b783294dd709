"""Which broker answered, and what it can do."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from airflow_provider_jmsjca.core.message import BodyKind
from airflow_provider_jmsjca.core.name_syntax import LITERAL, NameSyntax
from airflow_provider_jmsjca.errors import CapabilityError


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a broker can do over a transport. Everything is off unless a transport switches it on.

    The contract suite holds every transport to what it claims, and the page of brokers is made of the claims.
    The package itself asks for most of them. `delivery_count`, `redelivered_flag`, `typed_properties`,
    `priority` and `message_groups` are for users who choose a broker.

    Attributes:
        atomic_commit: A unit's sends and acknowledgements happen together or not at all. Without it a unit
            sends first, confirmed, and acknowledges then: nothing is lost, a crash in between duplicates.
        deduplicating_send: The broker drops a second message with the same `Outgoing.deduplication_id`.
        delivery_count: `JmsMessage.delivery_count` is filled in.
        redelivered_flag: `JmsMessage.redelivered` is true of each message that came before.
        stable_message_id: `message_id` stays the same when a message from any producer is redelivered.
        selector: The broker filters by message selector.
        browse: Messages can be looked at without consuming them.
        backlog: The broker tells what a queue holds (`Connection.backlog`).
        durable_subscription: Topics keep messages for a named subscriber that is away.
        delayed_delivery: `Outgoing.delay` is honoured without holding messages behind it.
        typed_properties: Property types survive the way through the broker.
        unit_frees_prefetch: What a unit acknowledges makes room for further messages before its commit.
            Without it a unit can't settle more messages than the prefetch.
        cumulative_acknowledgement: An acknowledgement settles all messages that its consumer received before,
            if `Subscription.in_order` allows it, and those of other consumers not.
        priority: Higher priorities overtake lower ones on the default configuration.
        message_groups: `JMSXGroupID` keeps a group on one consumer.
        body_kinds: The kinds of body that survive the way through the broker.
        max_property_characters: The longest property value that passes; `None` where no limit is known.
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
    priority: bool = False
    message_groups: bool = False
    body_kinds: frozenset[BodyKind] = frozenset({BodyKind.TEXT, BodyKind.BYTES, BodyKind.EMPTY})
    max_property_characters: int | None = None

    def require(self, broker: BrokerInfo, *names: str, purpose: str, otherwise: str = "") -> None:
        """Refuse a configuration that needs what the broker lacks.

        Args:
            broker: Named in the error.
            names: Capabilities needed, by attribute name.
            purpose: What needs them, as the subject of a sentence ("the message selector").
            otherwise: The way out, as the end of a sentence; empty: there is none.

        Raises:
            CapabilityError: One sentence for each missing capability.
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
    """Which broker answered.

    Attributes:
        product: `activemq`, `artemis`, `rabbitmq`, `memory`, or the name the broker gives itself.
        version: As the broker says it; empty if it doesn't.
        address: `host:port` of the connection in use.
        names: How it reads the names of destinations.
    """

    product: str
    version: str
    address: str
    names: NameSyntax = field(default=LITERAL, repr=False)

    def __str__(self) -> str:
        return f"{self.product} {self.version} at {self.address}".replace("  ", " ")
