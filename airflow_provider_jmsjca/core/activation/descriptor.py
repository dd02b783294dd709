"""Reads activations out of Java deployment descriptors, so that they can move here.

Read are `ejb-jar.xml`, `weblogic-ejb-jar.xml`, `sun-ejb-jar.xml`, `ra.xml`, Patch Bay configuration files and
JMS modules of WebLogic, whole or a piece with one root element.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from airflow_provider_jmsjca.core.activation.elements import PROPERTY_NAMES, Element, parse
from airflow_provider_jmsjca.core.activation.jms_module import JmsModules
from airflow_provider_jmsjca.core.activation.redelivery import CLIENT_PROPERTIES, PATCH_BAY
from airflow_provider_jmsjca.core.configuration.administered import LOOKUP
from airflow_provider_jmsjca.core.masking import masked_text
from airflow_provider_jmsjca.core.options import (
    OPTIONS,
    PARAMETER,
    Family,
    Level,
    option_by_field,
    option_by_key,
    unknown_field,
)
from airflow_provider_jmsjca.errors import ConfigurationError

_VALUES = ("activation-config-property-value", "config-property-value")
_CONTAINERS = {
    "message-driven-destination",
    "message-driven-descriptor",
    "pool",
    "transaction-descriptor",
    "redelivery",
}
"""Elements of a bean or a destination whose own elements are its options; others are about something else."""
_ELEMENTS = {
    spelling
    for option in OPTIONS
    for family, spelling in option.spellings()
    if family in {Family.EJB, Family.WEBLOGIC, Family.PATCH_BAY}
}
_SINGLE = "timer-descriptor"
_LINK = "message-destination-link"
_MOST_PARTICULAR = {
    "destination": ("destination-jndi-name", "destination-resource-link", "destinationLookup", _LINK),
    "jms_conn_id": ("connection-factory-jndi-name", "connection-factory-resource-link"),
}
"""Spellings of one option, by descriptors that may differ: the server's own comes before the standard's."""
_REFERENCE = "message-destination-ref"
_JMSJCA = "jmsjca."
_REDELIVERY = {"redelivery_handling", *PATCH_BAY, *CLIENT_PROPERTIES}
_TRANSPORTS = ("stomp:", "stomp+ssl:", "vm:", "failover:", LOOKUP)
"""What a provider-url begins with that names a broker and no JNDI server."""
_EJB_3 = 3
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptor:
    """What deployment descriptors say, under their own spellings.

    Attributes:
        activations: Fields of each activation, by the bean's name (empty where it has none).
        unknown: Names of the configuration properties of each activation that no option is named by.
        notes: What whoever moves each activation has to know, a sentence each.
        connector: Fields of the connector.
        connection_factories: Fields of each connection factory, by its interface or JNDI name.
        destinations: Destinations of JMS modules, as `queue://name`, by the JNDI names.
        dropped: Paths of the elements that say something and weren't read, without their values; after some
            of them stands what takes their place.
    """

    activations: Mapping[str, Mapping[str, str]]
    connector: Mapping[str, str]
    connection_factories: Mapping[str, Mapping[str, str]]
    unknown: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    notes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    destinations: Mapping[str, str] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()

    def choose(self, name: str | None = None) -> str:
        """Return the name of one activation.

        Args:
            name: Name of the bean, needed where there are several.

        Raises:
            ConfigurationError: There is none, none of that name, or several to choose from.
        """
        found = self.activations
        if name is not None and name not in found:
            raise ConfigurationError(
                f"descriptor: no activation {name!r}, it has: {', '.join(found) or 'none'}"
            )
        if not found:
            raise ConfigurationError(
                "descriptor: it describes a connector only; its values belong into [jmsjca]"
            )
        if name is None and len(found) > 1:
            raise ConfigurationError(
                f"descriptor: several activations, expected the name of one (--name): {', '.join(found)}"
            )
        return name if name is not None else next(iter(found))

    def activation(self, name: str | None = None) -> Mapping[str, str]:
        """Return the fields of one activation; arguments and errors are those of `choose`.

        Raises:
            ConfigurationError: The activation has configuration properties too that no option is named by.
        """
        chosen = self.choose(name)
        if unknown := self.unknown.get(chosen):
            raise ConfigurationError(
                f"activation {chosen!r}: {unknown_field(each, Level.ACTIVATION)}" for each in unknown
            )
        return self.activations[chosen]


def read_descriptor(*texts: str | bytes, titles: Sequence[str] = ()) -> Descriptor:
    """Return what the descriptors say together; those about one bean are joined by its `ejb-name`.

    A whole `ejb-jar.xml` before version 3 that states no transaction attribute for a container-managed bean
    means NotSupported (W21); a piece of one says nothing about it. A durable bean without a name for its
    subscription gives it its own name (W30). A `provider-url` that leads to a JNDI server and to no broker is
    left out. Where a JMS module is among the texts, the redelivery handling is made of what it says of the
    bean's destination, unless the bean says it.

    Args:
        texts: XML; bytes are read in the encoding they declare.
        titles: What errors call the texts, `descriptor` where nothing is said.

    Raises:
        ConfigurationError: A text is no XML, declares entities, or describes nothing.

    Source: J31, J37, W13, W14, W19, W21, W30, P6-P10.
    """
    read = _Read()
    for place, text in enumerate(texts):
        read.take(parse(text, titles[place] if place < len(titles) else "descriptor"))
    for name, fields in read.activations.items():
        read.complete(name, fields)
    if not (read.activations or read.connector or read.factories or read.modules.destinations):
        raise ConfigurationError(
            f"{', '.join(titles) or 'descriptor'}: no activation in it, expected message-driven, "
            "message-driven-descriptor, activation-config, activationspec, config-property, message-sink or "
            "weblogic-jms"
        )
    return Descriptor(
        activations=read.activations,
        unknown={name: tuple(found) for name, found in read.unknown.items() if found},
        notes={name: tuple(found) for name, found in read.notes.items()},
        connector=read.connector,
        connection_factories={
            **read.factories,
            **{name: {"ClientId": client_id} for name, client_id in read.modules.client_ids.items()},
        },
        destinations=read.modules.entries,
        dropped=tuple(path for root in read.roots for path in root.unread()),
    )


@dataclass(slots=True)
class _Read:
    """What was read so far."""

    activations: dict[str, dict[str, str]] = field(default_factory=dict)
    unknown: dict[str, list[str]] = field(default_factory=dict)
    notes: dict[str, list[str]] = field(default_factory=dict)
    connector: dict[str, str] = field(default_factory=dict)
    factories: dict[str, dict[str, str]] = field(default_factory=dict)
    modules: JmsModules = field(default_factory=JmsModules)
    links: dict[str, str] = field(default_factory=dict)
    weblogic: set[str] = field(default_factory=set)
    roots: list[Element] = field(default_factory=list)

    def take(self, root: Element) -> None:
        """Take what a text says."""
        self.roots.append(root)
        for name, fields, unknown in _activations(root):
            self.activations.setdefault(name, {}).update(fields)
            self.unknown.setdefault(name, []).extend(unknown)
            if any(root.find("message-driven-descriptor")):
                self.weblogic.add(name)
        for link in root.find("message-destination-descriptor"):
            self.links[link.value("message-destination-name")] = link.value("destination-jndi-name")
        _read_ra(root, self.connector, self.factories)
        self.modules.read(root)

    def complete(self, name: str, fields: dict[str, str]) -> None:
        """Add what follows from all texts together, and say what has to be known of it."""
        notes = self.notes.setdefault(name, [])
        if fields.get(_LINK) in self.links:
            fields[_LINK] = self.links[fields[_LINK]]
        for option_name, order in _MOST_PARTICULAR.items():
            notes.extend(_keep_one(fields, option_name, order))
        given = {option.name: (key, text) for key, text in fields.items() if (option := option_by_field(key))}
        durability = given.get("subscription_durability", ("", ""))[1].lower()
        if name and durability == "durable" and "subscription_name" not in given:
            fields["subscriptionName"] = name
        url = fields.get("provider-url", "")
        if url and not url.lower().startswith(_TRANSPORTS):
            del fields["provider-url"]
            scheme = url.partition(":")[0]
            notes.append(
                f"provider-url: dropped, {scheme} is no transport; the Airflow connection names the broker"
            )
        looked_up = given.get("connection_url", ("", ""))[1].partition("?")[0]
        if looked_up.lower().startswith(LOOKUP):
            notes.append(
                f"connection_url: {looked_up} is a JNDI name; replace it by lookup:// and the id of your "
                "Airflow connection"
            )
        factory = given.get("jms_conn_id", ("", ""))[1]
        if factory:
            notes.append(
                f"jms_conn_id: {factory} is a JNDI name; replace it by the id of your Airflow connection"
            )
        said = {option.name for key in fields if (option := option_by_field(key) or option_by_key(key))}
        notes.extend(_surprises(given))
        if name in self.weblogic and not (_REDELIVERY & said or self._connector_says("redeliveryhandling")):
            self._redelivery(fields, given, factory, notes)
        if name in self.weblogic and not (
            "concurrency_mode" in said or self._connector_says("concurrencymode")
        ):
            notes.extend(_concurrency(given))

    def _connector_says(self, key: str) -> bool:
        """Tell whether the connector or its Options name this option, which then holds for each bean."""
        return any(key in f"{name}={text}".lower() for name, text in self.connector.items())

    def _redelivery(
        self, fields: dict[str, str], given: Mapping[str, tuple[str, str]], factory: str, notes: list[str]
    ) -> None:
        found = self.modules.handling(given.get("destination", ("", ""))[1].removeprefix(LOOKUP), factory)
        if found is None:
            notes.append(
                "redelivery_handling: not said, a message that always fails comes again for ever; WebLogic "
                "keeps limit, delay and error destination in the JMS module: import its *-jms.xml too"
            )
            return
        handling, note = found
        if handling:
            fields["RedeliveryHandling"] = handling
        if handling.partition(";")[0].removeprefix("1:").isdigit():
            on_topic = "topic" in given.get("destination_type", ("", ""))[1].lower()
            notes.append(
                "redelivery delay: a message that waits holds its place here, in serial all others wait "
                "with it; on WebLogic it waits in the server. "
                + (
                    "On a topic nothing frees it"
                    if on_topic
                    else "Above 5 s, park and use_store free the place"
                )
            )
        if handling.startswith("1:"):
            step = handling.partition(";")[0]
            notes.append(
                "use_store: set it before the first run. Messages that waited in the stopped bean may come "
                f"with the redelivered flag; without a store that counts as a failure, and {step} acts on it"
            )
        if note:
            notes.append(f"redelivery_handling: {note}")


def _keep_one(fields: dict[str, str], name: str, order: Sequence[str]) -> Iterator[str]:
    """Keep the most particular spelling of an option where several differ, and say so."""
    spelled = [key for key in fields if (option := option_by_field(key)) and option.name == name]
    spelled.sort(key=lambda key: order.index(key) if key in order else len(order))
    for other in spelled[1:]:
        if (left_out := fields.pop(other)) != fields[spelled[0]]:
            taken = masked_text(fields[spelled[0]])
            yield f"{name}: {taken} of {spelled[0]} is taken, not {masked_text(left_out)} of {other}"


def _surprises(given: Mapping[str, tuple[str, str]]) -> Iterator[str]:
    """Yield what a bean's own settings do that its owner may not expect."""
    durability, members, attribute = (
        given.get(name, ("", ""))[1].replace("_", "").lower()
        for name in ("subscription_durability", "distributed_destination_connection", "transaction_attribute")
    )
    if durability == "durable" and members == "everymember":
        yield (
            "distributed_destination_connection: with EveryMember the client id gets the host and port of "
            "each member, so the subscription is a new one. Leave the line out for a broker of one host"
        )
    if attribute == "notsupported":
        yield (
            "transaction_attribute: not_supported, which a missing trans-attribute means before EJB 3; what "
            "the function sends leaves at once, also if it fails. With required it leaves with the commit"
        )


def _concurrency(given: Mapping[str, tuple[str, str]]) -> Iterator[str]:
    size = given.get("endpoint_pool_max_size", ("", ""))[1]
    if size == "1":
        return
    at_once = f"up to {size}" if size else "several"
    kind = given.get("destination_type", ("", ""))[1].lower()
    ways = {"queue": "sync does (a session for each)", "topic": "cc does (one session for all)"}
    said = [way for name, way in ways.items() if kind.endswith(name)]
    yield (
        "concurrency_mode: not said, messages are handled one by one; "
        f"WebLogic handles {at_once} at once, as "
        + (said[0] if said else f"{ways['queue']} on a queue and {ways['topic']} on a topic")
        + "; the order is lost then"
    )


def _activations(root: Element) -> Iterator[tuple[str, dict[str, str], list[str]]]:
    attributes = _transaction_attributes(root)
    for bean in root.find("message-driven"):
        yield bean.value("ejb-name"), *_ejb(bean, attributes, root)
    beans = list(root.find("weblogic-enterprise-bean")) or list(root.find("message-driven-descriptor"))
    for bean in beans:
        if bean.tag == "message-driven-descriptor" or any(bean.find("message-driven-descriptor")):
            yield bean.value("ejb-name"), *_leaves(bean)
    for sink in (*root.find("message-sink"), *root.find("message-filter")):
        yield sink.value("nucleus-name"), *_patch_bay(sink)
    named = [bean for bean in root.find("ejb") if any(bean.find("activation-config"))]
    for bean in named:
        for config in bean.find("activation-config"):
            yield bean.value("ejb-name"), *_properties(config)
    if not named and not any(root.find("message-driven")):
        for config in (*root.find("activation-config"), *root.find("activationspec")):
            fields, unknown = _properties(config)
            if fields or unknown:
                yield "", fields, unknown


def _transaction_attributes(root: Element) -> dict[str, tuple[int, str]]:
    """Return the last attribute said for each bean, and for `*`, with its place in the text."""
    return {
        transaction.value("ejb-name"): (place, transaction.value("trans-attribute"))
        for place, transaction in enumerate(root.find("container-transaction"))
    }


def _ejb(
    bean: Element, attributes: Mapping[str, tuple[int, str]], root: Element
) -> tuple[dict[str, str], list[str]]:
    fields, unknown = _leaves(bean)
    if fields.get("transaction-type", "Container").lower() == "container":
        said = [attributes[name] for name in (bean.value("ejb-name"), "*") if name in attributes]
        if said:
            fields["trans-attribute"] = max(said)[1]
        elif root.tag == "ejb-jar" and "transaction-type" in fields and _version(root) < _EJB_3:
            fields["trans-attribute"] = "NotSupported"
    return fields, unknown


def _version(root: Element) -> int:
    """Return the major version of EJB that a descriptor is for; before 2.1 none is said."""
    said = root.attributes.get("version", "").partition(".")[0]
    return int(said) if said.isascii() and said.isdigit() else 0


def _patch_bay(sink: Element) -> tuple[dict[str, str], list[str]]:
    fields: dict[str, str] = {"nucleus-name": sink.value("nucleus-name")}
    inputs = list(sink.find("input-destination"))
    if len(inputs) > 1:
        raise ConfigurationError(
            f"descriptor: message sink {fields['nucleus-name']!r} has {len(inputs)} input destinations, "
            "expected one: give each its own activation"
        )
    if inputs:
        fields.update(_leaves(inputs[0])[0])
    port = fields.get("failure-output-port")
    targets = [
        f"{(output.value('destination-type') or 'Queue').lower()}://"
        f"{output.value('destination-name').removeprefix('patchbay:/')}"
        for redelivery in sink.find("redelivery-port")
        if redelivery.value("port-name") == port
        for output in redelivery.find("output-destination")
    ]
    if targets:
        fields["output-destination"] = ";".join(targets)
    return {name: value for name, value in fields.items() if value}, []


def _leaves(element: Element) -> tuple[dict[str, str], list[str]]:
    """Return an element's options, by tags and in its configuration properties, and unknown properties."""
    fields: dict[str, str] = {}
    referred: dict[str, str] = {}
    unknown: list[str] = []
    taken: dict[str, Element] = {}
    for child in element.children:
        if child.tag == "activation-config":
            found, strange = _properties(child)
            fields.update(found)
            unknown.extend(strange)
        elif child.tag == _SINGLE:
            given = child.taken()
            fields[child.tag] = " ".join(leaf.text.strip() for leaf in child.children) or given
        elif child.tag in _CONTAINERS:
            found, strange = _leaves(child)
            fields.update(found)
            unknown.extend(strange)
        elif child.tag == _REFERENCE and child.glimpse("message-destination-usage").lower() != "produces":
            referred = referred or _leaves(child)[0]
        elif child.tag in _ELEMENTS and not child.children and child.text.strip():
            fields[child.tag] = child.taken()
            _replace(taken, child.tag, child)
    for tag, text in referred.items():
        fields.setdefault(tag, text)
    return fields, unknown


def _replace(taken: dict[str, Element], name: str, element: Element) -> None:
    """Note that the element says what an earlier one of this name said: that one counts as not read."""
    earlier = taken.get(name)
    if earlier is not None and earlier.text.strip() != element.text.strip():
        earlier.read = False
    taken[name] = element


def _properties(element: Element, *, known_only: bool = True) -> tuple[dict[str, str], list[str]]:
    """Return configuration properties, and the names of those that no option is named by.

    Args:
        element: What holds them.
        known_only: Whether those are left out and count as not read.
    """
    fields: dict[str, str] = {}
    unknown: list[str] = []
    taken: dict[str, Element] = {}
    for child in element.children:
        name = child.glimpse(*PROPERTY_NAMES)
        given = next((found for tag in _VALUES for found in child.find(tag)), None)
        if not name or given is None or child.tag not in {"activation-config-property", "config-property"}:
            continue
        spelling = _spelling(name)
        if spelling is None and known_only:
            unknown.append(name)
            continue
        child.value(next(tag for tag in PROPERTY_NAMES if any(child.find(tag))))
        fields[spelling or name] = given.taken()
        _replace(taken, name, given)
    return fields, unknown


def _spelling(name: str) -> str | None:
    """Return the spelling under which an option has this property; WebLogic's elements have two spellings."""
    if name.lower().startswith((_JMSJCA, PARAMETER)) or option_by_key(name):
        return name
    element = _CAMEL.sub("-", name).lower()
    if element in _ELEMENTS and option_by_field(name) is None:
        return element
    return name if option_by_field(name) else None


def _read_ra(root: Element, connector: dict[str, str], factories: dict[str, dict[str, str]]) -> None:
    for adapter in root.find("resourceadapter"):
        connector.update(_properties(adapter, known_only=False)[0])
    for number, definition in enumerate(root.find("connection-definition"), start=1):
        name = definition.value("connectionfactory-interface") or f"connection factory {number}"
        factories[name] = _properties(definition, known_only=False)[0]
