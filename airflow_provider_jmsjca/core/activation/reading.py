"""Reads options, given under any spelling, into the fields of a spec."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass, field

from airflow_provider_jmsjca.core.configuration.layers import Layer, ReadLayer, SourceKind, read_layer
from airflow_provider_jmsjca.core.configuration.url import ConnectionUrl, is_connection_url
from airflow_provider_jmsjca.core.masking import is_secret, masked_text
from airflow_provider_jmsjca.core.options import (
    OPTIONS_BY_NAME,
    Level,
    Option,
    OptionValue,
    option_by_field,
    option_by_key,
    read_properties,
    read_value,
)
from airflow_provider_jmsjca.core.query import NAMED, read_named_destination
from airflow_provider_jmsjca.errors import ConfigurationError

_TITLE = "activation: "


@dataclass(slots=True)
class GivenFields:
    """The options given for a spec, and the result of reading them.

    Attributes:
        given: The options as given; those with the value `None` are left out.
        values: Values by option name, in the types of the fields.
        faults: A sentence for each value that could not be read, and for each option with two different
            values.
        unread: Names of the options whose values could not be read.
        parameters: Values of selector parameters, by names in lower case.
    """

    given: dict[str, object]
    values: dict[str, OptionValue] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    unread: set[str] = field(default_factory=set)
    parameters: dict[str, str] = field(default_factory=dict)


def option_of(spelling: str) -> Option | None:
    """Return the option with this spelling: the name of a field or a `JMSJCA.*` key. `None` if unknown."""
    return option_by_field(spelling) or option_by_key(spelling)


def read_given(given: Mapping[str, object], fields: Container[str]) -> GivenFields:
    """Read options with the option table.

    A `JMSJCA.*` key in the spec's own Options or URL replaces the field of the same option.

    Args:
        given: Values by the name of a field or key, in any spelling.
        fields: Names of the fields of the spec. Options without a field are checked, but not returned.

    Source: J143.
    """
    read = GivenFields({name: value for name, value in given.items() if value is not None})
    names = {spelling: option.name for spelling in read.given if (option := option_of(spelling))}
    layer = read_layer(Layer(level=Level.ACTIVATION, fields=read.given), read.faults)
    _refuse_differing(layer, read.faults)
    read.values = {value.option.name: value.value for value in layer.values if value.option.name in fields}
    read.parameters = {name: value for name, (value, _) in layer.parameters.items()}
    for spelling, name in names.items():
        if name == "connection_url" and layer.url is not None:
            read.values[name] = str(layer.url)  # a lookup:// URL is kept as written
        elif name == "options" and not read.faults:
            read.values[name] = read_value(OPTIONS_BY_NAME[name], read.given[spelling], spelling)
    if read.faults:
        # A blank value counts as not given, so it is not among the unread ones.
        read.unread = {
            name for spelling, name in names.items() if name not in read.values and read.given[spelling] != ""
        }
    read.faults = [fault.removeprefix(_TITLE) for fault in read.faults]
    return read


def secret_fields(given: Mapping[str, object]) -> list[str]:
    """Return the names of fields that contain a secret: a password, or a URL or Options text with a secret.

    A template, or a value that can't be parsed, is included if it looks like a secret.
    """
    return [spelling for spelling, value in given.items() if value and _is_secret(spelling, value)]


def refuse_secrets(where: str, given: Mapping[str, object]) -> None:
    """Refuse secrets where Airflow would store and show them: in DAG files.

    Args:
        where: Name of the operator or decorator, for the error.
        given: Fields of the operator or decorator, under any spelling.

    Raises:
        ConfigurationError: Names every field that holds a secret, never its value.
    """
    faults = [
        f"{where}: {spelling} holds a secret, which Airflow would store in clear with the DAG and show among "
        "its rendered templates. Expected it in an Airflow connection: name that one in jms_conn_id, or as "
        "connection_url: lookup://CONNECTION_ID"
        for spelling in secret_fields(given)
    ]
    if faults:
        raise ConfigurationError(faults)


def _is_secret(spelling: str, value: object) -> bool:
    option = option_of(spelling)
    if is_secret(spelling) and (option is None or option.secret):
        return True
    if option is not None and option.name == "options":
        return _options_hold_secrets(value)
    texts = [value] if isinstance(value, str) else value if isinstance(value, Collection) else ()
    return any(_url_holds_secrets(text) for text in texts if isinstance(text, str))


def _options_hold_secrets(value: object) -> bool:
    if isinstance(value, Mapping):
        return any(is_secret(str(key)) for key in value)
    text = str(value)
    try:
        return any(is_secret(key) for key in read_properties(text))
    except ConfigurationError:
        return masked_text(text) != text


def _url_holds_secrets(text: str) -> bool:
    if text.lower().startswith(NAMED):
        return any(is_secret(key) for key in read_named_destination(text, [])[1])
    if not is_connection_url(text):
        return False
    try:
        return ConnectionUrl.parse(text).has_password
    except ConfigurationError:
        return masked_text(text) != text


def _refuse_differing(layer: ReadLayer, faults: list[str]) -> None:
    """Add a fault for each option that has different values under two spellings of its field.

    Nothing shows which of the two values is meant.
    """
    first: dict[str, tuple[str, OptionValue]] = {}
    for value in layer.values:
        if value.origin.place is not SourceKind.FIELD or not value.option.acts:
            continue
        spelling, standing = first.setdefault(value.option.name, (value.origin.spelling, value.value))
        if standing != value.value:
            faults.append(
                f"{value.origin.spelling}: differs from {spelling}, the same option; expected one of them"
            )
