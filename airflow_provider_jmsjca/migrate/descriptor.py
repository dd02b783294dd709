"""Reads activations out of Java deployment descriptors, so that they can move here.

Read are `ejb-jar.xml`, `weblogic-ejb-jar.xml`, `weblogic-application.xml`, `sun-ejb-jar.xml`,
`glassfish-ejb-jar.xml`, `ra.xml`, Patch Bay configuration files and JMS modules of WebLogic, whole or a piece
with one root element.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from airflow_provider_jmsjca.core.activation import ActivationSpec
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
from airflow_provider_jmsjca.migrate.elements import CONNECTOR, PROPERTY_NAMES, Element, parse
from airflow_provider_jmsjca.migrate.jms_module import JmsModules

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
_GLASSFISH = {
    spelling for option in OPTIONS for family, spelling in option.spellings() if family is Family.GLASSFISH
}
_OWN_ADAPTER = "jmsra"
"""GlassFish's own resource adapter, which `jndi-name` of a bean is for."""
_DESTINATION_PROPERTIES = "destinationproperties"
_NAME_AT_THE_BROKER = {"physicalname", "imqdestinationname"}
"""Keys of the generic resource adapter's `DestinationProperties`, by ActiveMQ and by Open MQ."""
_GLASSFISH_CONTAINERS = {"bean-pool", "mdb-resource-adapter"}
_GLASSFISH_BEAN = {
    "mdb-connection-factory",
    "mdb-resource-adapter",
    "jms-durable-subscription-name",
    "jms-max-messages-load",
}
"""Elements of an `ejb` that only message-driven beans have."""
_ZERO = {"max-pool-size": "", "resize-quantity": "", "pool-idle-timeout-in-seconds": "-1"}
"""What 0 in GlassFish, no limit, is here; empty: the line is left out."""
_COMMON = {
    "security-role-assignment": "security-role-assignment",
    "run-as-role-assignment": "run-as-principal-name",
    "security-role-mapping": "security-role-mapping",
    "start-mdbs-with-application": "start-mdbs-with-application",
}
"""Elements outside of beans, which concern all of them, and the spellings of their options."""
_SINGLE = "timer-descriptor"
_LINK = "message-destination-link"
_MOST_PARTICULAR = {
    "destination": (
        "destination-jndi-name",
        "destination-resource-link",
        "jndi-name",
        "destinationLookup",
        _LINK,
    ),
    "jms_conn_id": (
        "connection-factory-jndi-name",
        "connection-factory-resource-link",
        "mdb-connection-factory",
    ),
    "subscription_name": ("jms-durable-subscription-name",),
    "endpoint_pool_max_size": ("endpointPoolMaxSize", "max-beans-in-free-pool", "max-pool-size"),
    "endpoint_pool_steady_size": (
        "endpointPoolSteadySize",
        "initial-beans-in-free-pool",
        "steady-pool-size",
    ),
    "pool_idle_timeout": ("idle-timeout-seconds", "pool-idle-timeout-in-seconds"),
    "transaction_timeout": ("trans-timeout-seconds", "cmt-timeout-in-seconds"),
    "dispatch_policy": ("dispatch-policy", "use-thread-pool-id"),
    "resource_adapter": ("resource-adapter-jndi-name", "resource-adapter-mid"),
}
"""Spellings of one option, by descriptors that may differ.

The server's own comes before the standard's, and the pool of the adapter that delivers before the server's.
"""
_REFERENCE = "message-destination-ref"
_JMSJCA = "jmsjca."
_REDELIVERY = {"redelivery_handling", *PATCH_BAY, *CLIENT_PROPERTIES}
_TRANSPORTS = ("stomp:", "stomp+ssl:", "vm:", "failover:", LOOKUP)
"""What a provider-url begins with that names a broker and no JNDI server."""
_EJB_3 = 3
_OF_ATG = ("localdms:", "sqldms:")
"""What destinations of Patch Bay's two own providers begin with."""
_DEFAULT_PORT = "DEFAULT"
"""Name of an input port that names none."""
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
    bean's destination, unless the bean says it. `jndi-name` in a file of GlassFish is the destination of a
    bean that any of the texts shows to be message-driven, unless the bean names a resource adapter.

    Args:
        texts: XML; bytes are read in the encoding they declare.
        titles: What errors call the texts, `descriptor` where nothing is said.

    Raises:
        ConfigurationError: A text is no XML, declares entities, or describes nothing.

    Source: J31, J37, W13, W14, W19, W21, W30, P6-P10.
    """
    roots = [
        parse(text, titles[place] if place < len(titles) else "descriptor")
        for place, text in enumerate(texts)
    ]
    read = _Read(roots=roots, beans=_message_driven(roots))
    for root in roots:
        read.take(root)
    read.take_sinks()
    for name, fields in read.activations.items():
        read.complete(name, fields)
    if not (read.activations or read.connector or read.factories or read.modules.entries):
        raise ConfigurationError(
            f"{', '.join(titles) or 'descriptor'}: no activation in it, expected message-driven, "
            "message-driven-descriptor, ejb of a message-driven bean, activation-config, activationspec, "
            "config-property, message-sink or weblogic-jms"
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
        destinations={**read.modules.entries, **read.destinations},
        dropped=tuple(path for root in read.roots for path in (*root.unread(), *_of_every_connector(root))),
    )


def spec_of(
    descriptor: Descriptor, name: str | None = None, *, below: Mapping[str, str] | None = None
) -> ActivationSpec:
    """Return an activation of a descriptor, without its unknown properties.

    Args:
        descriptor: The result of `read_descriptor`.
        name: Name of the bean, needed where there are several.
        below: Values of fields that the descriptor doesn't set.

    Raises:
        ConfigurationError: There is none, or several; or as for `ActivationSpec`, with the bean's name.
    """
    chosen = descriptor.choose(name)
    try:
        return ActivationSpec(**{**(below or {}), **descriptor.activations[chosen]})
    except ConfigurationError as error:
        title = f"activation {chosen!r}: " if chosen else ""
        raise ConfigurationError(f"{title}{fault}" for fault in error.faults) from None


def _of_every_connector(root: Element) -> Iterator[str]:
    tags = dict.fromkeys(
        found.tag for tag in sorted(CONNECTOR) for found in root.find(tag) if found.text.strip()
    )
    if root.tag == "connector" and tags:
        yield f"{root.tag} > {', '.join(tags)}: what product it is, not how messages are delivered"


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
    destinations: dict[str, str] = field(default_factory=dict)
    common: dict[str, None] = field(default_factory=dict)
    weblogic: set[str] = field(default_factory=set)
    glassfish: set[str] = field(default_factory=set)
    roots: list[Element] = field(default_factory=list)
    beans: set[str] = field(default_factory=set)

    def take(self, root: Element) -> None:
        """Take what a text says."""
        for name, fields, unknown in _activations(root, self.beans):
            self.activations.setdefault(name, {}).update(fields)
            self.unknown.setdefault(name, []).extend(unknown)
            if any(_weblogic_beans(root, self.beans)):
                self.weblogic.add(name)
        for name, fields, unknown in _glassfish_beans(root, self.beans):
            self.activations.setdefault(name, {}).update(fields)
            self.unknown.setdefault(name, []).extend(unknown)
            self.glassfish.add(name)
        self._read_links(root)
        for tag, spelling in _COMMON.items():
            for found in _outside_of_beans(root, tag):
                found.taken()
                if option := option_by_field(spelling):
                    self.common[f"{option.name}: {option.status}"] = None
        _read_ra(root, self.connector, self.factories)
        self.modules.read(root)

    def take_sinks(self) -> None:
        """Take Patch Bay's message sinks and filters, each of what all texts say of it."""
        sinks: dict[str, list[Element]] = {}
        for root in self.roots:
            for sink in (*root.find("message-sink"), *root.find("message-filter")):
                sinks.setdefault(sink.glimpse("nucleus-name"), []).append(sink)
        for elements in sinks.values():
            for name, fields in _patch_bay(elements):
                self.activations.setdefault(name, {}).update(fields)

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
        spelling, factory = given.get("jms_conn_id", ("", ""))
        if factory and spelling != "jms_conn_id":
            notes.append(
                f"jms_conn_id: {factory} is a JNDI name; replace it by the id of your Airflow connection"
            )
        said = {option.name for key in fields if (option := option_by_field(key) or option_by_key(key))}
        notes.extend(_surprises(given))
        named = given.get("destination", ("", ""))
        if named[0] == "destination-name" and named[1].startswith(_OF_ATG):
            notes.append(
                f"destination: {named[1]} is a name of ATG's own JMS. Here it is that of a "
                "destination at your broker; replace it unless that one has the same name"
            )
        destination = given.get("destination", ("", ""))[1].removeprefix(LOOKUP)
        if address := self.modules.address(destination):
            self.destinations[destination] = address
        self._delivery(name, fields, given, destination, said)
        notes.extend(self.common)

    def _delivery(
        self,
        name: str,
        fields: dict[str, str],
        given: Mapping[str, tuple[str, str]],
        destination: str,
        said: Collection[str],
    ) -> None:
        """Add the redelivery handling, and say what holds here where the bean says nothing."""
        notes = self.notes[name]
        server = "WebLogic" if name in self.weblogic else "GlassFish" if name in self.glassfish else ""
        if not (_REDELIVERY.intersection(said) or self._connector_says("redeliveryhandling")):
            if name in self.weblogic or self.modules.know(destination):
                self._redelivery(fields, given, destination, notes)
            elif server:
                notes.append(
                    "redelivery_handling: not said, a message that always fails comes again for ever here. "
                    "What GlassFish does with it is a setting of its resource adapter and of the broker"
                )
        if server and not ("concurrency_mode" in said or self._connector_says("concurrencymode")):
            notes.extend(_concurrency(server, given))

    def _read_links(self, root: Element) -> None:
        """Take the JNDI names of logical destinations: WebLogic's and GlassFish's."""
        for link in root.find("message-destination-descriptor"):
            tags = ("destination-jndi-name", "destination-resource-link")
            tag = next((each for each in tags if link.glimpse(each)), None)
            if tag is not None:
                self.links[link.value("message-destination-name")] = link.value(tag)
        for link in root.find("message-destination"):
            tag = next(
                (each for each in ("jndi-name", "lookup-name", "mapped-name") if link.glimpse(each)), None
            )
            if tag is not None:
                self.links[link.value("message-destination-name")] = link.value(tag)

    def _connector_says(self, key: str) -> bool:
        """Tell whether the connector or its Options name this option, which then holds for each bean."""
        return any(key in f"{name}={text}".lower() for name, text in self.connector.items())

    def _redelivery(
        self,
        fields: dict[str, str],
        given: Mapping[str, tuple[str, str]],
        destination: str,
        notes: list[str],
    ) -> None:
        found = self.modules.handling(destination, given.get("jms_conn_id", ("", ""))[1])
        if found is None:
            notes.append(
                "redelivery_handling: not said, a message that always fails comes again for ever here. "
                "WebLogic keeps limit, delay and error destination in JMS modules: import its *-jms.xml too"
            )
            return
        handling, module_notes = found
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
        notes.extend(f"redelivery_handling: {note}" for note in module_notes)


def _keep_one(fields: dict[str, str], name: str, order: Sequence[str]) -> Iterator[str]:
    """Keep the most particular spelling of an option where several differ, and say so."""
    spelled = [key for key in fields if (option := option_by_field(key)) and option.name == name]
    places = {spelling.lower(): place for place, spelling in enumerate(order)}
    spelled.sort(key=lambda key: places.get(key.lower(), len(places)))
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


def _concurrency(server: str, given: Mapping[str, tuple[str, str]]) -> Iterator[str]:
    size = given.get("endpoint_pool_max_size", ("", ""))[1]
    if size == "1":
        return
    at_once = f"up to {size}" if size else "several"
    kind = given.get("destination_type", ("", ""))[1].lower()
    ways = {"queue": "sync does (a session for each)", "topic": "cc does (one session for all)"}
    said = [way for name, way in ways.items() if kind.endswith(name)]
    yield (
        "concurrency_mode: not said, messages are handled one by one; "
        f"{server} may handle {at_once} at once, as "
        + (said[0] if said else f"{ways['queue']} on a queue and {ways['topic']} on a topic")
        + "; the order is lost then"
    )


def _weblogic_beans(root: Element, beans: Collection[str]) -> Iterator[Element]:
    """Yield the message-driven beans of a `weblogic-ejb-jar.xml`, or of a piece of one.

    Args:
        root: The text.
        beans: Names of the message-driven beans of all texts: one may have no `message-driven-descriptor`.
    """
    found = list(root.find("weblogic-enterprise-bean"))
    for bean in found or root.find("message-driven-descriptor"):
        if any(bean.find("message-driven-descriptor")) or bean.glimpse("ejb-name") in beans:
            yield bean


def _activations(root: Element, beans: Collection[str]) -> Iterator[tuple[str, dict[str, str], list[str]]]:
    attributes = _transaction_attributes(root)
    for bean in root.find("message-driven"):
        yield bean.value("ejb-name"), *_ejb(bean, attributes, root)
    for bean in _weblogic_beans(root, beans):
        fields, unknown = _leaves(bean)
        if fields.get("idle-timeout-seconds") == "0":
            fields["idle-timeout-seconds"] = "-1"  # no limit
        yield bean.value("ejb-name"), fields, unknown
    if not any(root.find("message-driven")) and not any(map(_is_glassfish_bean, root.find("ejb"))):
        for config in (*root.find("activation-config"), *root.find("activationspec")):
            fields, unknown = _properties(config)
            if fields or unknown:
                yield "", fields, unknown


def _message_driven(roots: Sequence[Element]) -> set[str]:
    """Return the names of the message-driven beans of all texts."""
    names = {bean.glimpse("ejb-name") for root in roots for bean in root.find("message-driven")}
    return names | {
        bean.glimpse("ejb-name")
        for root in roots
        for bean in root.find("weblogic-enterprise-bean")
        if any(bean.find("message-driven-descriptor"))
    }


def _is_glassfish_bean(bean: Element) -> bool:
    return any(child.tag in _GLASSFISH_BEAN for child in bean.children)


def _glassfish_beans(
    root: Element, beans: Collection[str]
) -> Iterator[tuple[str, dict[str, str], list[str]]]:
    """Yield the message-driven beans of a `sun-ejb-jar.xml` or `glassfish-ejb-jar.xml`.

    Args:
        root: The text.
        beans: Names of the message-driven beans of all texts. A bean that isn't among them counts if it has
            an element that only message-driven beans have: `jndi-name` of other beans is their own name.
    """
    for bean in root.find("ejb"):
        name = next((child.text.strip() for child in bean.children if child.tag == "ejb-name"), "")
        if not (_is_glassfish_bean(bean) or (name and name in beans)):
            continue
        fields, unknown = _leaves(bean, _GLASSFISH, _GLASSFISH_CONTAINERS)
        for child in bean.children:
            if child.tag == "mdb-connection-factory" and (factory := child.value("jndi-name")):
                fields[child.tag] = factory
        if fields.get("resource-adapter-mid", _OWN_ADAPTER) != _OWN_ADAPTER:
            # The name is the bean's own then: the adapter's properties say what to consume.
            fields.pop("jndi-name", None)
            if name_there := _named_by_generic_adapter(bean):
                fields.setdefault("destination", name_there)
        for tag, instead in _ZERO.items():
            if fields.get(tag) == "0":
                fields[tag] = instead
        yield bean.value("ejb-name"), {tag: text for tag, text in fields.items() if text}, unknown


def _named_by_generic_adapter(bean: Element) -> str:
    """Return the destination's name in `DestinationProperties`, pairs that commas separate; else nothing."""
    for found in bean.find("activation-config-property"):
        if found.glimpse(PROPERTY_NAMES[0]).lower() == _DESTINATION_PROPERTIES:
            for pair in found.glimpse(_VALUES[0]).split(","):
                key, _, value = pair.partition("=")
                if key.strip().lower() in _NAME_AT_THE_BROKER:
                    return value.strip()
    return ""


def _outside_of_beans(root: Element, tag: str) -> Iterator[Element]:
    """Yield the elements with the tag that aren't part of a bean."""
    if root.tag == tag:
        yield root
    for child in root.children:
        if child.tag != "weblogic-enterprise-bean":
            yield from _outside_of_beans(child, tag)


def _transaction_attributes(root: Element) -> dict[str, tuple[bool, int, str]]:
    """Return the attribute of each bean, and of `*`: whether it is for `onMessage`, its place, and the value.

    The greatest holds: a method that is named goes before all methods, and the last word before the others.
    """
    found: dict[str, tuple[bool, int, str]] = {}
    for place, transaction in enumerate(root.find("container-transaction")):
        attribute = transaction.value("trans-attribute")
        for method in transaction.find("method"):
            bean, name = method.value("ejb-name"), method.glimpse("method-name")
            named = name.startswith("onMessage")
            if named or name in {"", "*"}:
                found[bean] = max(found.get(bean, (False, -1, "")), (named, place, attribute))
    return found


def _ejb(
    bean: Element, attributes: Mapping[str, tuple[bool, int, str]], root: Element
) -> tuple[dict[str, str], list[str]]:
    fields, unknown = _leaves(bean)
    if fields.get("transaction-type", "Container").lower() == "container":
        said = [attributes[name] for name in (bean.value("ejb-name"), "*") if name in attributes]
        if said:
            fields["trans-attribute"] = max(said)[2]
        elif root.tag == "ejb-jar" and "transaction-type" in fields and _version(root) < _EJB_3:
            fields["trans-attribute"] = "NotSupported"
    return fields, unknown


def _version(root: Element) -> int:
    """Return the major version of EJB that a descriptor is for; before 2.1 none is said."""
    said = root.attributes.get("version", "").partition(".")[0]
    return int(said) if said.isascii() and said.isdigit() else 0


def _patch_bay(sinks: Sequence[Element]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield an activation for each input destination of a message sink or filter.

    One input has the name of the sink. Of several each has its port's name too, `/a/Sink > PORT`, and where
    that isn't enough the name of the destination.

    Args:
        sinks: The elements about one sink: Patch Bay combines those of all its files.
    """
    sink_name = sinks[0].value("nucleus-name")
    inputs = {
        (port, found.glimpse("destination-name")): found for sink in sinks for port, found in _inputs(sink)
    }
    ports = Counter(port for port, _ in inputs)
    if not inputs:
        yield sink_name, {"nucleus-name": sink_name} if sink_name else {}
    for (port, destination), found in inputs.items():
        several = len(inputs) > 1
        parts = (sink_name, port if several else "", destination if ports[port] > 1 else "")
        name = " > ".join(filter(None, parts))
        fields = {"nucleus-name": name, **_leaves(found)[0]}
        targets = _failure_targets(sinks, fields.get("failure-output-port", ""))
        fields["output-destination"] = ";".join(targets)
        fields.update(_limbo(fields))
        yield name, {spelling: value for spelling, value in fields.items() if value}


def _inputs(sink: Element) -> Iterator[tuple[str, Element]]:
    """Yield the input destinations of a sink, each with the name of its port."""
    ports = list(sink.find("input-port"))
    for port in ports:
        for found in port.find("input-destination"):
            yield port.value("port-name") or _DEFAULT_PORT, found
    if not ports:
        yield from ((_DEFAULT_PORT, found) for found in sink.find("input-destination"))


def _limbo(fields: Mapping[str, str]) -> dict[str, str]:
    """Return the options that redeliver by way of limbo, as Patch Bay does. Source: P12, P13, P16.

    Without a durable subscription no broker keeps a topic's messages over a restart, and limbo is refused.
    """
    limited = fields.get("max-attempts") or fields.get("delay")
    lasting = fields.get("durable-subscriber-name") or fields.get("destination-type", "").lower() != "topic"
    return {"use_store": "true", "park": "true"} if limited and lasting else {}


def _failure_targets(sinks: Sequence[Element], port: str) -> Iterator[str]:
    """Yield the destinations of a redelivery port of the sink."""
    for redelivery in (each for sink in sinks for each in sink.find("redelivery-port")):
        if port and redelivery.value("port-name") == port:
            for output in redelivery.find("output-destination"):
                kind = (output.value("destination-type") or "Queue").lower()
                yield f"{kind}://{output.value('destination-name').removeprefix('patchbay:/')}"


def _leaves(
    element: Element, elements: Collection[str] = _ELEMENTS, containers: Collection[str] = _CONTAINERS
) -> tuple[dict[str, str], list[str]]:
    """Return an element's options, by tags and in its configuration properties, and unknown properties.

    Args:
        element: A bean, or a destination.
        elements: Tags of options.
        containers: Tags of elements whose own elements are options too.
    """
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
        elif child.tag in containers:
            found, strange = _leaves(child, elements, containers)
            fields.update(found)
            unknown.extend(strange)
        elif (
            child.tag == _REFERENCE
            and elements is _ELEMENTS
            and child.glimpse("message-destination-usage").lower() != "produces"
        ):
            referred = referred or _leaves(child)[0]
        elif (child.tag in elements or child.tag == "ejb-name") and not child.children and child.text.strip():
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
        if not name or child.tag not in {"activation-config-property", "config-property"}:
            continue
        spelling = _spelling(name)
        option = option_by_field(spelling) if spelling else None
        if given is None or not (given.text.strip() or (option is not None and option.blank_counts)):
            child.taken()  # a property without a value says nothing
            continue
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
