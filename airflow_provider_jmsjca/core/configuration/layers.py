"""Reads each level of configuration into options with their origins."""

from __future__ import annotations

import difflib
import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_provider_jmsjca.core.configuration.url import ConnectionUrl, is_connection_url
from airflow_provider_jmsjca.core.options import (
    OPTIONS_BY_NAME,
    PARAMETER,
    Level,
    Option,
    OptionValue,
    display_value,
    option_by_field,
    option_by_key,
    read_properties,
    read_value,
    unknown_field,
)
from airflow_provider_jmsjca.errors import ConfigurationError

_NAMESPACE = "jmsjca."
_ENVIRONMENT_PREFIX = "JMSJCA_"
_OTHER_ENTRIES = ("destination.",)
"""Prefixes of entries of `[jmsjca]` that are not options, but administered destinations."""
_PARAMETER_VARIABLE = "JMSJCA_PARAMETER_"
_ADDRESS = ("connection_url", "options")
_CREDENTIALS = ("username", "password")


class SourceKind(enum.IntEnum):
    """Kind of source of a value within a level; the greatest number wins. Source: J113, J143."""

    DEFAULT = 0
    FIELD = 1
    ENVIRONMENT = 2
    OPTIONS = 3
    URL = 4


_PLACE_WORDS = {
    SourceKind.DEFAULT: "default",
    SourceKind.FIELD: "field",
    SourceKind.ENVIRONMENT: "environment variable",
    SourceKind.OPTIONS: "Options",
    SourceKind.URL: "URL",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Origin of a value.

    Attributes:
        level: Level of configuration; `None` for a default.
        source: Name of the level for users, such as `[jmsjca]` or `connection 'orders'`.
        spelling: Name of the option as the user wrote it.
    """

    level: Level | None
    source: str
    place: SourceKind
    spelling: str

    def __str__(self) -> str:
        if self.place is SourceKind.DEFAULT:
            return "default"
        if self.place is SourceKind.FIELD:
            return f"{self.source}: {self.spelling}"
        return f"{self.source}: {_PLACE_WORDS[self.place]}, {self.spelling}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One level of configuration before its values are parsed: fields under any of their spellings.

    Attributes:
        source: Name of the level in errors and `explain`; empty: the level's own name.
        fields: Values by option name, including `connection_url` and `options`. Empty values count as not
            given.
        environment: Values of environment variables, by the variable's name; only at `Level.CONNECTOR`, which
            holds for the whole installation.
    """

    level: Level
    source: str = ""
    fields: Mapping[str, object] = field(default_factory=dict, repr=False)
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def title(self) -> str:
        """Name of the level in errors."""
        return self.source or self.level.label


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedValue:
    """A value in its option's type, and its origin."""

    option: Option
    value: OptionValue
    origin: Origin

    def __repr__(self) -> str:
        return (
            f"ResolvedValue({self.option.name}={display_value(self.option, self.value)} from {self.origin})"
        )


def call_layer(username: str | None, password: str | None) -> Layer:
    """Return the layer of a call such as createConnection(username, password).

    If the user name is a connection URL, the layer has this URL. User and password then come from its query.

    Source: J75, J76, J78-J80.
    """
    fields: dict[str, object] = {"password": password}
    fields["connection_url" if username and is_connection_url(username) else "username"] = username
    return Layer(level=Level.CALL, source="call", fields=fields)


def connector_layer(section: Mapping[str, str], environment: Mapping[str, str] | None = None) -> Layer:
    """Return the layer of the whole installation.

    Args:
        section: The entries of `[jmsjca]`. Entries `destination.*` are not options, and are left out.
        environment: All environment variables. A variable named like an option overrides the entry:
            `JMSJCA_NOXA=true` replaces JMSJCA's system property `JMSJCA.NoXA`. Variables unlike any option
            are ignored. Only `JMSJCA_PARAMETER_REGION` sets the selector parameter `region`, so that the
            author of a selector cannot read other variables.

    Raises:
        ConfigurationError: Lists the variables that look like a misspelt option.

    Source: J32-J37, J97-J100, J181.
    """
    taken: dict[str, str] = {}
    faults: list[str] = []
    for name, value in (environment or {}).items():
        if not name.startswith(_ENVIRONMENT_PREFIX):
            continue
        squeezed = _squeezed(name.removeprefix(_ENVIRONMENT_PREFIX))
        if name.startswith(_PARAMETER_VARIABLE) or squeezed in _BY_ENVIRONMENT:
            taken[name] = value
        elif close := difflib.get_close_matches(squeezed, _BY_ENVIRONMENT, n=1, cutoff=0.85):
            expected = _ENVIRONMENT_PREFIX + _BY_ENVIRONMENT[close[0]].name.upper()
            faults.append(f"environment variable {name}: unknown option (did you mean {expected}?)")
    if faults:
        raise ConfigurationError(faults)
    fields = {name: value for name, value in section.items() if not name.startswith(_OTHER_ENTRIES)}
    return Layer(level=Level.CONNECTOR, source="[jmsjca]", fields=fields, environment=taken)


def _squeezed(name: str) -> str:
    return name.replace("_", "").replace(".", "").lower()


def _environment_names() -> dict[str, Option]:
    found: dict[str, Option] = {}
    for option in OPTIONS_BY_NAME.values():
        if option.allowed_at(Level.CONNECTOR):
            for name in (option.name, *option.jmsjca, *(key.removeprefix("JMSJCA.") for key in option.key)):
                found[_squeezed(name)] = option
    return found


_BY_ENVIRONMENT = _environment_names()


@dataclass(slots=True)
class ReadLayer:
    """A layer with its values read."""

    layer: Layer
    url: ConnectionUrl | None = None
    values: list[ResolvedValue] = field(default_factory=list)
    broker: dict[str, tuple[str, Origin]] = field(default_factory=dict, repr=False)
    parameters: dict[str, tuple[str, Origin]] = field(default_factory=dict, repr=False)


def read_layer(layer: Layer, faults: list[str]) -> ReadLayer:
    """Read the values of a layer; add a sentence to `faults` for each invalid value."""
    read = ReadLayer(layer)
    address: dict[str, tuple[object, str, SourceKind]] = {}
    level, title = layer.level, layer.title
    for spelling, given in layer.fields.items():
        if given is not None:
            _read_field(read, spelling, given, address, faults)
    for variable, given in layer.environment.items():
        if variable.startswith(_PARAMETER_VARIABLE):
            origin = Origin(level=level, source=title, place=SourceKind.ENVIRONMENT, spelling=variable)
            _read_parameter(read, origin, variable.removeprefix(_PARAMETER_VARIABLE), given, faults)
            continue
        option = _BY_ENVIRONMENT[_squeezed(variable.removeprefix(_ENVIRONMENT_PREFIX))]
        if option.name in _ADDRESS:
            address[option.name] = (given, variable, SourceKind.ENVIRONMENT)
        else:
            _add(
                read,
                option,
                given,
                Origin(level=level, source=title, place=SourceKind.ENVIRONMENT, spelling=variable),
                faults,
            )
    if "options" in address:
        _read_options(read, address["options"], faults)
    if "connection_url" in address:
        _read_url(read, address["connection_url"], faults)
    return read


def _read_field(
    read: ReadLayer,
    spelling: str,
    given: object,
    address: dict[str, tuple[object, str, SourceKind]],
    faults: list[str],
) -> None:
    if spelling[: len(_NAMESPACE)].lower() == _NAMESPACE:
        _read_key(read, spelling, given, SourceKind.OPTIONS, faults)
        return
    option = option_by_field(spelling)
    if option is not None and option.name in _ADDRESS:
        if given != "":
            address[option.name] = (given, spelling, SourceKind.FIELD)
        return
    level, title = read.layer.level, read.layer.title
    origin = Origin(level=level, source=title, place=SourceKind.FIELD, spelling=spelling)
    if option is not None:
        _add(read, option, given, origin, faults)
    elif spelling[: len(PARAMETER)].lower() == PARAMETER:
        _read_parameter(read, origin, spelling[len(PARAMETER) :], given, faults)
    else:
        faults.append(f"{title}: {unknown_field(spelling, level)}")


def _read_options(read: ReadLayer, entry: tuple[object, str, SourceKind], faults: list[str]) -> None:
    given, spelling, _ = entry
    try:
        text = read_value(OPTIONS_BY_NAME["options"], given, spelling)
        options = read_properties(text) if isinstance(text, str) else {}
    except ConfigurationError as error:
        faults.extend(f"{read.layer.title}: {fault}" for fault in error.faults)
        return
    for key, value in options.items():
        _read_key(read, key, value, SourceKind.OPTIONS, faults)


def _read_url(read: ReadLayer, entry: tuple[object, str, SourceKind], faults: list[str]) -> None:
    given, spelling, place = entry
    title, level = read.layer.title, read.layer.level
    try:
        url = given if isinstance(given, ConnectionUrl) else ConnectionUrl.parse(given)  # type: ignore[arg-type]  # parse refuses other types
    except ConfigurationError as error:
        faults.extend(f"{title}: {fault}" for fault in error.faults)
        return
    read.url = url
    if url.lookup is None:
        origin = Origin(level=level, source=title, place=place, spelling=spelling)
        read.values.append(
            ResolvedValue(option=OPTIONS_BY_NAME["connection_url"], value=str(url), origin=origin)
        )
    credentials = {"username": url.username, "password": url.password}
    for key, value in url.query.items():
        if key in _CREDENTIALS:
            credentials[key] = value
        else:
            _read_key(read, key, value, SourceKind.URL, faults)
    for key, part in credentials.items():
        if part:
            _credential(read, OPTIONS_BY_NAME[key], part, faults)


def _credential(read: ReadLayer, option: Option, value: str, faults: list[str]) -> None:
    """Add a credential of the URL to its layer; add a fault if the layer has another value for it already."""
    for standing in read.values:
        if standing.option is option and standing.value != value:
            faults.append(
                f"{read.layer.title}: {option.name} differs between the field and the connection URL, "
                "expected it in one place"
            )
            return
    origin = Origin(
        level=read.layer.level, source=read.layer.title, place=SourceKind.URL, spelling=option.name
    )
    read.values.append(ResolvedValue(option=option, value=value, origin=origin))


def _read_key(read: ReadLayer, key: str, given: object, place: SourceKind, faults: list[str]) -> None:
    option = option_by_key(key)
    origin = Origin(level=read.layer.level, source=read.layer.title, place=place, spelling=key)
    if option is not None:
        _add(read, option, given, origin, faults)
    elif key[: len(_NAMESPACE + PARAMETER)].lower() == _NAMESPACE + PARAMETER:
        _read_parameter(read, origin, key[len(_NAMESPACE + PARAMETER) :], given, faults)
    elif key[: len(_NAMESPACE)].lower() == _NAMESPACE:
        faults.append(f"{read.layer.title}: {unknown_field(key, read.layer.level)}")
    else:
        read.broker[key] = (str(given), origin)


def _read_parameter(read: ReadLayer, origin: Origin, name: str, given: object, faults: list[str]) -> None:
    """Add the value of a selector parameter to a layer; add a fault if it is invalid or given twice.

    Names of parameters are case-insensitive.

    Source: J181.
    """
    standing = read.parameters.get(name.lower())
    if not name:
        faults.append(f"{origin}: the parameter has no name, expected one such as {origin.spelling}region")
    elif not isinstance(given, str | int | float):
        faults.append(f"{origin}: got {type(given).__name__}, expected text, a number or a boolean")
    elif standing is not None and standing[1].place == origin.place:
        faults.append(
            f"{origin}: differs from {standing[1].spelling} only in upper and lower case; expected one of "
            "them"
        )
    elif standing is None or standing[1].place < origin.place:
        value = str(given).upper() if isinstance(given, bool) else str(given)
        read.parameters[name.lower()] = value, origin


def _add(read: ReadLayer, option: Option, given: object, origin: Origin, faults: list[str]) -> None:
    # Options of the transport (`unprefixed`) are allowed in every URL and Options text, at any level.
    if not option.allowed_at(read.layer.level) and not (
        option.unprefixed and origin.place >= SourceKind.OPTIONS
    ):
        levels = ", ".join(
            level.label for level in Level if level is not Level.CALL and option.allowed_at(level)
        )
        faults.append(f"{origin}: not an option of the {read.layer.level.label} level, expected at: {levels}")
        return
    if option.name == "separator":
        faults.append(f"{origin}: works only within the text of the option Options")
        return
    if isinstance(given, str) and not given.strip() and not option.blank_counts:
        return
    try:
        value = read_value(option, given, origin.spelling)
    except ConfigurationError as error:
        faults.extend(f"{origin.source}: {fault}" for fault in error.faults)
        return
    if value is None and not option.unlimited:
        return
    read.values.append(ResolvedValue(option=option, value=value, origin=origin))
