"""The attributes and operations of JMSJCA's MBean for an activation, under the same names.

`attributes` returns the attributes, `operate` carries out an operation. `UNAVAILABLE` lists names that have
no meaning in a library, with the reason.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from types import MappingProxyType
from typing import Final, Protocol

from airflow_provider_jmsjca.core.delivery.outage import ActivationState
from airflow_provider_jmsjca.core.options import format_options
from airflow_provider_jmsjca.engine.delivering.settings import ListenerSettings
from airflow_provider_jmsjca.engine.delivering.statistics import Statistics
from airflow_provider_jmsjca.errors import ConfigurationError


class ManagedActivation(Protocol):
    """An `Activation`, or an object with the same methods and properties."""

    @property
    def settings(self) -> ListenerSettings:
        """Settings of the activation."""

    @property
    def state(self) -> ActivationState:
        """The result of getStatus."""

    @property
    def suspended(self) -> bool:
        """Whether delivery is suspended by hand."""

    @property
    def running(self) -> bool:
        """Whether the activation was started and has not stopped."""

    @property
    def server_type(self) -> str:
        """The result of getJMSServerType."""

    @property
    def server(self) -> tuple[str, str]:
        """Host and port of the broker."""

    def statistics(self) -> Statistics:
        """Return a snapshot of the activation's statistics."""

    def start(self) -> None:
        """Start the activation."""

    def stop(self) -> bool:
        """Stop, and return whether the stop was clean."""

    def restart(self) -> None:
        """Stop and start."""

    def suspend(self) -> None:
        """Suspend delivery."""

    def resume(self) -> None:
        """Resume delivery after `suspend`."""

    def reset_statistics(self) -> None:
        """Reset the statistics."""


UNAVAILABLE: Final = MappingProxyType(
    {
        "getJMSServerMBean": "there is no MBean server; `airflow jms queues` manages destinations",
        "ResourceAdapter": "there is no resource adapter; `airflow jms explain` shows all levels",
        "MBeanServer": "there is no MBean server to register in",
    }
)
"""Names of the MBean that have no meaning here, with the reason."""


def attributes(activation: ManagedActivation) -> dict[str, object]:
    """Return the attributes of an activation under JMSJCA's names; secrets are masked.

    `ActivationSpec` is the `repr` of the spec, `Stats` a snapshot (`Statistics.as_map`), `Status` the result
    of getStatus. `NMessages` counts calls of the handler until the statistics are reset, including EndOfBatch
    messages and calls before a restart. `Suspended` is true after `suspend` and after `stop`.
    """
    # J56, J116, J117, J119-J121
    settings, statistics = activation.settings, activation.statistics()
    spec = settings.spec
    return {
        "MBeanName": settings.name,
        "Status": str(activation.state),
        "ActivationSpec": "" if spec is None else repr(spec),
        "NActiveEndpoints": statistics.active,
        "NConfiguredEndpoints": settings.delivery.concurrency,
        "NHighestActiveEndpoints": statistics.highest_active,
        "NMessages": statistics.calls,
        "NTotalEndpoints": statistics.threads,
        "Stats": statistics.as_map(),
        "Suspended": activation.suspended or not activation.running,
        "DeliveryMode": "" if spec is None else str(spec.concurrency_mode),
        "JMSServerType": activation.server_type,
    }


def properties(activation: ManagedActivation) -> dict[str, str]:
    """Return the result of getProperties as a mapping; unset properties are empty texts."""  # J118, J120
    settings = activation.settings
    spec, subscription = settings.spec, settings.subscription
    server, port = activation.server
    return {
        "destination.type": str(subscription.destination.kind),
        "destination.name": subscription.destination.name,
        "subscriber.name": subscription.durable_name or "",
        "subscriber.durability": "Durable" if subscription.durable_name else "NonDurable",
        "concurrency": "" if spec is None else str(spec.concurrency_mode),
        "selector": subscription.selector or "",
        "url": settings.url,
        "server": server,
        "port": port,
    }


_OPERATIONS: Final[dict[str, Callable[[ManagedActivation], object]]] = {
    "getStatus": lambda activation: str(activation.state),
    "getProperties": lambda activation: format_options(properties(activation)),
    "getJMSServerType": lambda activation: activation.server_type,
    "start": lambda activation: activation.start(),
    "stop": lambda activation: activation.stop(),
    "restart": lambda activation: activation.restart(),
    "startService": lambda activation: activation.start(),
    "stopService": lambda activation: activation.stop(),
    "suspend": lambda activation: activation.suspend(),
    "resume": lambda activation: activation.resume(),
    "resetStats": lambda activation: activation.reset_statistics(),
    "isStartable": lambda activation: not activation.running,
    "isStoppable": lambda activation: activation.running,
    "isRestartable": lambda activation: activation.running,
}
OPERATIONS: Final = tuple(_OPERATIONS)
"""Names of the operations."""


def operate(activation: ManagedActivation, name: str) -> object:
    """Carry out an operation of the MBean and return its result.

    `stop` and `stopService` return whether the stop was clean (`Activation.stop`). `isStartable`,
    `isStoppable` and `isRestartable` return a boolean. `getStatus`, `getProperties` and `getJMSServerType`
    return a text. All other operations return `None`.

    Args:
        activation: The activation.
        name: One of `OPERATIONS`.

    Raises:
        ConfigurationError: The operation does not exist, or has no meaning here.
    """
    # J10, J115, J116, J118-J120, W27
    operation = _OPERATIONS.get(name)
    if operation is not None:
        return operation(activation)
    if name in UNAVAILABLE:
        raise ConfigurationError(f"operation {name} is not available here: {UNAVAILABLE[name]}")
    close = difflib.get_close_matches(name[:100], OPERATIONS, n=1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    raise ConfigurationError(f"operation {name!r}{hint}: unknown, expected one of: {', '.join(OPERATIONS)}")
