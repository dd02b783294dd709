"""Turns an Airflow connection of type `jms` into the settings a transport connects with."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Protocol
from urllib.parse import parse_qsl, unquote

from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.hooks.fields import FIELDS, ConnectionField, FieldType
from airflow_provider_jmsjca.transports import SCHEMES
from airflow_provider_jmsjca.transports.base import ConnectionSettings, TlsSettings

_DEFAULT_SCHEME = "stomp"
_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<rest>.*)", re.DOTALL)
_FIELDS_BY_NAME: Mapping[str, ConnectionField] = {field.name: field for field in FIELDS}
_TLS_FIELDS = ("ca_file", "certificate_file", "key_file", "key_password", "verify", "server_name")
_HIGHEST_PORT = 65535
_LONGEST_SECONDS = 86_400
_TYPE_WORDS = {
    FieldType.STRING: "a string",
    FieldType.NUMBER: f"a number from 0 to {_LONGEST_SECONDS}",
    FieldType.BOOLEAN: "true or false",
}


class AirflowConnection(Protocol):
    """The part of an Airflow connection that is read here."""

    conn_id: str
    conn_type: str | None
    host: str | None
    port: int | None
    login: str | None
    password: str | None
    schema: str | None
    extra: str | None


def connection_settings(connection: AirflowConnection) -> ConnectionSettings:
    """Return the settings an Airflow connection stands for.

    The host is a host name, or a URL `scheme://host:port,host:port?option=value` whose options go to the
    transport; the port field holds for hosts that name none. An empty field counts as not given.

    Raises:
        ConfigurationError: Every fault found; each names the connection and the field, never a secret.

    Source: J65, J73, J74, J76.
    """
    faults: list[str] = []
    extra = _read_extra(connection.extra, faults)
    scheme, hosts, options = _read_address(connection, extra, faults)
    if scheme not in SCHEMES:
        known = ", ".join(sorted(SCHEMES))
        faults.append(f"transport {scheme!r} is not known{_hint(scheme, SCHEMES)}; expected one of: {known}")
    if faults:
        raise ConfigurationError(f"connection {connection.conn_id!r}: {fault}" for fault in faults)
    defaults = ConnectionSettings(scheme=scheme, hosts=hosts)
    tls = {name: extra[name] for name in _TLS_FIELDS if name in extra}
    return ConnectionSettings(
        scheme=scheme,
        hosts=hosts,
        username=connection.login or None,
        password=connection.password or None,
        client_id=_text(extra, "client_id"),
        virtual_host=connection.schema or None,
        tls=_tls(tls) if tls else None,
        connect_timeout=_seconds(extra, "connect_timeout", defaults.connect_timeout),
        heart_beat=_seconds(extra, "heart_beat", defaults.heart_beat),
        reply_timeout=_seconds(extra, "reply_timeout", defaults.reply_timeout),
        options=MappingProxyType(options),
    )


def _read_extra(text: str | None, faults: list[str]) -> dict[str, object]:
    if text is None or not text.strip():
        return {}
    try:
        extra = json.loads(text)
    except json.JSONDecodeError as error:
        faults.append(
            f"extra is not JSON: {error.msg} at line {error.lineno} column {error.colno}; "
            'expected an object such as {"client_id": "airflow"}'
        )
        return {}
    if not isinstance(extra, dict):
        faults.append(f"extra is a JSON {type(extra).__name__}; expected an object")
        return {}
    known: dict[str, object] = {}
    for name, value in extra.items():
        field = _FIELDS_BY_NAME.get(name)
        if field is None:
            faults.append(f"option {name!r} in extra is not known{_hint(name, _FIELDS_BY_NAME)}")
        elif value is None or value == "":
            continue
        elif (fault := _type_fault(field, value)) is not None:
            faults.append(fault)
        else:
            known[name] = value
    return known


def _type_fault(field: ConnectionField, value: object) -> str | None:
    match field.type:
        case FieldType.STRING:
            fits = isinstance(value, str)
        case FieldType.NUMBER:
            number = isinstance(value, int | float) and not isinstance(value, bool)
            fits = number and 0 <= float(str(value)) <= _LONGEST_SECONDS
        case FieldType.BOOLEAN:
            fits = isinstance(value, bool)
    if fits:
        return None
    shown = "***" if field.secret else repr(value)
    return f"option {field.name!r} in extra is {shown}; expected {_TYPE_WORDS[field.type]}"


def _read_address(
    connection: AirflowConnection, extra: Mapping[str, object], faults: list[str]
) -> tuple[str, tuple[tuple[str, int | None], ...], dict[str, str]]:
    address = (connection.host or "").strip()
    options: dict[str, str] = {}
    match = _URL.fullmatch(address)
    if match is not None:
        scheme = match["scheme"].lower()
        address, _, query = match["rest"].partition("?")
        address = address.rstrip("/")
        options = dict(parse_qsl(query, keep_blank_values=True))
        if "@" in address:
            faults.append("the URL in host holds credentials; write them into the user and password fields")
            address = address.rpartition("@")[2]
    elif "scheme" in extra:
        scheme = str(extra["scheme"]).lower()
    else:
        named = (connection.conn_type or "").lower()
        scheme = named if named in SCHEMES else _DEFAULT_SCHEME
    if not address:
        faults.append("host is empty; expected a host name or a URL such as stomp://broker:61613")
        return scheme, (), options
    if scheme == "vm":
        return scheme, ((unquote(address), None),), options
    hosts = tuple(_host_and_port(part.strip(), connection.port, faults) for part in address.split(","))
    return scheme, hosts, options


def _host_and_port(text: str, default: int | None, faults: list[str]) -> tuple[str, int | None]:
    bracketed = re.fullmatch(r"\[(?P<host>[^\]]+)\](?::(?P<port>.*))?", text)
    if bracketed is not None:
        host, port = bracketed["host"], bracketed["port"]
    elif text.count(":") > 1:  # an IPv6 address without brackets can't carry a port
        host, port = text, None
    else:
        host, _, rest = text.partition(":")
        port = rest or None
    if not host:
        faults.append(f"host {text!r} has no name before the port")
    if port is None:
        number = default
    elif port.isascii() and port.isdigit():
        number = int(port)
    else:
        faults.append(f"port {port!r} of host {host!r} is not a number; expected 1 to {_HIGHEST_PORT}")
        return host, None
    if number is not None and not 1 <= number <= _HIGHEST_PORT:
        faults.append(f"port {number} of host {host!r} is out of range; expected 1 to {_HIGHEST_PORT}")
    return host, number


def _hint(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _text(extra: Mapping[str, object], name: str) -> str | None:
    value = extra.get(name)
    return None if value is None else str(value)


def _seconds(extra: Mapping[str, object], name: str, default: timedelta) -> timedelta:
    value = extra.get(name)
    return timedelta(seconds=value) if isinstance(value, int | float) else default


def _tls(given: Mapping[str, object]) -> TlsSettings:
    return TlsSettings(
        ca_file=_text(given, "ca_file"),
        certificate_file=_text(given, "certificate_file"),
        key_file=_text(given, "key_file"),
        key_password=_text(given, "key_password"),
        verify=given.get("verify") is not False,
        server_name=_text(given, "server_name"),
    )
