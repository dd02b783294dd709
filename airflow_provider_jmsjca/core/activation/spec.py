"""The activation spec."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from datetime import timedelta
from importlib import import_module
from typing import Any, Self

from pydantic import PrivateAttr

from airflow_provider_jmsjca.core.activation.document import parse_document, write_yaml
from airflow_provider_jmsjca.core.activation.fields import ActivationFields
from airflow_provider_jmsjca.core.activation.reading import option_of, read_given, secret_fields
from airflow_provider_jmsjca.core.activation.redelivery import redelivery_handling
from airflow_provider_jmsjca.core.activation.rules import check, references
from airflow_provider_jmsjca.core.configuration.administered import (
    AdministeredObject,
    DestinationReference,
    destination_named,
    is_discard,
)
from airflow_provider_jmsjca.core.configuration.explain import display
from airflow_provider_jmsjca.core.configuration.layers import Layer
from airflow_provider_jmsjca.core.configuration.overruling import yielding
from airflow_provider_jmsjca.core.configuration.precedence import Resolved
from airflow_provider_jmsjca.core.configuration.subscription import SubscriptionName
from airflow_provider_jmsjca.core.configuration.url import ConnectionUrl
from airflow_provider_jmsjca.core.destination import Destination, DestinationKind
from airflow_provider_jmsjca.core.masking import is_secret
from airflow_provider_jmsjca.core.options import (
    OPTIONS_BY_NAME,
    Level,
    OptionValue,
    duration_text,
    format_options,
    masked_options,
    read_properties,
    read_value,
)
from airflow_provider_jmsjca.core.options.choices import (
    ConcurrencyMode,
    SubscriptionDurability,
    TransactionAttribute,
    TransactionType,
)
from airflow_provider_jmsjca.core.redelivery import RedeliveryHandling
from airflow_provider_jmsjca.core.selector import Parameter, Selector, parameters_for, substitute
from airflow_provider_jmsjca.errors import ConfigurationError

_CONNECTION_FIELDS = ("connection_url", "username", "password", "options")
_DEFAULT_TRANSACTION_TIMEOUT = timedelta(seconds=30)


class ActivationSpec(ActivationFields):
    """Destinations to consume, concurrency, redelivery and failure handling of an activation. Frozen.

    Every field of the option table is read under any of its spellings: `batch_size`, JMSJCA's `BatchSize`,
    WebLogic's `max-beans-in-free-pool` and so on. `JMSJCA.*` options in the spec's own `options` or
    `connection_url` have been applied to its fields. The settings of the connection and the installation
    are added by `ActivationSpec.from_resolved(resolve(layers))`. The `layers` are those of the installation
    and the connection, and `spec.layer()`.

    Raises:
        ConfigurationError: Every fault at once, each with field, given value and expected form.

    Source: J46-J64; W13-W33; P6-P9; C14.
    """

    _given: dict[str, object] = PrivateAttr(default_factory=dict)
    _parameters: dict[str, str] = PrivateAttr(default_factory=dict)

    def __init__(self, /, **given: Any) -> None:
        read = read_given(given, type(self).model_fields)
        super().__init__(**read.values)
        faults = read.faults + [fault for names, fault in check(self) if not names & read.unread]
        if faults:
            raise ConfigurationError(faults)
        self._given = read.given
        self._parameters = read.parameters

    @classmethod
    def model_validate(cls, obj: Any, **_: Any) -> Self:
        """Return the spec that a mapping of fields, under any spelling, describes."""
        if isinstance(obj, cls):
            return obj
        if not isinstance(obj, Mapping) or not all(isinstance(name, str) for name in obj):
            raise ConfigurationError(
                f"activation spec: got {type(obj).__name__}, expected a mapping of options to values"
            )
        return cls(**obj)

    @classmethod
    def model_validate_json(cls, json_data: str | bytes | bytearray, **_: Any) -> Self:
        """Return the spec in a JSON text."""
        return cls.from_json(json_data if isinstance(json_data, str) else bytes(json_data).decode())

    @classmethod
    def from_yaml(cls, text: str) -> Self:
        """Return the spec in a YAML or JSON text: a mapping of fields, under any spelling."""
        return cls(**parse_document(text))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the spec in a JSON text."""
        return cls.from_yaml(text)

    @classmethod
    def from_xml(cls, *texts: str | bytes, name: str | None = None) -> Self:
        """Return an activation from deployment descriptors, of the kinds that `airflow jms import` reads.

        A configuration property that matches no option is refused.

        Args:
            texts: Whole files, or fragments with one root element; texts about one bean are merged. Bytes are
                decoded with their declared encoding.
            name: Name of the bean; required if there are several.

        Raises:
            ConfigurationError: The texts contain no activation, or several and `name` is missing. Or a field
                of the activation is invalid, as for the constructor.
        """
        # Imported lazily: only this method and `airflow jms import` read descriptors.
        reader = import_module("airflow_provider_jmsjca.migrate.descriptor")
        descriptor = reader.read_descriptor(*texts)
        descriptor.activation(name)
        return cls.model_validate(reader.spec_of(descriptor, name))

    @classmethod
    def from_resolved(cls, resolved: Resolved) -> Self:
        """Return the spec with the effective values of all levels, without the options of the connection.

        Raises:
            ConfigurationError: The levels contradict each other, for example batches in serial mode.
        """
        left_out = (*_CONNECTION_FIELDS, *yielding(resolved))
        values = {
            name: found.value
            for name, found in resolved.values.items()
            if name not in left_out
            # Options without effect count only if the activation sets them: other levels report their own.
            and (name in cls.model_fields if found.option.acts else found.origin.level is Level.ACTIVATION)
        }
        return cls(**values, **resolved.parameter_fields)

    def replace(self, **changes: object) -> Self:
        """Return a spec with some fields changed, checked like a new one. `None` unsets a field."""
        touched = {option.name for name in changes if (option := option_of(name))}
        kept = {
            name: value
            for name, value in self._given.items()
            if (option := option_of(name)) is None or option.name not in touched
        }
        return type(self)(**kept, **changes)

    def layer(self) -> Layer:
        """Return this spec as a level for `resolve`."""
        return Layer(level=Level.ACTIVATION, source=f"activation {self.title}", fields=self._given)

    def to_yaml(self, *, secrets: bool = False) -> str:
        """Return the given values as YAML, under the option names of this package and without defaults.

        Args:
            secrets: Whether passwords are written too. If not, a comment lists the names of secrets left out.
        """
        written: dict[str, object] = {}
        left_out: list[str] = []
        for spelling, given in self._given.items():
            option = option_of(spelling)
            if option is None and (secrets or not is_secret(spelling)):
                written[spelling] = given  # a selector parameter
            elif option is None:
                left_out.append(spelling)
            if option is None or option.name in written:
                continue
            value = str(given) if option.name == "connection_url" else read_value(option, given, spelling)
            if value is None and not option.unlimited:
                continue
            if not secrets and (option.secret or _holds_secrets(option.name, value)):
                left_out.append(option.name)
                continue
            written[option.name] = _plain(value)
        return write_yaml(written, tuple(left_out))

    @property
    def without_effect(self) -> tuple[str, ...]:
        """A sentence for each given option that has no effect."""
        given = {option.name: option for name in self._given if (option := option_of(name))}
        said = [f"{name}: {option.status}" for name, option in given.items() if not option.acts]
        if self.subscription_name and not self.durable:
            said.append(
                "subscription_name: no effect: subscription_durability is non_durable; expected durable, so "
                "that a topic's messages wait while nobody listens"
            )
        return tuple(said)

    @property
    def title(self) -> str:
        """Title of the activation: its name, else the bean's, else its destinations."""
        return self.name or self.ejb_name or ", ".join(self.destination)

    @property
    def destination_references(self) -> tuple[DestinationReference, ...]:
        """The destinations as written in the spec; some may have to be looked up."""
        return references(self)

    @property
    def destinations(self) -> tuple[Destination, ...]:
        """The destinations to consume, in their order.

        Raises:
            ConfigurationError: A destination must be looked up: use `destinations_from`.
        """
        return self.destinations_from({})

    def destinations_from(self, objects: Mapping[str, AdministeredObject]) -> tuple[Destination, ...]:
        """Return the destinations to consume; `lookup://` names are looked up among the objects."""
        return tuple(reference.resolve(objects) for reference in self.destination_references)

    @property
    def dead_letter_destinations(self) -> tuple[Destination, ...]:
        """Destinations for messages that can't be processed; a name without a kind is a queue.

        Empty if the spec explicitly discards them (`discards_dead_letters`).
        """
        return tuple(destination_named(text) for text in self.dead_letter_destination if not is_discard(text))

    @property
    def discards_dead_letters(self) -> bool:
        """Whether the spec explicitly discards messages that can't be processed."""
        return any(map(is_discard, self.dead_letter_destination))

    @property
    def redelivery(self) -> RedeliveryHandling:
        """The redelivery handling, from any of the options that can set it.

        Source: J59, P6, C14.
        """
        return redelivery_handling(self)

    @property
    def move_retries(self) -> int | None:
        """Number of retries of a failed move; `None` unless `max_attempts` or `limbo_delivery_retry` is set.

        Source: P16.
        """
        asked = self.max_attempts is not None or "limbo_delivery_retry" in self.model_fields_set
        return self.limbo_delivery_retry if asked else None

    @property
    def durable(self) -> bool:
        """Whether the subscription is durable."""
        return self.subscription_durability is SubscriptionDurability.DURABLE

    @property
    def subscription(self) -> SubscriptionName | None:
        """The parsed subscription name; `None` if the spec names no subscription."""
        return SubscriptionName.parse(self.subscription_name) if self.subscription_name else None

    @property
    def durable_name(self) -> str | None:
        """Name of the durable subscription at the broker; `None` if the subscription isn't durable."""
        return self.subscription.subscriber_name if self.durable and self.subscription else None

    @property
    def transacted(self) -> bool:
        """Whether the transaction is managed by this package, which ends it when the handler returns.

        Source: W21, J105, J127.
        """
        return (
            self.transaction_type is TransactionType.CONTAINER
            and self.transaction_attribute is TransactionAttribute.REQUIRED
            and not self.force_bmt
        )

    @property
    def pool_initial_size(self) -> int:
        """Number of threads kept ready, at most the maximum pool size."""
        return min(self.endpoint_pool_steady_size, self.endpoint_pool_max_size)

    def concurrency_for(self, kind: DestinationKind) -> int:
        """Return the maximum number of concurrent handlers on a destination of this kind.

        Source: J55, J81-J84.
        """
        if self.concurrency_mode is ConcurrencyMode.SERIAL:
            return 1
        if self.concurrency_mode is ConcurrencyMode.SYNC and kind is DestinationKind.TOPIC:
            return 1
        return self.endpoint_pool_max_size

    @property
    def effective_transaction_timeout(self) -> timedelta:
        """Time limit of a delivery; zero in the spec means the default.

        Source: W18, W22.
        """
        return self.transaction_timeout or _DEFAULT_TRANSACTION_TIMEOUT

    @property
    def suspend_interval(self) -> timedelta:
        """Length of each suspension during an outage; zero: deliveries are never suspended.

        Source: W24-W26.
        """
        return min(self.init_suspend, self.max_suspend)

    def client_id_for(self, *, factory_client_id: str | None = None, instance: str = "") -> str | None:
        """Return the JMS client id to connect with; `None` if the connection needs no client id.

        The first one that is set applies: `client_id` of the spec, client id of the connection factory,
        WebLogic's `jms-client-id`. If none is set, a durable subscription uses the bean's name, else the
        subscription's name.

        Args:
            factory_client_id: Client id of the connection factory.
            instance: Identifier of this process; appended if every instance needs its own client id.

        Source: J41, J49, W30, W31.
        """
        chosen = self.client_id or factory_client_id or self.jms_client_id
        if not chosen and self.durable:
            chosen = self.ejb_name or self.durable_name
        if chosen and self.generate_unique_client_id and instance:
            return f"{chosen}-{instance}"
        return chosen or None

    def selector_for(self) -> str | None:
        """Return the effective selector; `None` selects everything.

        The override (`JMSJCA.selector`) replaces the spec's own selector. The parameters `selector`,
        `subscribername` and the parameters configured in the spec and the levels below it are substituted.

        Raises:
            ConfigurationError: A parameter is missing or invalid, or the result is not a valid selector.

        Source: J57, J104, J178-J182.
        """
        template = self.selector_override or self.message_selector
        if not template:
            return None
        own = self.message_selector or ""
        known: dict[str, Parameter] = dict(parameters_for(f"{template} {own}", self._parameters))
        if self.subscription:
            known["subscribername"] = self.subscription.subscriber_name
        if self.selector_override:
            known["selector"] = substitute(own, known) if own else ""
        text = substitute(template, known)
        Selector.parse(text)
        return text.strip() or None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ActivationSpec):
            return NotImplemented
        return self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash(tuple(self.__dict__.values()))

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        """Show the values that were set, secrets masked."""
        for name in sorted(self.model_fields_set):
            value = getattr(self, name)
            text = isinstance(value, str) and not isinstance(value, enum.Enum)
            yield name, display(OPTIONS_BY_NAME[name], value) if text else value


def _holds_secrets(name: str, value: OptionValue) -> bool:
    if name == "connection_url":
        return ConnectionUrl.parse(str(value)).has_secrets
    if name == "username":  # may be a connection URL (J78)
        return bool(secret_fields({name: str(value)}))
    return name == "options" and masked_options(str(value)) != format_options(read_properties(str(value)))


def _plain(value: OptionValue) -> object:
    if value is None:
        return -1
    if isinstance(value, timedelta):
        return duration_text(value)
    if isinstance(value, tuple):
        # One text with a separator in it would be read back as several.
        return value[0] if len(value) == 1 and not set(value[0]) & set(",;") else list(value)
    return str(value) if isinstance(value, str) else value
