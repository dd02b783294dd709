"""Reads activations out of Java deployment descriptors, so that they can move here.

Read are `ejb-jar.xml`, `weblogic-ejb-jar.xml`, `ra.xml` and Patch Bay configuration files, whole or a piece
with one root element. Nothing is fetched: a document type that is only named is passed over, and one that
declares something is refused, because entities can name other files or grow without bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from xml.parsers import expat

from airflow_provider_jmsjca.errors import ConfigurationError

LONGEST_TEXT = 1 << 20
_DEEPEST = 64
_NAMES = ("activation-config-property-name", "config-property-name")
_VALUES = ("activation-config-property-value", "config-property-value")
_LEFT_OUT = {
    "description",
    "display-name",
    "icon",
    "method",
    "resource-ref",
    "env-entry",
    "ejb-ref",
    "ejb-local-ref",
    "security-identity",
    "stateless-session-descriptor",
    "stateful-session-descriptor",
    "port-name",
    "jndi-name",
    "local-jndi-name",
    "version",
    "enable-call-by-reference",
}
"""Elements that say nothing about consumption."""
_SILENT = {
    "description",
    "display-name",
    "icon",
    "version",
    "method-name",
    "method-intf",
    "method-params",
    "config-property-type",
}
"""Elements of which nothing is lost."""
_SINGLE = "timer-descriptor"


@dataclass(slots=True)
class _Element:
    tag: str
    children: list[_Element] = field(default_factory=list)
    text: str = ""
    read: bool = False

    def find(self, tag: str) -> Iterator[_Element]:
        """Yield it and what is in it with this tag, in document order."""
        if self.tag == tag:
            yield self
        for child in self.children:
            yield from child.find(tag)

    def value(self, tag: str) -> str:
        """Return the text of the first such element in it, empty if there is none; it counts as read."""
        for found in self.find(tag):
            return found.taken()
        return ""

    def taken(self) -> str:
        """Return its text; it and what is in it count as read."""
        self.read = True
        for child in self.children:
            child.taken()
        return self.text.strip()

    def unread(self, above: str = "") -> Iterator[str]:
        """Yield the path of each element of which nothing was read, and of each value in the others."""
        if self.tag in _SILENT or self.read or not self.says_anything():
            return
        path = f"{above} > {self.tag}" if above else self.tag
        if not any(child.any_read() for child in self.children):
            name = next((found.text.strip() for found in self.find("ejb-name")), "")
            yield f"{path} {name!r}" if name else path
            return
        for child in self.children:
            yield from child.unread(path)

    def says_anything(self) -> bool:
        """Tell whether there is text in it."""
        return bool(self.text.strip()) or any(child.says_anything() for child in self.children)

    def any_read(self) -> bool:
        """Tell whether it or anything in it was read."""
        return self.read or any(child.any_read() for child in self.children)


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptor:
    """What deployment descriptors say, under their own spellings.

    Attributes:
        activations: Fields of each activation, by the bean's name (empty where it has none).
        connector: Fields of the connector.
        connection_factories: Fields of each connection factory, by its interface.
        dropped: Paths of the elements that say something and weren't read, without their values.
    """

    activations: Mapping[str, Mapping[str, str]]
    connector: Mapping[str, str]
    connection_factories: Mapping[str, Mapping[str, str]]
    dropped: tuple[str, ...] = ()

    def activation(self, name: str | None = None) -> Mapping[str, str]:
        """Return the fields of one activation.

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
            raise ConfigurationError(f"descriptor: several activations, say which: {', '.join(found)}")
        return found[name] if name is not None else next(iter(found.values()))


def read_descriptor(*texts: str | bytes) -> Descriptor:
    """Return what the descriptors say together; those about one bean are joined by its `ejb-name`.

    A whole `ejb-jar.xml` that states no transaction attribute for a container-managed bean means
    NotSupported (W21); a piece of one says nothing about it. The EJB 2 element `subscription-durability`
    comes without a name for the subscription: that is the bean's (W30).

    Args:
        texts: XML; bytes are read in the encoding they declare.

    Raises:
        ConfigurationError: A text is no XML, declares entities, or describes nothing.

    Source: J31, J37, W13, W14, W19, W21, W30, P6-P10.
    """
    activations: dict[str, dict[str, str]] = {}
    connector: dict[str, str] = {}
    factories: dict[str, dict[str, str]] = {}
    dropped: list[str] = []
    for text in texts:
        root = _parse(text)
        for name, fields in _activations(root):
            activations.setdefault(name, {}).update(fields)
        for name, fields in activations.items():
            if name and fields.get("subscription-durability", "").lower() == "durable":
                fields.setdefault("subscriptionName", name)
        _read_ra(root, connector, factories)
        dropped.extend(root.unread())
    if not (activations or connector or factories):
        raise ConfigurationError(
            "descriptor: no activation in it, expected message-driven, message-driven-descriptor, "
            "activation-config, activationspec, config-property or message-sink"
        )
    return Descriptor(
        activations=activations,
        connector=connector,
        connection_factories=factories,
        dropped=tuple(dropped),
    )


def _activations(root: _Element) -> Iterator[tuple[str, dict[str, str]]]:
    attributes = _transaction_attributes(root)
    for bean in root.find("message-driven"):
        yield bean.value("ejb-name"), _ejb(bean, attributes, is_whole=root.tag == "ejb-jar")
    beans = list(root.find("weblogic-enterprise-bean")) or list(root.find("message-driven-descriptor"))
    for bean in beans:
        if bean.tag == "message-driven-descriptor" or any(bean.find("message-driven-descriptor")):
            yield bean.value("ejb-name"), _leaves(bean)
    for sink in (*root.find("message-sink"), *root.find("message-filter")):
        yield sink.value("nucleus-name"), _patch_bay(sink)
    if not any(root.find("message-driven")):
        for config in (*root.find("activation-config"), *root.find("activationspec")):
            if fields := _properties(config):
                yield "", fields


def _transaction_attributes(root: _Element) -> dict[str, tuple[int, str]]:
    """Return the last attribute said for each bean, and for `*`, with its place in the text."""
    return {
        transaction.value("ejb-name"): (place, transaction.value("trans-attribute"))
        for place, transaction in enumerate(root.find("container-transaction"))
    }


def _ejb(bean: _Element, attributes: Mapping[str, tuple[int, str]], *, is_whole: bool) -> dict[str, str]:
    fields = _leaves(bean)
    if fields.get("transaction-type", "").lower() == "container":
        said = [attributes[name] for name in (bean.value("ejb-name"), "*") if name in attributes]
        if said:
            fields["trans-attribute"] = max(said)[1]
        if is_whole:
            fields.setdefault("trans-attribute", "NotSupported")
    return fields


def _patch_bay(sink: _Element) -> dict[str, str]:
    fields: dict[str, str] = {"nucleus-name": sink.value("nucleus-name")}
    inputs = list(sink.find("input-destination"))
    if len(inputs) > 1:
        raise ConfigurationError(
            f"descriptor: message sink {fields['nucleus-name']!r} has {len(inputs)} input destinations, "
            "expected one: give each its own activation"
        )
    if inputs:
        fields.update(_leaves(inputs[0]))
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
    return {name: value for name, value in fields.items() if value}


def _leaves(element: _Element) -> dict[str, str]:
    """Return the text of every innermost element by its tag; configuration properties by their name."""
    fields: dict[str, str] = {}
    taken: dict[str, _Element] = {}
    for child in element.children:
        if child.tag in _LEFT_OUT:
            continue
        if child.tag == "activation-config":
            fields.update(_properties(child))
        elif child.tag == _SINGLE:
            given = child.taken()
            fields[child.tag] = " ".join(leaf.text.strip() for leaf in child.children) or given
        elif child.children:
            fields.update(_leaves(child))
        elif child.text.strip():
            fields[child.tag] = child.taken()
            _replace(taken, child.tag, child)
    return fields


def _replace(taken: dict[str, _Element], name: str, element: _Element) -> None:
    """Note that the element says what an earlier one of this name said: that one counts as not read."""
    earlier = taken.get(name)
    if earlier is not None and earlier.text.strip() != element.text.strip():
        earlier.read = False
    taken[name] = element


def _properties(element: _Element) -> dict[str, str]:
    fields: dict[str, str] = {}
    taken: dict[str, _Element] = {}
    for child in element.children:
        name = next((value for tag in _NAMES if (value := child.value(tag))), "")
        if name and child.tag in {"activation-config-property", "config-property"}:
            given = next((found for tag in _VALUES for found in child.find(tag)), None)
            if given is not None:
                fields[name] = given.taken()
                _replace(taken, name, given)
    return fields


def _read_ra(root: _Element, connector: dict[str, str], factories: dict[str, dict[str, str]]) -> None:
    for adapter in root.find("resourceadapter"):
        connector.update(_properties(adapter))
    for number, definition in enumerate(root.find("connection-definition"), start=1):
        name = definition.value("connectionfactory-interface") or f"connection factory {number}"
        factories[name] = _properties(definition)


def _parse(text: str | bytes) -> _Element:
    if len(text) > LONGEST_TEXT:
        unit = "bytes" if isinstance(text, bytes) else "characters"
        raise ConfigurationError(f"descriptor: too long, expected at most {LONGEST_TEXT} {unit}")
    top = _Element("")
    stack = [top]
    parser = expat.ParserCreate(None if isinstance(text, bytes) else "utf-8")
    parser.buffer_text = True

    def start(tag: str, _attributes: dict[str, str]) -> None:
        if len(stack) > _DEEPEST:
            raise ConfigurationError(f"descriptor: nested deeper than {_DEEPEST} elements")
        element = _Element(tag.rpartition(":")[2])
        stack[-1].children.append(element)
        stack.append(element)

    def end(_tag: str) -> None:
        stack.pop()

    def characters(data: str) -> None:
        stack[-1].text += data

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = characters
    parser.StartDoctypeDeclHandler = _refuse_declarations
    parser.SkippedEntityHandler = _refuse_entity
    try:
        if isinstance(text, str):
            text = text.lstrip("\ufeff \t\r\n").encode("utf-8")
        parser.Parse(text, True)
    except expat.ExpatError as error:
        reason = expat.ErrorString(error.code)
        raise ConfigurationError(
            f"descriptor: no XML: {reason} at line {error.lineno}, column {error.offset + 1}"
        ) from None
    except UnicodeEncodeError:
        raise ConfigurationError(
            "descriptor: it holds half of a surrogate pair, which XML can't carry"
        ) from None
    except (LookupError, ValueError) as error:
        raise ConfigurationError(f"descriptor: no XML: its encoding can't be read: {error}") from None
    return top.children[0]


def _refuse_declarations(_name: str, _system: str | None, _public: str | None, declares: object) -> None:
    if declares:
        raise ConfigurationError(
            "descriptor: declarations in <!DOCTYPE ... [...]> are not read; take them out"
        )


def _refuse_entity(name: str, _is_parameter: object) -> None:
    raise ConfigurationError(
        f"descriptor: entity &{name}; is not declared in the text, expected the characters it stands for"
    )
