"""References to destinations in a configuration, and the administered objects they may name."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from airflow_provider_jmsjca.core.configuration.destination_options import check_options, with_options
from airflow_provider_jmsjca.core.destination import Destination, DestinationKind
from airflow_provider_jmsjca.core.options import OPTIONS_BY_NAME, read_value
from airflow_provider_jmsjca.core.options.properties import read_properties
from airflow_provider_jmsjca.core.query import NAMED, read_named_destination
from airflow_provider_jmsjca.errors import ConfigurationError

LOOKUP: Final = "lookup://"
"""Prefix of the name of an administered object."""

DISCARD: Final = "discard"
"""Dead-letter destination that discards messages. A queue of that name is written
`queue://discard`."""

_TYPED = ("queue:", "topic:", "/queue/", "/topic/")
_SCHEMES = ("queue://", "topic://")
_TYPE_KEYS = ("destination_type", "destinationType", "destination-type", "type")
_NAME_KEYS = ("name", "destination", "destinationName")
_GENERICJMSRA_KEYS = ("DestinationJndiName", "destinationJndiName")
_OPTIONS_KEYS = ("options", "Options")


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationReference:
    """A destination as written in a configuration; it may have to be looked up.

    Attributes:
        kind: Queue or topic; `None` if the administered object determines it.
        name: Name at the broker, or of the administered object.
        lookup: Whether the name refers to an administered object.
        options: Options for this destination alone.

    Source: J50, J51, J85-J91, P10.
    """

    kind: DestinationKind | None
    name: str
    lookup: bool = False
    options: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(
        cls, text: str, kind: DestinationKind | None = None, default: DestinationKind | None = None
    ) -> DestinationReference:
        """Return the destination for a text.

        Accepts a name, `queue://name` and its short forms, `lookup://object`, and
        `jmsjca://?name=destination&key=value`.

        Args:
            text: The destination.
            kind: Queue or topic; the text must not contradict it.
            default: Kind of a name without a kind; `None`: such a name is an error.

        Raises:
            ConfigurationError: `text` is not a string, has no name or no kind, contradicts `kind`, or has an
                unknown option.
        """
        # The value may be no text: a missing `reply_to`, the result of a task, or a template rendered
        # natively.
        given: object = text
        if not isinstance(given, str):
            raise ConfigurationError(
                f"destination is {reprlib.repr(given)}, of type {type(given).__name__}; expected a string "
                "such as queue://orders"
            )
        text = text.strip()
        if text.lower().startswith(LOOKUP):
            name = text[len(LOOKUP) :]
            if not name:
                raise ConfigurationError("destination: lookup:// without a name, expected lookup://object")
            return cls(kind=kind, name=name, lookup=True)
        options: dict[str, str] = {}
        if text.lower().startswith(NAMED):
            text, options = _read_named(text)
            if text.lower().startswith(LOOKUP):
                return cls(kind=kind, name=text[len(LOOKUP) :], lookup=True, options=tuple(options.items()))
        said = text.startswith(_TYPED) or text.lower().startswith(_SCHEMES)
        if kind is None and default is None and not said and "://" not in text:
            raise ConfigurationError(
                "destination_type: missing, expected queue or topic "
                f"(or the destination as queue://{text or 'name'})"
            )
        destination = Destination.parse(text, kind or default or DestinationKind.QUEUE)
        if kind is not None and destination.kind is not kind:
            raise ConfigurationError(
                f"destination: {text!r} is a {destination.kind} but destination_type is {kind}"
            )
        return cls(kind=destination.kind, name=destination.name, options=tuple(options.items()))

    def resolve(self, objects: Mapping[str, AdministeredObject]) -> Destination:
        """Return the destination with its options; the reference's options override the object's.

        Args:
            objects: Administered objects by name; only the required name is looked up.

        Raises:
            ConfigurationError: The object does not exist, or its kind differs from the reference's.
        """
        if not self.lookup:
            if self.kind is None:
                raise ConfigurationError(
                    f"destination {self.name!r}: no kind, expected queue:// or topic:// in front"
                )
            return Destination(self.kind, self.name, self.options)
        if self.name not in objects:
            raise ConfigurationError(
                f"destination lookup://{self.name}: there is no such administered object. Define an Airflow "
                f"variable or an entry destination.{self.name} in [jmsjca], for example queue://orders. "
                "A process without Airflow has no administered objects: use queue:// or topic:// there"
            )
        found = objects[self.name]
        if self.kind is not None and found.destination.kind is not self.kind:
            raise ConfigurationError(
                f"destination lookup://{self.name}: the object is a {found.destination.kind} but "
                f"destination_type is {self.kind}"
            )
        return with_options(found.destination, {**dict(found.options), **dict(self.options)})


def destination_named(text: str) -> Destination:
    """Return the destination for a text, with its options; a bare name denotes a queue.

    Raises:
        ConfigurationError: The text can't be read, or would have to be looked up.
    """
    return DestinationReference.parse(text, default=DestinationKind.QUEUE).resolve({})


def is_discard(text: str | None) -> bool:
    """Return whether the text, given as a destination, means that messages are discarded."""
    return text is not None and text.strip().lower() == DISCARD


@dataclass(frozen=True, slots=True, kw_only=True)
class AdministeredObject:
    """A destination defined once, under a name, for many configurations.

    Source: J20, J85, J90, J91, J212.
    """

    destination: Destination
    options: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, given: str | Mapping[str, object]) -> AdministeredObject:
        """Return the object for a text or mapping.

        Args:
            given: `queue://q1234`, `jmsjca://?name=queue://q1234&key=value`, or a mapping with `type`, `name`
                and `options`, also as JSON text. Instead of `name`, a Genericjmsra object has
                `DestinationJndiName`: a name in the provider's own JNDI. The destination is then `jndi://`
                and that name.

        Raises:
            ConfigurationError: Lists every unknown key, and every missing or invalid value.
        """
        if isinstance(given, str) and given.lstrip().startswith("{"):
            given = _json_object(given)
        if isinstance(given, str):
            return cls._from_reference(DestinationReference.parse(given), {})
        known = {*_TYPE_KEYS, *_NAME_KEYS, *_GENERICJMSRA_KEYS, *_OPTIONS_KEYS}
        faults = [
            f"administered object: unknown key {key!r}, expected type, name, options"
            for key in given
            if key not in known
        ]
        raw_type, raw_options = _first(given, _TYPE_KEYS), _first(given, _OPTIONS_KEYS)
        name, jndi_name = _first(given, _NAME_KEYS), _first(given, _GENERICJMSRA_KEYS)
        kind: DestinationKind | None = None
        options: dict[str, str] = {}
        try:
            chosen = read_value(OPTIONS_BY_NAME["destination_type"], raw_type, "type")
            kind = DestinationKind(str(chosen)) if chosen is not None else None
            text = read_value(OPTIONS_BY_NAME["options"], raw_options, "options")
            options = read_properties(text) if isinstance(text, str) else {}
            faults.extend(check_options(options, "administered object"))
        except ConfigurationError as error:
            faults.extend(f"administered object: {fault}" for fault in error.faults)
        if jndi_name is not None:
            name = f"jndi://{jndi_name}"
        if not isinstance(name, str) or not name:
            faults.append("administered object: name is missing, expected the destination's name")
        if faults:
            raise ConfigurationError(faults)
        return cls._from_reference(DestinationReference.parse(str(name), kind), options)

    @classmethod
    def _from_reference(cls, reference: DestinationReference, options: dict[str, str]) -> AdministeredObject:
        if reference.lookup or reference.kind is None:
            raise ConfigurationError(
                f"administered object: its name is lookup://{reference.name}, "
                "expected a destination at the broker"
            )
        merged = {**options, **dict(reference.options)}
        return cls(destination=Destination(reference.kind, reference.name), options=tuple(merged.items()))


def _json_object(text: str) -> Mapping[str, object]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ConfigurationError(
            'administered object: not a JSON object, expected {"type": "queue", "name": "q1234"}'
        )
    return found


def _read_named(text: str) -> tuple[str, dict[str, str]]:
    faults: list[str] = []
    name, options = read_named_destination(text, faults)
    faults.extend(check_options(options, "destination"))
    if faults:
        raise ConfigurationError(faults)
    return name, options


def _first(given: Mapping[str, object], keys: tuple[str, ...]) -> object:
    return next((given[key] for key in keys if key in given), None)
