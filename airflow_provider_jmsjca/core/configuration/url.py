"""Connection URLs: the broker, the route to it, and options for the broker and for this package."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from airflow_provider_jmsjca.core.masking import MASK, is_secret, masked_value
from airflow_provider_jmsjca.core.options import check_keys, option_by_key, read_value
from airflow_provider_jmsjca.core.query import percent_decoded, read_query
from airflow_provider_jmsjca.errors import ConfigurationError

Host = tuple[str, int | None]

LOOKUP = "lookup"
DEFAULT_PORTS: Final = MappingProxyType({"stomp": 61613, "stomp+ssl": 61614})
"""Default port by scheme."""
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_FAILOVER = re.compile(
    r"(?:failover:)(?://)?(?:\((?P<inner>[^()]*)\)(?P<rest>.*)|(?P<bare>.*))", re.DOTALL | re.IGNORECASE
)
_UNFIT_IN_HOST = re.compile(r"[\s\x00-\x1f\x7f()\[\]<>\"'\\^`{|}?#/@,:]")
_HIGHEST_PORT = 65535
_WHAT = "connection URL"
_EXPECTED = "scheme://host:port?key=value"
_WITH_HOST = frozenset({*DEFAULT_PORTS, "vm"})
"""Schemes with a host at the start of the address; other schemes define their own form."""


@dataclass(frozen=True, slots=True, repr=False)
class ConnectionUrl:
    """A connection URL: its original text and its parts.

    Attributes:
        scheme: Scheme in lower case; for a failover list, the scheme of its hosts.
        hosts: Pairs of host (IPv6 without brackets) and port (`None`: the scheme's default). Empty for
            `lookup://`.
        path: The text between host and query, decoded, with its slash; for `lookup://` the name.
        query: Options by key, decoded. A key given twice has its last value.
        username: User name from `user:password@host`.
        password: Password from `user:password@host`.
        text: The URL as it was written; `str()` returns it, secrets included.

    Source: J65, J73, J74, J78.
    """

    scheme: str
    hosts: tuple[Host, ...]
    path: str = ""
    query: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), hash=False)
    username: str | None = None
    password: str | None = None
    text: str = field(default="", compare=False)

    @classmethod
    def parse(cls, text: str) -> ConnectionUrl:
        """Return the URL for a text.

        Accepts `scheme://host:port/path?key=value&key=value`, several hosts `scheme://a:1,b:2`, ActiveMQ's
        `failover:(scheme://a:1,scheme://b:2)?key=value`, and `lookup://name`. Pairs are separated by `&` or
        `&amp;`; keys and values are percent-encoded UTF-8, `+` stands for a blank.

        Raises:
            ConfigurationError: Lists every fault; no fault shows a secret. An unknown key `JMSJCA.*` is a
                fault; other keys are options for the broker.

        Source: J65, J68, J73, J74.
        """
        if not isinstance(text, str):
            raise ConfigurationError(
                f"connection URL: got {type(text).__name__}, expected text such as {_EXPECTED}"
            )
        faults: list[str] = []
        failover = _FAILOVER.fullmatch(text.strip())
        parts = _read_failover(failover, faults) if failover else _read_plain(text.strip(), faults)
        faults.extend(check_keys(parts.query, "connection URL"))
        if faults:
            # The URL's options are checked here as well, because nothing else reads them after this error.
            raise ConfigurationError([*faults, *_faults_of_values(parts.query)])
        return cls(
            scheme=parts.scheme,
            hosts=tuple(parts.hosts),
            path=parts.path,
            query=MappingProxyType(parts.query),
            username=parts.username,
            password=parts.password,
            text=text,
        )

    @property
    def lookup(self) -> str | None:
        """The name of the connection that this URL refers to; `None` if the URL names a broker."""
        return self.path if self.scheme == LOOKUP else None

    @property
    def encrypted(self) -> bool:
        """Whether the scheme uses TLS."""
        return self.scheme.endswith("ssl")

    @property
    def endpoints(self) -> frozenset[Host]:
        """The hosts in lower case, each with a port: its own, else the scheme's, else `None`."""
        default = DEFAULT_PORTS.get(self.scheme)
        return frozenset((host.lower(), port or default) for host, port in self.hosts)

    @property
    def has_secrets(self) -> bool:
        """Whether `masked` hides something."""
        return (
            self.username is not None
            or self.password is not None
            or any(masked_value(key, value) != value for key, value in self.query.items())
        )

    @property
    def has_password(self) -> bool:
        """Whether the URL contains a password or another secret value; a user name alone is not secret."""
        return self.password is not None or any(is_secret(key) and value for key, value in self.query.items())

    def with_port(self, port: int) -> ConnectionUrl:
        """Return the URL with `port` for all hosts without a port.

        `text` changes only if the URL consists of scheme and hosts.
        """
        hosts = tuple((host, own or port) for host, own in self.hosts)
        changed = replace(self, hosts=hosts)
        plain = not (self.query or self.path or self.has_secrets)
        return replace(changed, text=changed.masked()) if plain else changed

    def masked(self) -> str:
        """Return the URL in normal form, with its secrets masked."""
        user = f"{MASK}@" if self.username is not None or self.password is not None else ""
        hosts = ",".join(host_text(host, port) for host, port in self.hosts)
        pairs = "&".join(f"{key}={masked_value(key, value)}" for key, value in self.query.items())
        return f"{self.scheme}://{user}{hosts}{self.path}{'?' if pairs else ''}{pairs}"

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"ConnectionUrl({self.masked()!r})"

    def __reduce__(self) -> tuple[object, tuple[str]]:
        """Pickle the text only: the query is a read-only view, which can't be pickled."""
        return ConnectionUrl.parse, (self.text,)


def _faults_of_values(query: Mapping[str, str]) -> list[str]:
    faults: list[str] = []
    for key, value in query.items():
        option = option_by_key(key)
        if option is not None and value.strip():
            try:
                read_value(option, value, key)
            except ConfigurationError as error:
                faults.extend(f"connection URL: {fault}" for fault in error.faults)
    return faults


def is_connection_url(text: str) -> bool:
    """Return whether the text is a connection URL rather than, say, a user name. Source: J78."""
    return _SCHEME.match(text) is not None or text[:10].lower().startswith(("failover:(", "failover:/"))


@dataclass(slots=True)
class _Parts:
    scheme: str = ""
    hosts: list[Host] = field(default_factory=list)
    path: str = ""
    query: dict[str, str] = field(default_factory=dict)
    username: str | None = None
    password: str | None = None


def _read_plain(text: str, faults: list[str]) -> _Parts:
    parts = _Parts()
    match = _SCHEME.match(text)
    if match is None:
        faults.append(f"connection URL: no scheme, expected {_EXPECTED}")
        return parts
    parts.scheme = match[1].lower()
    address, mark, query = text[match.end() :].partition("?")
    if mark:
        parts.query = read_query(query, _WHAT, faults)
    if parts.scheme == LOOKUP:
        parts.path = percent_decoded(address, f"{_WHAT}: name", faults)
        if not parts.path.strip():
            faults.append("connection URL: lookup:// without a name, expected lookup://connection")
        return parts
    authority, slash, path = address.partition("/")
    parts.path = slash + percent_decoded(path, f"{_WHAT}: path", faults)
    _read_authority(authority, parts, faults)
    return parts


def _read_failover(match: re.Match[str], faults: list[str]) -> _Parts:
    inner = match["inner"] if match["inner"] is not None else match["bare"]
    inner, mark, query = inner.partition("?") if match["inner"] is None else (inner, "", "")
    rest = match["rest"] or ""
    if match["inner"] is not None:
        before, mark, query = rest.partition("?")
        if before.strip("/"):
            faults.append(
                "connection URL: text between the failover list and its options, expected ?key=value"
            )
    whole = _Parts()
    for position, member in enumerate(inner.split(","), start=1):
        before = len(faults)
        part = _read_plain(member.strip(), faults)
        if len(faults) > before:
            faults[before:] = [f"{fault} (host {position} of the failover list)" for fault in faults[before:]]
        elif part.scheme == LOOKUP:
            faults.append("connection URL: lookup:// inside a failover list, expected addresses of brokers")
        elif position == 1 or not whole.scheme:
            whole = part
        else:
            _join(whole, part, faults)
    if mark:
        whole.query.update(read_query(query, _WHAT, faults))
    return whole


def _join(whole: _Parts, part: _Parts, faults: list[str]) -> None:
    """Add a host to the failover list; hosts may differ only in their address."""
    whole.hosts += part.hosts
    for name, same in (
        ("scheme", whole.scheme == part.scheme),
        ("path", whole.path == part.path),
        ("user information", (whole.username, whole.password) == (part.username, part.password)),
        ("options", all(whole.query.get(key, value) == value for key, value in part.query.items())),
    ):
        if not same:
            faults.append(
                f"connection URL: the hosts of the failover list differ in {name}, expected one for all"
            )
    whole.query.update(part.query)


def _read_authority(authority: str, parts: _Parts, faults: list[str]) -> None:
    user, at, hosts = authority.rpartition("@")
    if at:
        name, colon, password = user.partition(":")
        parts.username = percent_decoded(name, f"{_WHAT}: user", faults) or None
        parts.password = percent_decoded(password, f"{_WHAT}: password", faults) if colon else None
    if not hosts and parts.scheme not in _WITH_HOST:
        return
    for host in hosts.split(","):
        read = _read_host(host.strip(), faults)
        if read is not None:
            parts.hosts.append(read)


def _read_host(text: str, faults: list[str]) -> Host | None:
    if text.startswith("["):
        address, bracket, port = text[1:].partition("]")
        if not bracket or not _is_ipv6(address):
            faults.append(
                f"connection URL: host {text!r}, expected an IPv6 address in brackets such as [::1]"
            )
            return None
        if port and not port.startswith(":"):
            faults.append(f"connection URL: {port!r} after the host [{address}], expected :port")
            return None
        colon, port = port[:1], port[1:]
        host = address
    else:
        host, colon, port = text.partition(":")
        if text.count(":") > 1 and _is_ipv6(text):
            faults.append(
                f"connection URL: host {text!r}, expected brackets around an IPv6 address: [{text}]"
            )
            return None
        host = percent_decoded(host, f"{_WHAT}: host", faults)
        if not host:
            faults.append(
                f"connection URL: no host before {text!r}, expected {_EXPECTED}"
                if text
                else f"connection URL: no host, expected {_EXPECTED}"
            )
            return None
        if _UNFIT_IN_HOST.search(host):
            faults.append(f"connection URL: host {host!r}, expected a host name or address")
            return None
    if not colon:
        return host, None
    if not (port.isascii() and port.isdigit()):
        # The port is not shown: it may be the password in user information without a host.
        faults.append(
            f"connection URL: the port of host {host!r} is not a number, expected 1 to {_HIGHEST_PORT} "
            "(an IPv6 address needs brackets, user information ends with @)"
        )
        return None
    if len(port) > len("65535") or not 0 < int(port) <= _HIGHEST_PORT:
        faults.append(
            f"connection URL: port {port[:10]} of host {host!r} is out of range, "
            f"expected 1 to {_HIGHEST_PORT}"
        )
        return None
    return host, int(port)


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def host_text(host: str, port: int | None) -> str:
    """Return host and port as a URL has them."""
    shown = f"[{host}]" if ":" in host else host
    return shown if port is None else f"{shown}:{port}"
