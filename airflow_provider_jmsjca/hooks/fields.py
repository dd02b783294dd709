"""The fields of an Airflow connection of type `jms` that live in its extra JSON.

Read by Airflow whenever it lists providers, so nothing heavy is imported here.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class FieldType(enum.StrEnum):
    """JSON types a field can have."""

    STRING = "string"
    NUMBER = "number"
    BOOLEAN = "boolean"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionField:
    """One field of the connection form, stored under `name` in the extra JSON.

    Attributes:
        secret: Shown as a password field, and masked in logs.
        default: What holds when the field is empty; `None` leaves it to the transport or broker.
    """

    name: str
    label: str
    help: str
    type: FieldType = FieldType.STRING
    secret: bool = False
    multiline: bool = False
    default: str | float | bool | None = None

    def form(self) -> dict[str, object]:
        """Return the field as Airflow's `conn-fields` has it."""
        schema: dict[str, object] = {"type": [str(self.type), "null"]}
        if self.secret:
            schema["format"] = "password"
        elif self.multiline:
            schema["format"] = "multiline"
        if self.default is not None:
            schema["default"] = self.default
        return {"label": self.label, "description": self.help, "schema": schema}


FIELDS = (
    ConnectionField(
        name="scheme",
        label="Transport",
        help="stomp, stomp+ssl or vm. Not needed if the host is a URL, which names it itself.",
        default="stomp",
    ),
    ConnectionField(
        name="client_id",
        label="Client id",
        help="JMS client id. Needed for durable subscriptions; only one connection may use it at a time.",
    ),
    ConnectionField(
        name="connect_timeout",
        label="Connect timeout (seconds)",
        help="Bound on the whole of TCP, TLS and log-in, for each host.",
        type=FieldType.NUMBER,
        default=15,
    ),
    ConnectionField(
        name="heart_beat",
        label="Heart-beat (seconds)",
        help="How often each side proves that it is alive. 0 switches it off.",
        type=FieldType.NUMBER,
        default=5,
    ),
    ConnectionField(
        name="reply_timeout",
        label="Reply timeout (seconds)",
        help="How long to wait for the broker's confirmation before the connection counts as lost.",
        type=FieldType.NUMBER,
        default=30,
    ),
    ConnectionField(
        name="ca_file",
        label="TLS: trusted certificates",
        help="PEM file of the certificates to trust, instead of the system's.",
    ),
    ConnectionField(
        name="certificate_file",
        label="TLS: our certificate",
        help="PEM file, for brokers that ask clients for one.",
    ),
    ConnectionField(
        name="key_file", label="TLS: our key", help="PEM file of its key, if not in the same file."
    ),
    ConnectionField(
        name="key_password", label="TLS: password of our key", help="Stored encrypted.", secret=True
    ),
    ConnectionField(
        name="verify",
        label="TLS: check the broker",
        help="Switched off, any certificate is accepted: open to a man in the middle.",
        type=FieldType.BOOLEAN,
        default=True,
    ),
    ConnectionField(
        name="server_name",
        label="TLS: name in the certificate",
        help="The host name to expect in the broker's certificate, if not the one connected to.",
    ),
)
