"""The fields of the Airflow connection form, made from the option table."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_jmsjca.core.options import OPTIONS, OptionType

_JSON_TYPES = {
    OptionType.BOOLEAN: "boolean",
    OptionType.INTEGER: "integer",
    OptionType.DURATION: "number",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FormField:
    """One field of the form, stored under `name` in the connection's extra JSON.

    Attributes:
        json_type: JSON type of its value.
        secret: Shown as a password field.
        multiline: Shown as a text area.
        choices: Values allowed, where they are few.
        default: What holds when it is empty; `None` leaves it to the broker or there is none.
    """

    name: str
    label: str
    help: str
    json_type: str
    secret: bool
    multiline: bool
    choices: tuple[str, ...]
    default: str | float | bool | None

    def conn_field(self) -> dict[str, object]:
        """Return it as `conn-fields` in the provider's info has it."""
        schema: dict[str, object] = {"type": [self.json_type, "null"]}
        if self.secret:
            schema["format"] = "password"
        elif self.multiline:
            schema["format"] = "multiline"
        if self.choices:
            schema["enum"] = [*self.choices, None]
        if self.default is not None:
            schema["default"] = self.default
        return {"label": self.label, "description": self.help, "schema": schema}


def connection_form() -> tuple[FormField, ...]:
    """Return the fields of the form that aren't Airflow's own (host, port, login, password, schema).

    Host and schema stand for the address in `connection_url` and for `virtual_host`.
    """
    return tuple(
        FormField(
            name=option.name,
            label=option.label,
            help=option.meaning,
            json_type=_JSON_TYPES.get(option.value_type, "string"),
            secret=option.secret,
            multiline=option.value_type is OptionType.PROPERTIES,
            choices=tuple(member.value for member in option.choices or ()),
            default=_plain(option.default),
        )
        for option in OPTIONS
        if option.label
    )


def _plain(value: object) -> str | float | bool | None:
    if value is None or isinstance(value, str | bool | int):
        return value
    seconds = value.total_seconds()  # type: ignore[attr-defined]  # no list stands on the form
    return int(seconds) if seconds == int(seconds) else float(seconds)
