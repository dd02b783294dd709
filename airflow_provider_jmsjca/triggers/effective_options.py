"""Effective options of a stream of events: the merged levels, with the defaults and limits of triggers."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Self, cast

from airflow_provider_jmsjca.core.activation import ActivationSpec
from airflow_provider_jmsjca.core.configuration.destination_options import prefetch_of
from airflow_provider_jmsjca.core.configuration.layers import Origin, ResolvedValue, SourceKind
from airflow_provider_jmsjca.core.configuration.overruling import ATTEMPTS, CLIENT_PROPERTIES
from airflow_provider_jmsjca.core.configuration.precedence import Resolved
from airflow_provider_jmsjca.core.destination import DestinationKind
from airflow_provider_jmsjca.core.options import OPTIONS_BY_NAME, OptionValue
from airflow_provider_jmsjca.core.options.choices import ConcurrencyMode, DistributedDestinationConnection
from airflow_provider_jmsjca.engine.delivering.settings import (
    ListenerContext,
    ListenerSettings,
    listener_settings,
)
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.hooks.destinations import find_destination, with_lookups
from airflow_provider_jmsjca.store.base import Store
from airflow_provider_jmsjca.transports.base import ConnectionSettings
from airflow_provider_jmsjca.triggers.payload import EventMode

WHO = "JmsActivationTrigger"
"""Name of the trigger in errors."""
MOST_IN_FLIGHT = 1000
"""Maximum number of unconfirmed messages: Airflow gives up a watcher that lags this many events behind."""
DEFAULT_REDELIVERY_HANDLING = "1:1000; 2:2000; 3:5000; 4:10000; 5:30000"
"""Pauses of 1, 2, 5, 10 and then always 30 seconds; no message is moved or deleted by default."""

_MOST_IN_A_BATCH = 10_000
# Airflow stores events in rounds of one or two seconds, and confirms a round as a whole. A round has up to
# about 500 events.
_DEFAULT_PREFETCH = 500
# Each held message causes repeated queries over a pipe that all triggers share.
_DEFAULT_PREFETCH_HELD = 100

_REFUSED = {
    "in_progress_destination": "a message stays where it is until its event is stored",
    "durable_subscription_deletion": "a trigger stops and starts with its triggerer, and would lose messages",
    "generate_unique_client_id": "the events have one consumer, whichever triggerer it runs in",
    "reply_to_destination": "nothing is sent",
    "message_response_result_property": "nothing is sent",
    "context_name": "no handler runs here",
    "endpoint_pool_steady_size": "no threads are kept",
    "pool_idle_timeout": "no threads are kept",
}
"""Options that a trigger doesn't support, with the reasons."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveOptions:
    """Effective options of a stream of events.

    Attributes:
        spec: The effective spec, with resolved destinations.
        event: See `JmsActivationTrigger`.
        timed: Whether a level sets `transaction_timeout`, after which a delivery is rolled back.
        lingers: Whether a batch ends only at its `batch_timeout`, because no level sets `batch_idle_timeout`.
        limbo_conn_id: Airflow connection over which messages in limbo are sent; empty without a limbo.
    """

    spec: ActivationSpec
    event: EventMode
    timed: bool
    lingers: bool
    limbo_conn_id: str = ""

    @classmethod
    def of(cls, resolved: Resolved, event: EventMode, limbo_conn_id: str) -> Self:
        """Return the effective options.

        Args:
            resolved: The merged options of all levels.
            event: See `JmsActivationTrigger`.
            limbo_conn_id: Airflow connection over which messages in limbo are sent; empty without a limbo.

        Raises:
            ConfigurationError: The levels contradict each other, or set an unsupported option.
        """
        given = resolved.values
        values = dict(given)
        for name, value in ({} if event is EventMode.READY else _defaults(given)).items():
            values[name] = ResolvedValue(option=OPTIONS_BY_NAME[name], value=value, origin=_DEFAULT)
        with _named():
            spec = with_lookups(
                ActivationSpec.from_resolved(replace(resolved, values=values)), variables=False
            )
        return cls(
            spec=spec,
            event=event,
            timed="transaction_timeout" in given,
            lingers="batch_timeout" in given and "batch_idle_timeout" not in given,
            limbo_conn_id=limbo_conn_id,
        )

    @property
    def batch_size(self) -> int:
        """Maximum number of messages in an event."""
        return self.spec.batch_size

    @property
    def batch_seconds(self) -> float:
        """Seconds after its first message at which a batch ends; infinite without a `batch_timeout`."""
        timeout = self.spec.batch_timeout
        return math.inf if timeout is None else timeout.total_seconds()

    @property
    def batch_idle_seconds(self) -> float:
        """Seconds without a further message after which a batch ends; infinite if the batch `lingers`."""
        return math.inf if self.lingers else self.spec.batch_idle_timeout.total_seconds()

    def check(self) -> None:
        """Check that a trigger supports the options.

        Raises:
            ConfigurationError: Names each unsupported option, with the reason.
        """
        faults: list[str] = []
        spec, destinations = self.spec, self.spec.destinations
        if self.event is EventMode.READY:
            if len(destinations) > 1 or destinations[0].kind is DestinationKind.TOPIC:
                raise ConfigurationError(
                    f"{WHO}: event='ready' needs one queue, not {', '.join(map(str, destinations))}; use "
                    "event='message' for topics, and a trigger for each queue"
                )
            return
        for name, why in _REFUSED.items():
            if name in spec.model_fields_set and getattr(spec, name) != OPTIONS_BY_NAME[name].default:
                faults.append(f"{name}: not supported by a trigger: {why}")
        if spec.distributed_destination_connection is DistributedDestinationConnection.EVERY_MEMBER:
            faults.append(
                "distributed_destination_connection: a trigger can't consume on every member; expected "
                "local_only, and a trigger and a connection for each member"
            )
        if spec.subscription is not None and spec.subscription.distributed:
            faults.append(
                "subscription_name: a trigger can't use a distributed subscription; expected a plain name"
            )
        faults += self._bounds()
        if faults:
            raise ConfigurationError(f"{WHO}: {fault}" for fault in faults)
        with _named():
            self.listener(None, "")

    def _bounds(self) -> Iterator[str]:
        spec = self.spec
        if spec.batch_size > _MOST_IN_A_BATCH:
            yield f"batch_size is {spec.batch_size}; expected at most {_MOST_IN_A_BATCH} for an event"
        if spec.batch_size == 1 and spec.model_fields_set & {"batch_timeout", "batch_idle_timeout"}:
            yield "batch_timeout, batch_idle_timeout: expected a batch_size above 1 with them"
        if spec.hold_until_ack and self.timed:
            yield "transaction_timeout: expected hold_timeout alone with hold_until_ack"
        if spec.endpoint_pool_max_size > MOST_IN_FLIGHT:
            yield (
                f"endpoint_pool_max_size is {spec.endpoint_pool_max_size}; expected at most "
                f"{MOST_IN_FLIGHT}: Airflow gives up a trigger that lags further behind"
            )

    def listener(
        self,
        connection: ConnectionSettings | None,
        name: str,
        store: Store | None = None,
    ) -> ListenerSettings:
        """Return the settings of the stream. They differ from a listener's in three ways.

        A poison message that can't be moved stays and lets others pass. Airflow has its own time limit for
        each event, so the transaction timeout counts only if a level sets it. A message that was held when
        the triggerer ended has not failed: its DAG run may still succeed.

        Args:
            connection: Settings of the connection; `None` only checks whether the settings are valid.
            name: Name of the stream, for the log.
            store: The store; used only for a spec with `use_store`.

        Raises:
            ConfigurationError: The spec is invalid.
        """
        spec, units = self.spec, self.spec.endpoint_pool_max_size
        receivers = units if spec.concurrency_mode is ConcurrencyMode.SYNC else 1
        if spec.hold_until_ack:
            spec = spec.replace(hold_until_ack=None)  # the trigger itself holds the deliveries
        if spec.batch_size > 1:
            # The stream delivers single messages; the trigger collects them into batches later.
            under_way = units * spec.batch_size
            spec = spec.replace(
                batch_size=None,
                batch_timeout=None,
                batch_idle_timeout=None,
                endpoint_pool_max_size=under_way,
                prefetch=max(spec.prefetch or 1, under_way // receivers),
            )
        surroundings = ListenerContext(
            find=functools.partial(find_destination, variables=False),
            # The store is checked only when the listener connects.
            store=store or (cast("Store", object()) if connection is None else None),
            jms_conn_id=self.limbo_conn_id,
        )
        settings = listener_settings(
            spec, surroundings if connection is None else surroundings.over(connection)
        )
        delivery = settings.delivery
        timeout = delivery.transaction_timeout if self.timed else None
        return replace(
            settings,
            delivery=replace(
                delivery,
                keep_poison=True,
                transaction_timeout=timeout,
                counts_repeats=not self.spec.hold_until_ack,
            ),
            receivers=receivers,
            name=name,
        )


@contextlib.contextmanager
def _named() -> Iterator[None]:
    """Prefix faults with the name of the trigger."""
    try:
        yield
    except ConfigurationError as error:
        raise ConfigurationError(f"{WHO}: {fault}" for fault in error.faults) from None


_DEFAULT = Origin(level=None, source="", place=SourceKind.DEFAULT, spelling="")


def _defaults(given: Mapping[str, ResolvedValue]) -> dict[str, OptionValue]:
    """Return a trigger's defaults for options that no level sets: concurrent events, growing pauses."""
    values: dict[str, OptionValue] = {}
    if not given.keys() & {"redelivery_handling", *ATTEMPTS, *CLIENT_PROPERTIES}:
        values["redelivery_handling"] = DEFAULT_REDELIVERY_HANDLING
    if "prefetch" not in given:
        values["prefetch"] = _default_prefetch(given)
    mode = given.get("concurrency_mode")
    if mode is None:
        values["concurrency_mode"] = ConcurrencyMode.CC
    if "endpoint_pool_max_size" not in given and (mode is None or mode.value is ConcurrencyMode.CC):
        batch = given.get("batch_size")
        size = batch.value if batch is not None and isinstance(batch.value, int) else 1
        # At least two units: while Airflow stores one batch, the next is collected.
        units = _prefetch(given) if size == 1 else max(2, _prefetch(given) // size)
        values["endpoint_pool_max_size"] = min(units, MOST_IN_FLIGHT)
    return values


def _prefetch(given: Mapping[str, ResolvedValue]) -> int:
    """Return the prefetch of the destination, or else the prefetch of the activation."""
    found = given.get("destination")
    texts = found.value if found is not None and isinstance(found.value, tuple) else ()
    for text in texts:
        try:
            own = prefetch_of(find_destination(str(text), variables=False))
        except ConfigurationError:
            continue  # the spec reports it
        if own is not None:
            return own
    configured = given.get("prefetch")
    return (
        configured.value
        if configured is not None and isinstance(configured.value, int)
        else _default_prefetch(given)
    )


def _default_prefetch(given: Mapping[str, ResolvedValue]) -> int:
    held = given.get("hold_until_ack")
    return _DEFAULT_PREFETCH_HELD if held is not None and held.value is True else _DEFAULT_PREFETCH
