"""Parses XML into elements that record which of their content was read.

The parser fetches nothing. A DOCTYPE without declarations is ignored. A DOCTYPE with declarations is refused,
because entities can refer to other files or expand without bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from xml.parsers import expat

from airflow_provider_jmsjca.core.activation.document import LONGEST_TEXT
from airflow_provider_jmsjca.errors import ConfigurationError

PROPERTY_NAMES = ("activation-config-property-name", "config-property-name")
_VALUE_OF = {tag: f"{tag}-value" for tag in ("activation-config-property", "config-property")}
_DEEPEST = 64
_NAMES = ("ejb-name", *PROPERTY_NAMES, "res-ref-name", "resource-env-ref-name", "ejb-ref-name")
_SILENT = {
    "description",
    "display-name",
    "icon",
    "small-icon",
    "large-icon",
    "notes",
    "required-config-property",
    "unique-id",
    "version",
    "weblogic-version",
    "method-name",
    "method-intf",
    "method-params",
    "config-property-type",
    "method",
    "sub-deployment-name",
    "default-targeting-enabled",
}
"""Elements that can be ignored without losing information."""
CONNECTOR = frozenset(
    {
        "vendor-name",
        "spec-version",
        "eis-type",
        "resourceadapter-version",
        "license",
        "resourceadapter-class",
        "managedconnectionfactory-class",
        "connectionfactory-impl-class",
        "connection-interface",
        "connection-impl-class",
        "authentication-mechanism",
        "reauthentication-support",
        "messagelistener-type",
        "activationspec-class",
        "adminobject-interface",
        "adminobject-class",
    }
)
"""Elements in every connector's descriptor that describe the product and its classes."""
_NO_XA = "there is no XA; a transaction covers the broker alone, so store the message id with the effect"
_LIMIT = "set a limit of the queue at the new broker"
_THREADS = "endpoint_pool_max_size bounds the threads"
_ROLES = "the function runs as Airflow's worker"
_LOGIN = "the Airflow connection holds user and password"
_BROKER = "the Airflow connection names the broker"
_RESOURCE = "the function opens what it needs, by an Airflow connection"
_INSTEAD = {
    "transaction-params": _NO_XA,
    "transaction-support": _NO_XA,
    "xa-connection-factory-enabled": _NO_XA,
    "quota": _LIMIT,
    "maximum-message-size": _LIMIT,
    "time-to-live": "set a policy at the new broker, or have the producer give its messages an expiry",
    "expiration-policy": "set an expiry queue at the new broker",
    "work-manager": _THREADS,
    "max-threads-constraint": _THREADS,
    "resource-ref": _RESOURCE,
    "resource-description": _RESOURCE,
    "security-identity": _ROLES,
    "security-role": _ROLES,
    "principal": _ROLES,
    "default-resource-principal": _LOGIN,
    "username": _LOGIN,
    "password": _LOGIN,
    "password-encrypted": _LOGIN,
    "provider-name": _BROKER,
    "client-id": "set client_id in the Airflow connection",
    "connection-url": _BROKER,
    "initial-context-factory": _BROKER,
    "jms-max-messages-load": "prefetch sets how many messages are fetched ahead",
    "unsubscribe-on-undeploy": "durable_subscription_deletion deletes the subscription at the end",
    "module": "a JMS module is a separate file; import it too",
}
"""Tag of an element that isn't read -> its replacement in this package."""


@dataclass(slots=True)
class Element:
    """An XML element; its tag is the local name, without a namespace prefix."""

    tag: str
    attributes: Mapping[str, str] = field(default_factory=dict)
    children: list[Element] = field(default_factory=list)
    text: str = ""
    read: bool = False

    def find(self, tag: str) -> Iterator[Element]:
        """Yield the elements with the tag, among this element and its descendants, in document order."""
        if self.tag == tag:
            yield self
        for child in self.children:
            yield from child.find(tag)

    def value(self, tag: str) -> str:
        """Return the text of the first element with the tag, and mark the element as read.

        The text is empty if there is no such element.
        """
        for found in self.find(tag):
            return found.taken()
        return ""

    def glimpse(self, *tags: str) -> str:
        """Return the text of the first element with one of the tags, without marking the element as read.

        An earlier tag has priority over a later one. The text is empty if there is no such element.
        """
        return next((found.text.strip() for tag in tags for found in self.find(tag)), "")

    def taken(self) -> str:
        """Return the element's text, and mark the element and its descendants as read."""
        self.read = True
        for child in self.children:
            child.taken()
        return self.text.strip()

    def unread(self, above: str = "") -> Iterator[str]:
        """Yield the paths of the unread parts of this element.

        If nothing in the element was read, its own path is the only one. If some of its descendants were
        read, the paths are those of the other descendants. An element that was read, or has no
        effect, is skipped.

        If this package has a replacement for an element, the replacement follows the path.

        Args:
            above: Path of the element's parent.
        """
        if self.read or not self.says_anything():
            return
        names = (child.text.strip() for child in self.children if child.tag in _NAMES)
        name = next(names, "") or self.attributes.get("name", "")
        path = f"{above} > {self.tag}" if above else self.tag
        if name:
            path = f"{path} {name!r}"
        if not any(child.any_read() for child in self.children):
            instead = _INSTEAD.get(self.tag)
            yield f"{path}: {instead}" if instead else path
            return
        for child in self.children:
            yield from child.unread(path)

    def says_anything(self) -> bool:
        """Return whether the element contains text that may have an effect, and so must be read or reported.

        Properties without a value have no effect.
        """
        if self.tag in _SILENT or self.tag in CONNECTOR:
            return False
        if self.tag in _VALUE_OF and not self.glimpse(_VALUE_OF[self.tag]):
            return False
        return bool(self.text.strip()) or any(child.says_anything() for child in self.children)

    def any_read(self) -> bool:
        """Return whether the element or any descendant was read."""
        return self.read or any(child.any_read() for child in self.children)


def parse(text: str | bytes, title: str) -> Element:
    """Return the root element of a text.

    Args:
        text: XML; bytes are decoded with their declared encoding.
        title: Name of the text in error messages.

    Raises:
        ConfigurationError: The text is not XML, is too long or too deep, or declares entities.
    """
    if not text.strip():
        raise ConfigurationError(f"{title}: empty, expected XML")
    try:
        return _parse(text)
    except ConfigurationError as error:
        raise ConfigurationError(f"{title}: {fault}" for fault in error.faults) from None
    except expat.ExpatError as error:
        reason = expat.ErrorString(error.code)
        place = f"line {error.lineno}, column {error.offset + 1}"
        raise ConfigurationError(f"{title}: not valid XML: {reason} at {place}") from None
    except UnicodeEncodeError:
        raise ConfigurationError(
            f"{title}: it contains half of a surrogate pair, which XML doesn't allow"
        ) from None
    except (LookupError, ValueError) as error:
        raise ConfigurationError(f"{title}: not valid XML: its encoding can't be read: {error}") from None


def _parse(text: str | bytes) -> Element:
    if len(text) > LONGEST_TEXT:
        unit = "bytes" if isinstance(text, bytes) else "characters"
        raise ConfigurationError(f"too long, expected at most {LONGEST_TEXT} {unit}")
    top = Element("")
    stack = [top]
    parser = expat.ParserCreate(None if isinstance(text, bytes) else "utf-8")
    parser.buffer_text = True

    def start(tag: str, attributes: dict[str, str]) -> None:
        if len(stack) > _DEEPEST:
            raise ConfigurationError(f"nested deeper than {_DEEPEST} elements")
        element = Element(tag.rpartition(":")[2], attributes)
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
    if isinstance(text, str):
        text = text.lstrip("\ufeff \t\r\n").encode("utf-8")
    parser.Parse(text, True)
    return top.children[0]


def _refuse_declarations(_name: str, _system: str | None, _public: str | None, declares: object) -> None:
    if declares:
        raise ConfigurationError("declarations in <!DOCTYPE ... [...]> are not supported; remove them")


def _refuse_entity(name: str, _is_parameter: object) -> None:
    raise ConfigurationError(f"entity &{name}; is not declared in the text, expected its characters")
