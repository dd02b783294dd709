"""Arguments of `JmsActivationTrigger`: stored by Airflow, checked, and converted to a configuration level."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Self

from airflow_provider_jmsjca.core.activation import ActivationSpec, read_given, secret_fields
from airflow_provider_jmsjca.core.configuration.administered import DestinationReference
from airflow_provider_jmsjca.core.configuration.destination_options import reference_text
from airflow_provider_jmsjca.core.configuration.layers import Layer
from airflow_provider_jmsjca.core.configuration.precedence import Resolved, resolve
from airflow_provider_jmsjca.core.destination import Destination, DestinationKind
from airflow_provider_jmsjca.core.options import (
    OPTIONS_BY_NAME,
    Level,
    duration_text,
    option_by_field,
    option_by_key,
    read_value,
)
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.hooks.destinations import find_destination
from airflow_provider_jmsjca.hooks.jms import JmsHook
from airflow_provider_jmsjca.hooks.settings import settings_for, with_client_id_of
from airflow_provider_jmsjca.transports.base import ConnectionSettings
from airflow_provider_jmsjca.triggers.effective_options import MOST_IN_FLIGHT, WHO, EffectiveOptions
from airflow_provider_jmsjca.triggers.payload import EventMode, Payload

_LONGEST_INTERVAL = 86_400
_LONGEST_HOLD = 30 * 86_400
_LONGEST_SHOWN = 100

DEFAULT_INTERVAL = 10
DEFAULT_HOLD_TIMEOUT = 3600
DEFAULT_MAX_BODY_BYTES = 262_144
OWN_ARGUMENTS = ("jms_conn_id", "spec", "event", "interval", "payload", "max_body_bytes", "hold_timeout")
"""Arguments of the trigger itself; all others are fields of an activation spec."""
_TEXTS = ("message_selector", "subscription_name", "redelivery_handling")
_TEXT_LISTS = ("destination", "dead_letter_destination")

_READY_FIELDS = frozenset(
    {
        "connection_url",
        "options",
        "send_login_to_other_hosts",
        "jms_conn_id",
        "name",
        "destination",
        "destination_type",
        "message_selector",
        "selector_override",
        "minimal_reconnect_logging",
    }
)
"""Fields that apply to `event="ready"`, which only browses a queue."""

_CONNECTION_FIELDS = frozenset(
    {"connection_url", "username", "password", "options", "send_login_to_other_hosts"}
)
"""Fields that may select another broker or another user."""

_UNUSABLE = "unusable"


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationOptions:
    """Parsed arguments of a trigger, and the key of the stream of events that it shares.

    Attributes:
        jms_conn_id: The Airflow connection.
        activation: The fields of the activation spec, as a configuration level.
        event: See `JmsActivationTrigger`.
        interval: See `JmsActivationTrigger`.
        payload: See `JmsActivationTrigger`. Triggers with different payloads may share a stream.
        max_body_bytes: See `JmsActivationTrigger`. Triggers with different limits may share a stream.
        hold_timeout: See `JmsActivationTrigger`.
        key: Equal for all triggers that share a stream; the form of the events is not part of it.
    """

    jms_conn_id: str
    activation: Layer
    event: EventMode
    interval: timedelta
    payload: Payload
    max_body_bytes: int
    hold_timeout: timedelta
    key: Hashable = field(repr=False)

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Self:
        """Return the options that are given as arguments of a trigger.

        Args:
            given: The arguments of `JmsActivationTrigger`, converted by `plain`.

        Raises:
            ConfigurationError: Every fault, each with the argument's name and the value found.
        """
        faults: list[str] = []
        event = _event(given["event"], faults)
        interval = given["interval"]
        if not _is_number(interval, int | float) or not 0 < interval <= _LONGEST_INTERVAL:
            faults.append(
                f"interval is {_shown(interval)}; expected seconds above 0, up to {_LONGEST_INTERVAL}"
            )
        elif event is EventMode.MESSAGE and interval != DEFAULT_INTERVAL:
            faults.append("interval is only for event='ready'; with 'message' each message is an event")
        _check_payload(given["payload"], given["max_body_bytes"], event, faults)
        _check_hold(given["hold_timeout"], faults)
        fields = _fields(given, faults)
        read = read_given(fields, ActivationSpec.model_fields)
        faults += read.faults
        names = sorted(read.values)
        if given["hold_timeout"] != DEFAULT_HOLD_TIMEOUT and read.values.get("hold_until_ack") is not True:
            faults.append("hold_timeout works only with hold_until_ack=True")
        if event is EventMode.READY and (others := [name for name in names if name not in _READY_FIELDS]):
            faults.append(f"{', '.join(others)}: only for event='message'; with 'ready' nothing is consumed")
        if read.values.get("allow_message_delays") is True:  # at other levels it applies to senders
            faults.append("allow_message_delays: not supported by a trigger: nothing is sent")
        conn_id = given["jms_conn_id"] or read.values.get("jms_conn_id") or JmsHook.default_conn_name
        if not isinstance(conn_id, str) or _unusable(given["jms_conn_id"]):
            faults.append(f"jms_conn_id is {_shown(conn_id)}; expected the id of an Airflow connection")
        faults += _templates({"jms_conn_id": conn_id, **read.values})
        if faults:
            raise ConfigurationError(f"{WHO}: {fault}" for fault in faults)
        return cls(
            jms_conn_id=str(conn_id),
            activation=Layer(level=Level.ACTIVATION, source=WHO, fields=read.given),
            event=event,
            interval=timedelta(seconds=interval),
            payload=Payload(given["payload"]),
            max_body_bytes=given["max_body_bytes"],
            hold_timeout=timedelta(seconds=given["hold_timeout"]),
            key=(
                str(conn_id),
                str(event),
                interval,
                given["hold_timeout"],
                # With batches, also the arguments for the form of events: they decide where a batch ends.
                *((given["payload"], given["max_body_bytes"]) if "batch_size" in names else ()),
                *(repr((name, read.values[name])) for name in names if name != "jms_conn_id"),
                *map(repr, sorted(read.parameters.items())),
            ),
        )

    @property
    def holds(self) -> bool:
        """Whether messages are held until their DAG runs end."""
        read = read_given(self.activation.fields, ActivationSpec.model_fields)
        return read.values.get("hold_until_ack") is True

    @property
    def _limbo_conn_id(self) -> str:
        """Airflow connection over which messages in limbo are sent; empty if the spec has its own URL."""
        read = read_given(self.activation.fields, ActivationSpec.model_fields)
        return "" if _CONNECTION_FIELDS & read.values.keys() else self.jms_conn_id

    @property
    def title(self) -> str:
        """The destination as given by the author, for the log."""
        fields = self.activation.fields
        given = next((fields[each] for each in fields if _name(each) == "destination"), None)
        texts = [given] if isinstance(given, str) else given if isinstance(given, list) else []
        return ", ".join(map(_destination_text, texts)) or "nowhere"

    def check(self) -> None:
        """Check the trigger's options alone, without those of the connection and of `[jmsjca]`.

        Raises:
            ConfigurationError: Names every fault.
        """
        fields = {
            name: value
            for name, value in self.activation.fields.items()
            if (option := option_by_field(name)) is None or option.name != "connection_url"
        }
        self.effective_options(resolve([replace(self.activation, fields=fields)])).check()

    async def settings(
        self, effective: EffectiveOptions | None = None
    ) -> tuple[EffectiveOptions, ConnectionSettings]:
        """Return the effective options, and connection settings from the current Airflow connection.

        Call it in an event loop.

        Args:
            effective: The effective options, if only the connection is to be read again.

        Raises:
            ConfigurationError: Every fault of every level.
            TransientBrokerError: Airflow is not reachable now.

        Source: J41, J46-J49, J113, J143, C12.
        """
        resolved = await JmsHook(self.jms_conn_id).aresolved(self.activation)
        effective = effective or self.effective_options(resolved)
        settings = settings_for(self.jms_conn_id, resolved)
        if self.event is EventMode.READY:
            # Only the consumer uses the client id: the broker refuses a second connection with it.
            return effective, replace(settings, client_id=None)
        return effective, with_client_id_of(settings, effective.spec, "")

    def settings_finder(self, effective: EffectiveOptions) -> Callable[[], Awaitable[ConnectionSettings]]:
        """Return a function that returns the connection settings of the current Airflow connection.

        It is called once a minute for up to a thousand activations. So the settings are computed only after
        the connection was edited. The function raises the errors of `settings`.
        """
        spec_names: tuple[object, ...] | None = None
        settings: ConnectionSettings | None = None

        async def now() -> ConnectionSettings:
            nonlocal spec_names, settings
            current = await JmsHook(self.jms_conn_id).astored_fields(self.activation)
            if settings is None or current != spec_names:
                settings, spec_names = (await self.settings(effective))[1], current
            return settings

        return now

    def effective_options(self, resolved: Resolved) -> EffectiveOptions:
        """Return the effective options of all levels.

        Raises:
            ConfigurationError: The levels contradict each other, or set an unsupported option.
        """
        return EffectiveOptions.of(resolved, self.event, self._limbo_conn_id)


def _templates(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield a fault for each template in a name, because Airflow renders no templates in triggers."""
    for name in ("jms_conn_id", *_TEXT_LISTS):
        found = values.get(name)
        for text in found if isinstance(found, tuple) else (found,):
            if isinstance(text, str) and "{{" in text:
                yield f"{name} is {_shown(text)}: Airflow renders no templates in a trigger: expected a name"


def _fields(given: Mapping[str, Any], faults: list[str]) -> dict[str, Any]:
    """Return the fields of the activation, from `spec` and from the other arguments."""
    beside: dict[str, Any] = {}
    for name, value in given.items():
        if name in OWN_ARGUMENTS or value is None or value == "":
            continue
        if (fault := _field_fault(name, value)) is None:
            beside[name] = value
        else:
            faults.append(fault)
    inside = _inside(given["spec"], faults)
    spec_names = set(map(_name, inside))
    faults += [
        f"{name} is given both directly and in spec; expected it in one place"
        for name in beside
        if _name(name) in spec_names
    ]
    beside = {name: value for name, value in beside.items() if _name(name) not in spec_names}
    texts = beside.get("destination")
    if texts is not None and "destination_type" not in spec_names | set(map(_name, beside)):
        read = read_value(OPTIONS_BY_NAME["destination"], texts, "destination")
        beside["destination"] = list(map(_with_kind, read)) if isinstance(read, tuple) else texts
    if "subscription_name" in beside and "subscription_durability" not in spec_names | set(
        map(_name, beside)
    ):
        beside["subscription_durability"] = "durable"
    return inside | beside


def _field_fault(name: str, value: Any) -> str | None:
    """Return the fault of a field that is given as an argument, or `None`."""
    kind = type(value).__name__
    if (why := _unusable(value)) is not None:
        return f"{name} {why}"
    if name in _TEXTS and not isinstance(value, str):
        return f"{name} is {_shown(value)}, of type {kind}; expected a string, or None"
    if name in _TEXT_LISTS and not _are_texts(value):
        return f"{name} is {_shown(value)}, of type {kind}; expected a string, or several"
    if name == "prefetch" and (not _is_number(value, int) or not 1 <= value <= MOST_IN_FLIGHT):
        return f"prefetch is {_shown(value)}; expected a whole number from 1 to {MOST_IN_FLIGHT}"
    return None


def _inside(spec: Any, faults: list[str]) -> dict[str, Any]:
    """Return the activation's fields that the argument `spec` sets, by name.

    Args:
        spec: The argument of the trigger: a mapping of fields, or `None`.
        faults: Faults are added here; fields with a fault are not returned.
    """
    why = _unusable(spec)
    if why is not None or not isinstance(spec, Mapping | None):
        why = why or f"is {_shown(spec)}"
        faults.append(f"spec {why}; expected an ActivationSpec, or a mapping of its fields")
        return {}
    given = spec or {}
    reasons = {name: why for name, value in given.items() if (why := _unusable(value)) is not None}
    faults += [f"spec: {name} {why}" for name, why in reasons.items()]
    return {name: value for name, value in given.items() if name not in reasons}


def _with_kind(text: str) -> str:
    """Return a destination with its kind; a bare name is a queue, as for sensors and operators."""
    try:
        reference = DestinationReference.parse(text, default=DestinationKind.QUEUE)
        return text if reference.lookup else reference_text(reference.resolve({}))
    except ConfigurationError:
        return text  # the spec reports it


def _destination_text(text: str) -> str:
    try:
        return str(find_destination(text, variables=False))
    except ConfigurationError:
        return text


def _name(spelling: str) -> str:
    option = option_by_field(spelling) or option_by_key(spelling)
    return spelling if option is None else option.name


def _event(value: object, faults: list[str]) -> EventMode:
    try:
        return EventMode(str(value))
    except ValueError:
        faults.append(
            f"event is {_shown(value)}; expected one of {', '.join(map(repr, map(str, EventMode)))}"
        )
        return EventMode.MESSAGE


def _check_payload(payload: object, most: Any, event: EventMode, faults: list[str]) -> None:
    if not isinstance(payload, str) or payload not in set(Payload):
        known = ", ".join(map(repr, map(str, Payload)))
        faults.append(f"payload is {_shown(payload)}; expected one of {known}")
    elif event is EventMode.READY and payload != Payload.MESSAGE:
        faults.append("payload is for event='message': with 'ready' an event carries no message")
    if not _is_number(most, int) or most < 0:
        faults.append(f"max_body_bytes is {_shown(most)}; expected a whole number of at least 0")
    elif event is EventMode.READY and most != DEFAULT_MAX_BODY_BYTES:
        faults.append("max_body_bytes is for event='message': with 'ready' an event carries no message")


def _check_hold(seconds: Any, faults: list[str]) -> None:
    if not _is_number(seconds, int | float) or not 0 < seconds <= _LONGEST_HOLD:
        faults.append(f"hold_timeout is {_shown(seconds)}; expected seconds above 0, up to {_LONGEST_HOLD}")


def _is_number(value: object, kind: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _are_texts(value: object) -> bool:
    if isinstance(value, str):
        return True
    return isinstance(value, list) and bool(value) and all(isinstance(each, str) for each in value)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"


def _unusable(value: object) -> str | None:
    """Return the fault of an argument that `plain` could not convert, or `None`."""
    return value[_UNUSABLE] if isinstance(value, dict) and _UNUSABLE in value else None


_DEEPEST = 8
_LARGEST_NUMBER = 2**63
_NO_SECRETS = (
    "holds a secret, which Airflow would store in clear and show. Expected it in an Airflow connection: name "
    "that one in jms_conn_id, or as connection_url: lookup://CONNECTION_ID"
)


def plain(name: str, value: Any) -> Any:
    """Return an argument in the form that Airflow stores: JSON that reads back unchanged, without secrets.

    Never raises. A value that can't be stored becomes a marker, for which `ActivationOptions.parse` reports
    a fault.

    Args:
        name: Name of the argument.
        value: Value of any type.
    """
    try:
        if isinstance(value, ActivationSpec):
            value = value.layer().fields
        if isinstance(value, Mapping) and name == "spec":
            return {str(each): plain(str(each), inside) for each, inside in value.items()}
        stored = _plain(value, 0)
        # An empty `value` may be stored as a marker, whose text is checked too: then a second call with the
        # stored value gives the same result.
        return {_UNUSABLE: _NO_SECRETS} if secret_fields({name: value or stored}) else stored
    except Exception:  # noqa: BLE001  # an argument of any type; an exception would stop the triggerer
        return {_UNUSABLE: f"is of type {type(value).__name__}, which can't be stored"}


def _plain(value: Any, depth: int) -> Any:
    if depth > _DEEPEST:
        raise ValueError
    match value:
        case None | bool():
            return value
        case str():
            return str(value)  # enums as text: Airflow compares triggers by their serialized arguments
        case int() if abs(value) < _LARGEST_NUMBER:
            return int(value)
        case float():
            return float(value)
        case timedelta():
            return duration_text(value)
        case Destination():
            return str(value)
        case Mapping():
            return {str(name): _plain(inside, depth + 1) for name, inside in value.items()}
        case list() | tuple():
            return [_plain(each, depth + 1) for each in value]
        case _:
            return {_UNUSABLE: f"is of type {type(value).__name__}, which can't be stored"}
