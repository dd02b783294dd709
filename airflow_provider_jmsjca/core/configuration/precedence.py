"""Merges the levels of configuration into one set of values, each with its origin.

Precedence from lowest to highest: connector (the installation), connection factory, activation, call. Within
a level: field, environment variable, Options, URL query.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from airflow_provider_jmsjca.core.configuration.layers import (
    Layer,
    Origin,
    ReadLayer,
    ResolvedValue,
    SourceKind,
    call_layer,
    connector_layer,
    read_layer,
)
from airflow_provider_jmsjca.core.configuration.recipient import Recipient
from airflow_provider_jmsjca.core.configuration.url import ConnectionUrl
from airflow_provider_jmsjca.core.masking import is_secret
from airflow_provider_jmsjca.core.options import OPTIONS_BY_NAME, PARAMETER, Level, OptionValue
from airflow_provider_jmsjca.errors import ConfigurationError

__all__ = [
    "Layer",
    "Level",
    "Origin",
    "Resolved",
    "ResolvedValue",
    "SourceKind",
    "call_layer",
    "connector_layer",
    "resolve",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """The effective configuration: all levels merged.

    Attributes:
        values: The values that are set, by option name.
        url: URL of the broker; `None` if no level names a broker.
        broker_options: Options for the broker or its client, with their origins.
        parameters: Values of selector parameters, with their origins, by names in lower case. Source: J181.
        replaced: Values without effect: a lower level sets the same option by a key that overrides the field.
            Source: J143.
    """

    values: Mapping[str, ResolvedValue]
    url: ConnectionUrl | None
    broker_options: Mapping[str, tuple[str, Origin]] = field(repr=False)
    parameters: Mapping[str, tuple[str, Origin]] = field(default_factory=dict, repr=False)
    replaced: tuple[ResolvedValue, ...] = ()

    def __getitem__(self, name: str) -> OptionValue:
        """Return the effective value of the option of this name; its default if it is not set."""
        return self.value(name).value

    def __iter__(self) -> Iterator[str]:
        return iter(self.values)

    @property
    def parameter_fields(self) -> dict[str, str]:
        """The selector parameters as fields, such as `parameter.region`."""
        return {f"{PARAMETER}{name}": value for name, (value, _) in self.parameters.items()}

    def origin(self, name: str) -> Origin:
        """Return the origin of the effective value."""
        return self.value(name).origin

    def value(self, name: str) -> ResolvedValue:
        """Return the effective value of an option, with its origin.

        An option that is not set has its default, which may depend on other options.

        Raises:
            KeyError: There is no option of this name.

        Source: J92, J98.
        """
        found = self.values.get(name)
        if found is not None:
            return found
        option = OPTIONS_BY_NAME[name]
        default = option.default
        if name == "ignore_tx":
            default = not self["acc"]
        return ResolvedValue(option=option, value=default, origin=_DEFAULT_ORIGIN)


_INSIDE = ("vm",)
"""Schemes of brokers inside this process."""

_CREDENTIALS = ("username", "password")
_RECIPIENT = ("verify", "ca_file", "server_name")
"""Options that identify a recipient besides its URL."""

_BROKERS = "option "
"""Prefix that distinguishes options for the broker in mappings by option name."""

_DEFAULT_ORIGIN = Origin(level=None, source="", place=SourceKind.DEFAULT, spelling="")


def resolve(layers: Iterable[Layer], connections: Mapping[str, Layer] | None = None) -> Resolved:
    """Return the effective configuration of all levels.

    A layer with the URL `lookup://name` uses the connection of that name instead of the given connection
    factory. The connection's URL always applies. The connection's credentials apply if the layer has none.
    The layer's own options override those of the connection.

    If a higher level overrides a URL, the credentials and broker options in that URL are dropped too. The
    `JMSJCA.*` options in it still apply at their level.

    Credentials and secret broker options of a lower level are sent only to the hosts and ports for which they
    were given. TLS must not be dropped, and the checks of the broker's certificate must be at least as
    strict. An activation or a call with a different broker is refused, unless `send_login_to_other_hosts` is
    set.

    Args:
        layers: At most one per level, in any order.
        connections: Connection factories by name, for `lookup://`; only the required names are looked up.

    Raises:
        ConfigurationError: Lists every fault of every level.

    Source: J31, J38, J46, J66, J68-J72, J76, J77, J113, J143, J178, C12, C13, J181.
    """
    faults: list[str] = []
    read = [read_layer(layer, faults) for layer in sorted(layers, key=lambda layer: layer.level)]
    chain = _with_lookups(read, connections or {}, faults)
    resolved, set_by = _merged(chain)
    faults.extend(_misdirected_credentials(chain, resolved, set_by))
    if faults:
        raise ConfigurationError(faults)
    return resolved


def _merged(chain: list[ReadLayer]) -> tuple[Resolved, dict[str, int]]:
    """Merge layers; return the configuration, and the position of the layer that sets each option.

    Args:
        chain: The layers, lowest level first.

    Returns:
        The configuration; and positions in `chain`, by the name of an option or of a broker option.
    """
    values: dict[str, ResolvedValue] = {}
    set_by: dict[str, int] = {}
    broker: dict[str, tuple[str, Origin]] = {}
    parameters: dict[str, tuple[str, Origin]] = {}
    replaced: list[ResolvedValue] = []
    addresses = [layer for layer in chain if layer.url is not None and layer.url.lookup is None]
    address = addresses[-1] if addresses else None
    for position, layer in enumerate(chain):
        overridden = layer.url is not None and layer.url.lookup is None and layer is not address
        for value in layer.values:
            if overridden and _goes_with_url(value.origin):
                continue
            current = values.get(value.option.name)
            if current is None or not _overrides(current, value):
                values[value.option.name] = value
                set_by[value.option.name] = position
            elif value.value != current.value:
                replaced.append(value)
        parameters.update(layer.parameters)
        for key, entry in layer.broker.items():
            if not (overridden and _goes_with_url(entry[1])):
                broker[key] = entry
                set_by[_BROKERS + key] = position
    resolved = Resolved(
        values=MappingProxyType(values),
        url=address.url if address else None,
        broker_options=MappingProxyType(broker),
        parameters=MappingProxyType(parameters),
        replaced=tuple(replaced),
    )
    return resolved, set_by


def _misdirected_credentials(
    chain: list[ReadLayer], resolved: Resolved, set_by: Mapping[str, int]
) -> Iterator[str]:
    """Yield a fault if an activation or a call would send credentials of a lower level to another broker.

    The intended recipient of credentials is the broker that results from the layer with the credentials and
    the layers below it. Connector (the installation) and connection factory count as one layer, because the
    installation controls both.

    Args:
        chain: All layers, lowest level first.
        resolved: The effective configuration.
        set_by: Position in `chain` of the layer that sets an option or a broker option, by its name.
    """
    leading = [
        at for at, one in enumerate(chain) if one.layer.level >= Level.ACTIVATION and _names_recipient(one)
    ]
    recipient = _recipient(resolved) if leading else None
    if recipient is None or recipient.url.scheme in _INSIDE or resolved["send_login_to_other_hosts"]:
        return
    taken: list[str] = []
    differences: list[tuple[str, str]] = []
    secrets = [_BROKERS + key for key in resolved.broker_options if is_secret(key)]
    for name in (*_CREDENTIALS, *secrets):
        setter = set_by.get(name, len(chain))
        if leading[-1] <= setter:
            continue
        trusted = [one for at, one in enumerate(chain) if at <= setter or one.layer.level < Level.ACTIVATION]
        intended = _recipient(_merged(trusted)[0])
        found = [] if intended is None else list(recipient.differences(intended))
        if found:
            taken.append(name)
            differences = found
    if not taken:
        return
    causes = [(_cause(resolved, option), why) for option, why in differences]
    yield (
        f"{causes[0][0].source}: {', and '.join(f'its {cause.spelling} {why}' for cause, why in causes)}, "
        f"where {' and '.join(taken)} of {_origin(resolved, taken[-1]).source} would be sent. "
        "Expected that broker's own Airflow connection (connection_url: lookup://CONNECTION_ID), or "
        "send_login_to_other_hosts: true (in a URL JMSJCA.send_login_to_other_hosts=true) to send them "
        "there anyway"
    )


def _recipient(resolved: Resolved) -> Recipient | None:
    """Return the broker to connect to; `None` if no level names a broker."""
    if resolved.url is None:
        return None
    ca_file, server_name = resolved["ca_file"], resolved["server_name"]
    return Recipient(
        url=resolved.url,
        verify=resolved["verify"] is not False,
        ca_file=ca_file if isinstance(ca_file, str) else None,
        server_name=server_name if isinstance(server_name, str) else None,
    )


def _names_recipient(layer: ReadLayer) -> bool:
    """Return whether a level names the broker, or sets how the broker's certificate is checked."""
    return layer.url is not None or any(value.option.name in _RECIPIENT for value in layer.values)


def _origin(resolved: Resolved, name: str) -> Origin:
    """Return the origin of a credential."""
    if name.startswith(_BROKERS):
        return resolved.broker_options[name.removeprefix(_BROKERS)][1]
    return resolved.origin(name)


def _cause(resolved: Resolved, name: str) -> Origin:
    """Return the origin of an option that makes the recipient of a login less safe.

    If no activation or call sets the option, the URL of one of them has dropped the option's value. The
    origin of that URL is returned in this case.
    """
    origin = resolved.origin(name)
    if origin.level is None or origin.level < Level.ACTIVATION:
        return resolved.origin("connection_url")
    return origin


def _overrides(lower: ResolvedValue, higher: ResolvedValue) -> bool:
    """Return whether a value of a lower level overrides the value of the same option at a higher level.

    This is the case for some options if the lower level sets the key (in an Options text or URL query), and
    the higher level sets the field.

    Args:
        lower: The value of the lower level.
        higher: The value of the higher level.

    Source: J143.
    """
    return (
        lower.option.key_replaces_field
        and lower.origin.place >= SourceKind.OPTIONS
        and higher.origin.place < SourceKind.OPTIONS
    )


def _goes_with_url(origin: Origin) -> bool:
    """Return whether a value belongs to the broker of its URL, and is dropped with that URL.

    Credentials, TLS settings and broker options must not reach another broker. `JMSJCA.*` options are for
    this package, so they are kept.
    """
    return origin.place is SourceKind.URL and not origin.spelling.upper().startswith("JMSJCA.")


def _with_lookups(
    read: list[ReadLayer], connections: Mapping[str, Layer], faults: list[str]
) -> list[ReadLayer]:
    chain: list[ReadLayer] = []
    for layer in read:
        found: list[ReadLayer] = []
        names: list[str] = []
        above = layer
        while above.url is not None and (name := above.url.lookup) is not None:
            if name in names:
                faults.append(
                    f"{layer.layer.title}: lookup:// entries refer to each other in a circle: "
                    f"{' -> '.join([*names, name])}"
                )
                break
            names.append(name)
            if name not in connections:
                faults.append(f"{above.layer.title}: connection_url: no connection {name!r} to look up")
                break
            above = read_layer(connections[name], faults)
            found.append(above)
        if found:
            chain = [one for one in chain if one.layer.level is not Level.CONNECTION_FACTORY]
        chain += [*reversed(found), layer]
    return chain
