"""The form of an Airflow connection of type `jms`, made from the option table."""

from __future__ import annotations

from datetime import timedelta

from airflow_provider_jmsjca.core.options import OPTIONS, Level, Option, OptionType

_JSON_TYPES = {
    OptionType.TEXT: "string",
    OptionType.INTEGER: "integer",
    OptionType.BOOLEAN: "boolean",
    OptionType.CHOICE: "string",
    OptionType.DURATION: "number",
    OptionType.LIST: "string",
    OptionType.PROPERTIES: "string",
}


_FIRST = ("tls", "ca_file", "client_id", "prefetch")
_LAST = ("options",)


def connection_fields() -> dict[str, dict[str, object]]:
    """Return the fields stored in the extra JSON, as Airflow's `conn-fields`: what most need comes first.

    Options that change nothing here are left out; in the extra JSON they are read all the same.
    """
    shown = {
        option.name: _field(option)
        for option in OPTIONS
        if option.label and option.acts and option.allowed_at(Level.CONNECTION_FACTORY)
    }
    ends = {name: shown.pop(name) for name in (*_FIRST, *_LAST)}
    return {name: ends[name] for name in _FIRST} | shown | {name: ends[name] for name in _LAST}


def _field(option: Option) -> dict[str, object]:
    schema: dict[str, object] = {"type": [_JSON_TYPES[option.value_type], "null"]}
    if option.secret:
        schema["format"] = "password"
    elif option.value_type is OptionType.PROPERTIES:
        schema["format"] = "multiline"
    if option.minimum is not None:
        schema["minimum"] = option.minimum
    if option.maximum is not None:
        schema["maximum"] = option.maximum
    if option.choices is not None:
        schema["enum"] = [None, *map(str, option.choices)]
    if option.value_type is OptionType.BOOLEAN and option.default is not None:
        schema["default"] = option.default  # without it the form shows "off"
    return {"label": option.label, "description": _help(option), "schema": schema}


def _help(option: Option) -> str:
    default = option.default
    if isinstance(default, timedelta):
        shown = f"{default.total_seconds():g}"
    elif default is None:
        shown = option.shown_default
    else:
        shown = str(default).lower()
    return f"{option.meaning} Default: {shown}." if shown else option.meaning
