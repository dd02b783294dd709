"""Reads Patch Bay's message sinks and filters, and the properties of its `MessagingManager`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from airflow_provider_jmsjca.migrate.elements import Element

_FIELDS = {
    "destination-name": "destination",
    "destination-type": "destination_type",
    "message-selector": "message_selector",
    "durable-subscriber-name": "subscription_name",
    "max-attempts": "max_attempts",
    "delay": "redelivery_delay",
}
"""Tag in an input destination -> option of this package."""
_MANAGER = {"allowMessageDelays": "allow_message_delays", "limboDeliveryRetry": "limbo_delivery_retry"}
"""Property of `MessagingManager` -> option of this package."""
_WITHOUT_EFFECT = {
    "limboPollInterval": "limbo is checked each second",
    "dataSource": "store_url of [jmsjca] names the database of limbo",
}
_SCHEME = "patchbay:/"
_OF_ATG = ("localdms:", "sqldms:")
"""Prefixes of destinations of Patch Bay's two built-in providers."""
_DEFAULT_PORT = "DEFAULT"
"""Name of an input port without a `port-name`."""
_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?", re.ASCII)


def read_sinks(
    roots: Sequence[Element], manager: Mapping[str, str]
) -> Iterator[tuple[str, dict[str, str], list[str]]]:
    """Yield name, options and notes of an activation for each input destination of a sink or filter.

    A single input is named after the sink. With several inputs, the port's name is appended, as in
    `/a/Sink > PORT`. If a port has several destinations, the destination's name is appended too.

    Args:
        roots: The files; as in Patch Bay, the elements for one sink are combined.
        manager: Properties of `MessagingManager`, which apply to every sink. Properties without an option are
            ignored.

    Source: P6-P10, P12, P13, P16, P21.
    """
    common = {_MANAGER[name]: value for name, value in manager.items() if name in _MANAGER}
    common_notes = [
        f"{name}: no effect: {_WITHOUT_EFFECT[name]}" for name in manager if name in _WITHOUT_EFFECT
    ]
    sinks: dict[str, list[Element]] = {}
    for root in roots:
        for sink in (*root.find("message-sink"), *root.find("message-filter")):
            sinks.setdefault(sink.glimpse("nucleus-name"), []).append(sink)
    for elements in sinks.values():
        for name, fields, notes in _activations(elements):
            yield name, {**fields, **common}, [*notes, *common_notes]


def is_manager_property(name: str) -> bool:
    """Return whether `read_sinks` knows a property of `MessagingManager` by this name."""
    return name in _MANAGER or name in _WITHOUT_EFFECT


def _activations(sinks: Sequence[Element]) -> Iterator[tuple[str, dict[str, str], list[str]]]:
    sink_name = sinks[0].value("nucleus-name")
    inputs = {
        (port, found.glimpse("destination-name")): found for sink in sinks for port, found in _inputs(sink)
    }
    ports = Counter(port for port, _ in inputs)
    if not inputs:
        yield sink_name, {"name": sink_name} if sink_name else {}, []
    for (port, destination), found in inputs.items():
        several = len(inputs) > 1
        parts = (sink_name, port if several else "", destination if ports[port] > 1 else "")
        name = " > ".join(filter(None, parts))
        fields = {"name": name, **_fields(found)}
        notes = []
        if destination.startswith(_OF_ATG):
            notes.append(
                f"destination: {destination} is a name in ATG's own JMS. Here it names a "
                "destination at your broker; replace it if that has another name"
            )
        if failure_port := found.value("failure-output-port"):
            fields["dead_letter_destination"] = ";".join(_failure_targets(sinks, failure_port))
            if not fields["dead_letter_destination"]:
                notes.append(
                    f"dead_letter_destination: not set; the redelivery port {failure_port!r} isn't in these "
                    "files"
                )
        yield name, {option: value for option, value in fields.items() if value}, notes


def _inputs(sink: Element) -> Iterator[tuple[str, Element]]:
    """Yield the input destinations of a sink, each with the name of its port."""
    ports = list(sink.find("input-port"))
    for port in ports:
        for found in port.find("input-destination"):
            yield port.value("port-name") or _DEFAULT_PORT, found
    if not ports:
        yield from ((_DEFAULT_PORT, found) for found in sink.find("input-destination"))


def _fields(found: Element) -> dict[str, str]:
    """Return the options of an input destination.

    Redelivery goes through limbo, as in Patch Bay. A topic without a durable subscription is the exception.
    No broker keeps the messages of such a topic across a restart, so this package refuses limbo for it.
    """
    fields = {option: value for tag, option in _FIELDS.items() if (value := found.value(tag))}
    if "destination" in fields:
        fields["destination"] = fields["destination"].removeprefix(_SCHEME)
    if "subscription_name" in fields:
        fields["subscription_durability"] = "durable"
    if _NUMBER.fullmatch(fields.get("redelivery_delay", "")):
        fields["redelivery_delay"] += "ms"
    lasting = "subscription_name" in fields or fields.get("destination_type", "").lower() != "topic"
    if lasting and fields.keys() & {"max_attempts", "redelivery_delay"}:
        fields |= {"use_store": "true", "non_blocking_redelivery": "true"}
    return fields


def _failure_targets(sinks: Sequence[Element], port: str) -> Iterator[str]:
    """Yield the destinations of a redelivery port of the sink."""
    for redelivery in (each for sink in sinks for each in sink.find("redelivery-port")):
        if redelivery.value("port-name") == port:
            for output in redelivery.find("output-destination"):
                kind = (output.value("destination-type") or "Queue").lower()
                yield f"{kind}://{output.value('destination-name').removeprefix(_SCHEME)}"
