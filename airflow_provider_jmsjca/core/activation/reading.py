"""Reads what the user gave, under any spelling, into the fields of a spec."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field

from airflow_provider_jmsjca.core.layers import Layer, Place, ReadLayer, read_layer
from airflow_provider_jmsjca.core.options import (
    OPTIONS_BY_NAME,
    Level,
    Option,
    OptionValue,
    option_by_field,
    option_by_key,
    read_value,
)
from airflow_provider_jmsjca.core.options.choices import SubscriptionDurability

_DURABLE_BY_NAME = "durable-subscriber-name"
_DURABILITY = "subscription_durability"
_TITLE = "activation: "


@dataclass(slots=True)
class GivenFields:
    """What the user gave.

    Attributes:
        given: As it was given, without what was empty.
        values: By our names, in the types of the fields.
        faults: What could not be read.
        unread: Our names of the fields those faults are about.
    """

    given: dict[str, object]
    values: dict[str, OptionValue] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    unread: set[str] = field(default_factory=set)


def option_of(spelling: str) -> Option | None:
    """Return the option a field or a `JMSJCA.*` key sets."""
    return option_by_field(spelling) or option_by_key(spelling)


def read_given(given: Mapping[str, object], fields: Container[str]) -> GivenFields:
    """Return what the user gave, read by the option table.

    What the spec's own Options and URL say under `JMSJCA.*` takes the place of the field (J143). Patch Bay's
    `durable-subscriber-name` makes the subscription durable (P10).

    Args:
        given: Values by any spelling.
        fields: Names of the fields there are.
    """
    read = GivenFields({name: value for name, value in given.items() if value is not None})
    names = {spelling: option.name for spelling in read.given if (option := option_of(spelling))}
    if _DURABILITY not in names.values() and any(
        name.replace("_", "-") == _DURABLE_BY_NAME for name in read.given
    ):
        read.given[_DURABILITY] = SubscriptionDurability.DURABLE.value
    layer = read_layer(Layer(level=Level.ACTIVATION, fields=read.given), read.faults)
    _refuse_differing(layer, read.faults)
    read.values = {value.option.name: value.value for value in layer.values if value.option.name in fields}
    for spelling, name in names.items():
        if name == "connection_url" and layer.url is not None:
            read.values[name] = str(layer.url)  # lookup:// too, which resolving does away with
        elif name == "options" and not read.faults:
            read.values[name] = read_value(OPTIONS_BY_NAME[name], read.given[spelling], spelling)
    if read.faults:
        # What is blank was read: it counts as not given.
        read.unread = {
            name for spelling, name in names.items() if name not in read.values and read.given[spelling] != ""
        }
    read.faults = [fault.removeprefix(_TITLE) for fault in read.faults]
    return read


def _refuse_differing(layer: ReadLayer, faults: list[str]) -> None:
    """Refuse one option under two spellings with two values: neither is plainly meant."""
    first: dict[str, tuple[str, OptionValue]] = {}
    for value in layer.values:
        if value.origin.place is not Place.FIELD:
            continue
        spelling, standing = first.setdefault(value.option.name, (value.origin.spelling, value.value))
        if standing != value.value:
            faults.append(
                f"{value.origin.spelling}: differs from {spelling}, the same option; expected one of them"
            )
