"""When two messages are one and the same: the definition that all use who remember messages.

A broker's id alone won't do: it is the producer's word on RabbitMQ, the same for copies in several queues, and
on a broker that was set up anew the ids begin again. So a message is what its id, its destination, the time it
was sent, its body and its properties say. What a broker may change from one delivery to the next (the
redelivered flag, its count) is no part of it.

| who remembers | what | how long | why | where it counts |
|---|---|---|---|---|
| `engine.delivering.seen.SettledLately` | identities of settled messages | 32,768, one run of a listener or stream | a killed broker forgets acknowledgements | with ids of the broker always, otherwise with the redelivered flag |
| `engine.delivering.seen.Once` | identities handed out, returned, left | 32,768 each, streams of one trigger | an answer may outlive its connection | the same |
| `spool.known_ids`, `spool.id_index`, `spool.spool` | rows of sealed segments; ids first, then whole identities | `Horizon`: 200,000 ids, 7 days | sealed, and died before the acknowledgement | the same |
| `engine.delivering.seen.Duplicates` | ids that a handler has done with | 32,768, one run of a listener | duplicate event elimination asks for ids alone (I17) | everywhere, where it is on |
| `engine.delivering.ledger.Ledger`, with `store` | ids, with the destination among several; counts, and ids handled | 5,000 and 32,768, 7 days | a crash counts; I17 over restarts | where `use_store` is on |
| `core.redelivery.RedeliveryTracker` | ids, with the destination among several; counts and notes | 5,000, until settled | J131, J132; a parked copy is sent anew and keeps its count | everywhere |
| `triggers.holding`, in Airflow's store of the asset | digests of messages that wait for their DAG runs | until settled | a restart must find the run of a message | messages with an id |
| `triggers`, with `core.backoff` | the id that the last look found | until the next look | how long to pause: a mistake costs a pause | where looking is possible |
"""  # noqa: E501 - a table

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message.message import JmsMessage, to_json

# A broker may set these anew at each delivery.
_OF_A_DELIVERY = frozenset(
    {
        "JMSXDeliveryCount",
        "JMSXRcvTimestamp",
        "JMSXState",
        "JMSXConsumerTXID",
        "x-delivery-count",
        "x-acquired-count",
    }
)


_tuple = tuple.__new__


class Identity(NamedTuple):
    """What tells a message from all others; made by `identity`, compared within one process only.

    Attributes:
        message_id: As the broker, or the producer, gives it.
        destination: Where it was received; `None` for whoever remembers those of one destination.
        timestamp: When it was sent, in milliseconds since the epoch.
        digest: Of body and properties.
    """

    message_id: str
    destination: Destination | str | None
    timestamp: int | None
    digest: int


def identity(
    message_id: str | None,
    destination: Destination | str | None,
    timestamp: int | None,
    body: object,
    properties: Mapping[str, object],
) -> Identity | None:
    """Return what tells a message from others; `None` if it has no id, and nothing does."""
    if message_id is None:
        return None
    said = body if isinstance(body, (str, bytes)) else repr(body)
    if properties:
        if not _OF_A_DELIVERY.isdisjoint(properties):
            properties = {name: properties[name] for name in properties if name not in _OF_A_DELIVERY}
        return Identity(message_id, destination, timestamp, hash((said, frozenset(properties.items()))))
    return Identity(message_id, destination, timestamp, hash(said))


def identity_of(message: JmsMessage | None, destination: Destination | None) -> Identity | None:
    """Return what tells a message from others; `None` if it has no id, or is none.

    Args:
        message: As received, or as it was published.
        destination: Where it was received, for whoever remembers messages of several.
    """
    if message is None:
        return None
    message_id, body, properties = message.message_id, message.body, message.properties
    if message_id is not None and body.__class__ is str and _OF_A_DELIVERY.isdisjoint(properties):
        # The same as below, in one go: it is made for every message that a listener settles.
        digest = hash((body, frozenset(properties.items()))) if properties else hash(body)
        return _tuple(Identity, (message_id, destination, message.timestamp, digest))
    return identity(message_id, destination, message.timestamp, body, properties)


def lasting_digest(message: JmsMessage, destination: Destination) -> str | None:
    """Return what tells a message from others in any process, at each delivery; `None` if it has no id.

    Args:
        message: As received.
        destination: Where it was received.
    """
    if message.message_id is None:
        return None
    content: dict[str, Any] = to_json(message)
    del content["redelivered"], content["delivery_count"]
    properties = content["properties"]
    content["properties"] = {name: properties[name] for name in properties if name not in _OF_A_DELIVERY}
    text = json.dumps([str(destination), content], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
