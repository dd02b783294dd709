"""Reads the properties of a connector of the WBIA adapter for JMS."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain

from airflow_provider_jmsjca.migrate.elements import Element

INPUT = "InputDestination"
"""The property that shows that a file describes a connector of the JMS adapter."""
_NAME = "ApplicationName"
_FIELDS = {
    _NAME: "name",
    INPUT: "destination",
    "PollQuantity": "poll_quantity",
    "InProgressDestination": "in_progress_destination",
    "InDoubtEvents": "in_doubt_events",
    "ContainerManagedEvents": "container_managed_events",
    "SourceQueue": "source_queue",
    "DuplicateEventElimination": "duplicate_event_elimination",
    "ArchiveDestination": "archive_destination",
    "ErrorDestination": "error_destination",
    "UnsubscribedDestination": "unsubscribed_destination",
    "ReplyToDestination": "reply_to_destination",
    "MessageResponseResultProperty": "message_response_result_property",
}
"""Property of the connector -> option of this package."""
_MAPPING = "mapping is Python code"
_NO_BROKER = "there is no integration broker; DAGs take the events"
_RESTART = "reconnecting goes on until the activation is stopped"
_WITHOUT_EFFECT = {
    "ConfigurationMetaObject": _MAPPING,
    "DataHandlerConfigMO": _MAPPING,
    "DataHandlerMimeType": _MAPPING,
    "OutputDestination": "a handler, and JmsPublishOperator, name where they send",
    "PollFrequency": "messages are pushed, nothing polls",
    "RestartRetryCount": _RESTART,
    "RestartRetryInterval": _RESTART,
    "RequestQueue": _NO_BROKER,
    "ControllerStoreAndForwardMode": _NO_BROKER,
}


def read_connector(given: Mapping[str, str]) -> tuple[str, dict[str, str], list[str]]:
    """Return name, options and notes of the activation that corresponds to a WBIA connector.

    Args:
        given: Properties of the connector. Unknown properties are ignored.

    Source: I3-I5, I9-I17, I19, I25, I26, I28, I48, I49.
    """
    fields = {option: given[name] for name, option in _FIELDS.items() if given.get(name)}
    notes = [f"{name}: no effect: {why}" for name, why in _WITHOUT_EFFECT.items() if given.get(name)]
    destinations = [each.strip() for each in given[INPUT].split(";") if each.strip()]
    fields["destination"] = ";".join(each if "://" in each else f"queue://{each}" for each in destinations)
    if bare := [each for each in destinations if "://" not in each]:
        notes.append(
            f"destination: {', '.join(bare)}: WBIA doesn't say whether this is a queue or a topic; taken as "
            "a queue. Write topic:// for a topic"
        )
    if "poll_quantity" in fields and len(destinations) == 1:
        notes.append("poll_quantity: no effect with one destination: messages are pushed")
    if fields.get("container_managed_events", "").lower() == "jms" and "name" in fields:
        fields.setdefault("source_queue", f"{fields['name']}/SOURCEQUEUE")  # WBIA's default
    if fields.get("duplicate_event_elimination", "").lower() == "true":
        fields["use_store"] = "true"  # WBIA's adapter also remembers its last id across restarts
    if "in_doubt_events" in fields and not fields.keys() & {"in_progress_destination", "use_store"}:
        del fields["in_doubt_events"]
        notes.append(
            "in_doubt_events: dropped: without in_progress_destination or use_store, events in doubt can't "
            "be recognised"
        )
    if "error_destination" not in fields:
        notes.append(
            "error_destination: not set; WBIA discards an event that fails, here it is redelivered. Name "
            "a destination, or discard to drop such messages"
        )
    return fields.get("name", ""), fields, notes


def is_connector_property(name: str) -> bool:
    """Return whether `read_connector` knows a property of a connector by this name."""
    return name in _FIELDS or name in _WITHOUT_EFFECT


def properties_of(root: Element) -> dict[str, str]:
    """Return the properties in the configuration file of a WBIA connector; empty for any other file.

    A property is an element with a name and a value, which are attributes or elements. All properties are
    marked as read.
    """
    found = {name: element for element in _all(root) if (name := _part(element, "name"))}
    if INPUT not in found:
        return {}
    for element in found.values():
        element.taken()
    return {name: _part(element, "value") for name, element in found.items()}


def _all(element: Element) -> Iterator[Element]:
    yield element
    for child in element.children:
        yield from _all(child)


def _part(element: Element, tag: str) -> str:
    attributes = (text.strip() for name, text in element.attributes.items() if name.lower() == tag)
    children = (child.text.strip() for child in element.children if child.tag.lower() == tag)
    return next(chain(attributes, children), "")
