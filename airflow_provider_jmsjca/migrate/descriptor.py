"""Reads activations from Java deployment descriptors, to migrate them to this package.

Supports `ejb-jar.xml`, `weblogic-ejb-jar.xml`, `weblogic-application.xml`, `sun-ejb-jar.xml`,
`glassfish-ejb-jar.xml`, `ra.xml`, WebLogic JMS modules, and the configuration of Patch Bay and of WBIA
connectors. Each text is a whole file, or a fragment with one root element.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from airflow_provider_jmsjca.core.activation import ActivationSpec
from airflow_provider_jmsjca.core.configuration.administered import LOOKUP
from airflow_provider_jmsjca.core.configuration.overruling import ATTEMPTS, CLIENT_PROPERTIES
from airflow_provider_jmsjca.core.masking import masked_text
from airflow_provider_jmsjca.core.options import (
    OPTIONS,
    PARAMETER,
    Family,
    Level,
    option_by_field,
    option_by_key,
    read_properties,
    unknown_field,
)
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.migrate.elements import CONNECTOR, PROPERTY_NAMES, Element, parse
from airflow_provider_jmsjca.migrate.jms_module import JmsModules
from airflow_provider_jmsjca.migrate.patch_bay import is_manager_property, read_sinks
from airflow_provider_jmsjca.migrate.wbia import (
    INPUT,
    is_connector_property,
    properties_of,
    read_connector,
)

_VALUES = ("activation-config-property-value", "config-property-value")
_CONTAINERS = {
    "message-driven-destination",
    "message-driven-descriptor",
    "pool",
    "transaction-descriptor",
}
"""Elements of a bean that contain its options; other nested elements are unrelated."""
_ELEMENTS = {
    spelling
    for option in OPTIONS
    for family, spelling in option.spellings()
    if family in {Family.EJB, Family.WEBLOGIC}
}
_GLASSFISH = {
    spelling for option in OPTIONS for family, spelling in option.spellings() if family is Family.GLASSFISH
}
_OWN_ADAPTER = "jmsra"
"""GlassFish's own resource adapter; only with this adapter is `jndi-name` a bean's destination."""
_DESTINATION_PROPERTIES = "destinationproperties"
_NAME_AT_THE_BROKER = {"physicalname", "imqdestinationname"}
"""Keys in the generic resource adapter's `DestinationProperties`, for ActiveMQ and for Open MQ."""
_GLASSFISH_CONTAINERS = {"bean-pool", "mdb-resource-adapter"}
_GLASSFISH_BEAN = {
    "mdb-connection-factory",
    "mdb-resource-adapter",
    "jms-durable-subscription-name",
    "jms-max-messages-load",
}
"""Elements of an `ejb` that only message-driven beans have."""
_ZERO = {"max-pool-size": "", "resize-quantity": "", "pool-idle-timeout-in-seconds": "-1"}
"""Replacements for 0, which means no limit in GlassFish; an empty replacement drops the option."""
_COMMON = {
    "security-role-assignment": "security-role-assignment",
    "run-as-role-assignment": "run-as-principal-name",
    "security-role-mapping": "security-role-mapping",
    "start-mdbs-with-application": "start-mdbs-with-application",
}
"""Elements outside beans that apply to every bean, and the spellings of their options."""
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
"""Spellings of one option in order of precedence, for descriptors that disagree.

The server's own spelling beats the standard one, and the delivering adapter's pool beats the server's.
"""
_REFERENCE = "message-destination-ref"
_JMSJCA = "jmsjca."
_REDELIVERY = {"redelivery_handling", *ATTEMPTS, *CLIENT_PROPERTIES}
_TRANSPORTS = ("stomp:", "stomp+ssl:", "vm:", "failover:", LOOKUP)
"""Prefixes of a `provider-url` that names a broker instead of a JNDI server."""
_EJB_3 = 3
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptor:
    """Contents of deployment descriptors, under their original spellings.

    Attributes:
        activations: Fields of each activation, by the bean's name, which is empty for a nameless bean.
        unknown: Names of the configuration properties of each activation that match no option.
        notes: Migration notes for each activation, one sentence each.
        connector: Fields of the resource adapter, from `ra.xml`.
        connection_factories: Fields of each connection factory, by its interface or JNDI name.
        destinations: Destinations of JMS modules, as `queue://name`, by JNDI name.
        dropped: Paths of elements whose content was not read; the content itself is not shown. After some
            paths, the element's replacement in this package follows.
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
            name: Name of the bean; required if there are several.

        Raises:
            ConfigurationError: The descriptor has no activation, none of this name, or several and `name` is
                `None`.
        """
        found = self.activations
        if name is not None and name not in found:
            raise ConfigurationError(
                f"descriptor: no activation {name!r}, it has: {', '.join(found) or 'none'}"
            )
        if not found:
            raise ConfigurationError(
                "descriptor: it has no activation, only a connector; put its values into [jmsjca]"
            )
        if name is None and len(found) > 1:
            raise ConfigurationError(
                f"descriptor: several activations, expected the name of one (--name): {', '.join(found)}"
            )
        return name if name is not None else next(iter(found))

    def activation(self, name: str | None = None) -> Mapping[str, str]:
        """Return the fields of one activation; arguments and errors are those of `choose`.

        Raises:
            ConfigurationError: The activation also has configuration properties that match no option.
        """
        chosen = self.choose(name)
        if unknown := self.unknown.get(chosen):
            raise ConfigurationError(
                f"activation {chosen!r}: {unknown_field(each, Level.ACTIVATION)}" for each in unknown
            )
        return self.activations[chosen]


def read_descriptor(
    *texts: str | bytes, titles: Sequence[str] = (), properties: Mapping[str, str] = MappingProxyType({})
) -> Descriptor:
    """Return the merged contents of descriptors; entries for one bean are joined by its `ejb-name`.

    The fields of an activation follow these rules:

    * If a complete `ejb-jar.xml` before version 3 has a container-managed bean without a transaction
      attribute, NotSupported applies. A fragment implies no attribute.
    * A durable bean without a subscription name uses its own name.
    * A `provider-url` that points to a JNDI server instead of a broker is dropped.
    * The settings of a JMS module for the bean's destination determine the redelivery handling, unless the
      bean sets it.
    * In a GlassFish file, `jndi-name` is the destination of a message-driven bean, unless the bean names a
      resource adapter. Any of the texts may show that a bean is message-driven.

    Args:
        texts: XML; bytes are decoded with their declared encoding.
        titles: Names of the texts in error messages; `descriptor` for each text without a title.
        properties: Texts of Java properties files by their names: of a WBIA connector, or of Patch Bay's
            `MessagingManager`.

    Raises:
        ConfigurationError: A text is not XML, is too long or too deeply nested, or declares entities. Or a
            line of the properties is invalid. Or no activation, connector or destination was found.

    Source: J31, J37, W13, W14, W19, W21, W30.
    """
    roots = [
        parse(text, titles[place] if place < len(titles) else "descriptor")
        for place, text in enumerate(texts)
    ]
    read = _Read(roots=roots, beans=_message_driven(roots))
    for root in roots:
        read.take(root)
    for title, text in properties.items():
        try:
            read.take_properties(title, read_properties(text))
        except ConfigurationError as error:
            raise ConfigurationError(
                f"{title}: {fault.removeprefix('options, ')}" for fault in error.faults
            ) from None
    read.take_sinks()
    for name, fields in read.activations.items():
        read.complete(name, fields)
    if not (read.activations or read.connector or read.factories or read.modules.entries):
        raise ConfigurationError(
            f"{', '.join((*titles, *properties)) or 'descriptor'}: no activation found; expected "
            "message-driven, message-driven-descriptor, ejb of a message-driven bean, activation-config, "
            "activationspec, config-property, message-sink, weblogic-jms or InputDestination"
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
        dropped=(
            *(path for root in read.roots for path in (*root.unread(), *_of_every_connector(root))),
            *read.dropped,
        ),
    )


def spec_of(descriptor: Descriptor, name: str | None = None) -> ActivationSpec:
    """Return an activation of a descriptor, without its unknown properties.

    Args:
        descriptor: The result of `read_descriptor`.
        name: Name of the bean; required if there are several.

    Raises:
        ConfigurationError: As for `Descriptor.choose`; or as for `ActivationSpec`, with the bean's name.
    """
    chosen = descriptor.choose(name)
    try:
        return ActivationSpec(**descriptor.activations[chosen])
    except ConfigurationError as error:
        title = f"activation {chosen!r}: " if chosen else ""
        raise ConfigurationError(f"{title}{fault}" for fault in error.faults) from None


def _of_every_connector(root: Element) -> Iterator[str]:
    tags = dict.fromkeys(
        found.tag for tag in sorted(CONNECTOR) for found in root.find(tag) if found.text.strip()
    )
    if root.tag == "connector" and tags:
        yield f"{root.tag} > {', '.join(tags)}: describes the product, not message delivery"


@dataclass(slots=True)
class _Read:
    """Contents read so far."""

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
    manager: dict[str, str] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)

    def take(self, root: Element) -> None:
        """Read the contents of a text."""
        is_weblogic = any(_weblogic_beans(root, self.beans))
        for name, fields, unknown in _activations(root, self.beans):
            self.activations.setdefault(name, {}).update(fields)
            self.unknown.setdefault(name, []).extend(unknown)
            if is_weblogic:
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
        if connector := properties_of(root):
            self.take_properties(root.tag, connector)
        _read_ra(root, self.connector, self.factories)
        self.modules.read(root)

    def take_properties(self, title: str, given: Mapping[str, str]) -> None:
        """Read the properties of a WBIA connector, or of Patch Bay's `MessagingManager`."""
        is_read = is_manager_property
        if INPUT in given:
            is_read = is_connector_property
            self._add(*read_connector(given))
        else:
            self.manager.update(given)
        if ignored := [name for name in given if not is_read(name)]:
            self.dropped.append(f"{title} > {', '.join(ignored)}")

    def take_sinks(self) -> None:
        """Read Patch Bay's message sinks and filters, each merged from all texts."""
        for found in read_sinks(self.roots, self.manager):
            self._add(*found)

    def _add(self, name: str, fields: Mapping[str, str], notes: Sequence[str]) -> None:
        self.activations.setdefault(name, {}).update(fields)
        self.notes.setdefault(name, []).extend(notes)

    def complete(self, name: str, fields: dict[str, str]) -> None:
        """Complete an activation after all texts have been read, and add its migration notes.

        Only then are some values known. For example, one text links a bean to a destination that another
        text defines.

        Args:
            name: Name of the bean.
            fields: Texts of the activation, by their spelling in the descriptors. They are changed in place.
        """
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
                f"provider-url: dropped, {scheme} is not a supported transport; the Airflow "
                "connection names the broker"
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
        """Add a redelivery handling and migration notes for a bean that doesn't set them itself.

        If neither the bean nor the resource adapter sets them, redelivery and concurrency depended on the
        application server and its JMS modules.

        Args:
            name: Name of the bean.
            fields: Texts of the activation, by their spelling in the descriptors. A redelivery handling is
                added to them.
            given: For each field that sets an option, by the option's name: its spelling and its text. Keys
                within a text are not included.
            destination: JNDI name of the bean's destination.
            said: Names of the options in `given`, and of those that the bean sets by keys.
        """
        notes = self.notes[name]
        server = "WebLogic" if name in self.weblogic else "GlassFish" if name in self.glassfish else ""
        if not (_REDELIVERY.intersection(said) or self._connector_says("redeliveryhandling")):
            if name in self.weblogic or self.modules.know(destination):
                self._redelivery(fields, given, destination, notes)
            elif server:
                notes.append(
                    "redelivery_handling: not set; a message that always fails is redelivered "
                    "endlessly here. "
                    "What GlassFish does with it is a setting of its resource adapter and of the broker"
                )
        if server and not ("concurrency_mode" in said or self._connector_says("concurrencymode")):
            notes.extend(_concurrency(server, given))

    def _read_links(self, root: Element) -> None:
        """Read the JNDI names of logical destinations from a descriptor of WebLogic or GlassFish."""
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
        """Return whether the resource adapter sets this option for every bean, perhaps in its `Options`."""
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
                "redelivery_handling: not set; a message that always fails is redelivered endlessly here. "
                "WebLogic keeps limit, delay and error destination in JMS modules: import its *-jms.xml too"
            )
            return
        handling, module_notes = found
        if handling:
            fields["RedeliveryHandling"] = handling
        if handling.partition(";")[0].removeprefix("1:").isdigit():
            on_topic = "topic" in given.get("destination_type", ("", ""))[1].lower()
            notes.append(
                "redelivery delay: a delayed message occupies a handler here, and in serial mode it holds up "
                "all others; on WebLogic it waits in the server. "
                + (
                    "On a topic no option avoids this"
                    if on_topic
                    else "Above 5 s, non_blocking_redelivery and use_store avoid this"
                )
            )
        if handling.startswith("1:"):
            step = handling.partition(";")[0]
            notes.append(
                "use_store: set it before the first run. Messages that waited in the stopped bean may come "
                f"with the redelivered flag; without a store that counts as a failure, to which {step} "
                "applies"
            )
        notes.extend(f"redelivery_handling: {note}" for note in module_notes)


def _keep_one(fields: dict[str, str], name: str, order: Sequence[str]) -> Iterator[str]:
    """Keep one spelling of an option, drop the others, and yield a note for each other value dropped.

    Args:
        fields: Fields of an activation; the dropped spellings are removed from them.
        name: Name of the option.
        order: Spellings of the option; the first one that the fields have is kept.
    """
    spelled = [key for key in fields if (option := option_by_field(key)) and option.name == name]
    places = {spelling.lower(): place for place, spelling in enumerate(order)}
    spelled.sort(key=lambda key: places.get(key.lower(), len(places)))
    for other in spelled[1:]:
        if (left_out := fields.pop(other)) != fields[spelled[0]]:
            taken = masked_text(fields[spelled[0]])
            yield f"{name}: using {taken} of {spelled[0]}, not {masked_text(left_out)} of {other}"


def _surprises(given: Mapping[str, tuple[str, str]]) -> Iterator[str]:
    """Yield notes on settings of a bean that have unexpected effects in this package.

    Args:
        given: Spelling and text of each option of the bean, by the option's name.
    """
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
        "concurrency_mode: not set; messages are handled one at a time, while "
        f"{server} may handle {at_once} at once, as "
        + (said[0] if said else f"{ways['queue']} on a queue and {ways['topic']} on a topic")
        + "; messages are then out of order"
    )


def _weblogic_beans(root: Element, beans: Collection[str]) -> Iterator[Element]:
    """Yield the message-driven beans of a `weblogic-ejb-jar.xml`, or of a fragment of one.

    Args:
        root: Root element of the text.
        beans: Names of the message-driven beans in all texts. A bean without a `message-driven-descriptor` is
            recognised by its name.
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
            fields["idle-timeout-seconds"] = "-1"  # 0 means no limit in WebLogic, and -1 in this package
        yield bean.value("ejb-name"), fields, unknown
    if not any(root.find("message-driven")) and not any(map(_is_glassfish_bean, root.find("ejb"))):
        for config in (*root.find("activation-config"), *root.find("activationspec")):
            fields, unknown = _properties(config)
            if fields or unknown:
                yield "", fields, unknown


def _message_driven(roots: Sequence[Element]) -> set[str]:
    """Return the names of the message-driven beans in all texts."""
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
        root: Root element of the text.
        beans: Names of the message-driven beans in all texts. A bean that is not listed counts if it has an
            element that only message-driven beans have. The `jndi-name` of other beans is their own name.
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
            # Here `jndi-name` is the bean's own name; the adapter's properties hold the destination.
            fields.pop("jndi-name", None)
            if name_there := _named_by_generic_adapter(bean):
                fields.setdefault("destination", name_there)
        for tag, instead in _ZERO.items():
            if fields.get(tag) == "0":
                fields[tag] = instead
        yield bean.value("ejb-name"), {tag: text for tag, text in fields.items() if text}, unknown


def _named_by_generic_adapter(bean: Element) -> str:
    """Return the destination's name in the bean's `DestinationProperties`; empty if they have no name.

    The property holds comma-separated pairs of key and value.
    """
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
    """Return the transaction attributes by the bean's name, or `*` for all beans.

    An attribute of the method `onMessage` overrides one of all methods. Otherwise the later one applies.

    Returns:
        For each name: whether the attribute names `onMessage`, the position of its declaration, its value.
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
    """Return the EJB major version of a descriptor; 0 if it states no version, as before EJB 2.1."""
    said = root.attributes.get("version", "").partition(".")[0]
    return int(said) if said.isascii() and said.isdigit() else 0


def _leaves(
    element: Element, elements: Collection[str] = _ELEMENTS, containers: Collection[str] = _CONTAINERS
) -> tuple[dict[str, str], list[str]]:
    """Return an element's options, by tag or configuration property, and the names of unknown properties.

    Args:
        element: A bean, or a destination.
        elements: Tags of options.
        containers: Tags of elements that contain options too.
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
    """Record that an element replaces an earlier one of this name.

    If the earlier element has another value, it counts as not read, and is reported.

    Args:
        taken: The last element of each name; changed.
        name: Name of the element, or of its property.
        element: The later element.
    """
    earlier = taken.get(name)
    if earlier is not None and earlier.text.strip() != element.text.strip():
        earlier.read = False
    taken[name] = element


def _properties(element: Element, *, known_only: bool = True) -> tuple[dict[str, str], list[str]]:
    """Return configuration properties, and the names of properties that match no option.

    Args:
        element: The element that contains the properties.
        known_only: Whether properties that match no option are left out and count as not read.
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
            child.taken()  # a property without a value has no effect
            continue
        if spelling is None and known_only:
            unknown.append(name)
            continue
        child.value(next(tag for tag in PROPERTY_NAMES if any(child.find(tag))))
        fields[spelling or name] = given.taken()
        _replace(taken, name, given)
    return fields, unknown


def _spelling(name: str) -> str | None:
    """Return the option spelling for a property; WebLogic elements have a camel-case spelling too."""
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
