"""An activation as JMSJCA's MBean shows it: the same names, for whoever knows them.

`attributes` reads what the MBean's attributes show, `operate` carries out its operations; what has no meaning
in a library is in `UNAVAILABLE` with the reason.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from types import MappingProxyType
from typing import Final, Protocol

from airflow_provider_jmsjca.core.delivery import ActivationState
from airflow_provider_jmsjca.core.options import format_options
from airflow_provider_jmsjca.engine.delivering.settings import ListenerSettings
from airflow_provider_jmsjca.engine.delivering.statistics import Statistics
from airflow_provider_jmsjca.errors import ConfigurationError


class ManagedActivation(Protocol):
    """What is shown and steered: an `Activation`, or something used like one."""

    @property
    def settings(self) -> ListenerSettings:
        """How the activation consumes."""

    @property
    def state(self) -> ActivationState:
        """What getStatus returns."""

    @property
    def suspended(self) -> bool:
        """Whether delivery is suspended by hand."""

    @property
    def running(self) -> bool:
        """Whether the activation was started and hasn't stopped."""

    @property
    def server_type(self) -> str:
        """What getJMSServerType returns."""

    @property
    def server(self) -> tuple[str, str]:
        """Host and port."""

    def statistics(self) -> Statistics:
        """Return a snapshot."""

    def start(self) -> None:
        """Begin."""

    def stop(self) -> bool:
        """End; say whether all ended in good order."""

    def restart(self) -> None:
        """End and begin."""

    def suspend(self) -> None:
        """Deliver nothing more."""

    def resume(self) -> None:
        """Deliver again."""

    def reset_statistics(self) -> None:
        """Begin the statistics anew."""


UNAVAILABLE: Final = MappingProxyType(
    {
        "getJMSServerMBean": "there is no MBean server; `airflow jms queues` manages destinations",
        "ResourceAdapter": "there is no resource adapter; `airflow jms explain` shows all levels",
        "MBeanServer": "there is no MBean server to register in",
    }
)
"""Names of the MBean that have no meaning here, each with its reason."""


def attributes(activation: ManagedActivation) -> dict[str, object]:
    """Return the attributes of an activation under JMSJCA's names; secrets are masked.

    `ActivationSpec` is a dump, `Stats` a snapshot under the keys of J121, `Status` what getStatus returns.
    `NMessages` counts every call of the handler, those with an EndOfBatch message and those before a restart
    too, until the statistics are reset; `Suspended` says that
    nothing is delivered because somebody wants it so, by `suspend` or by `stop`.

    Source: J56, J116, J117, J119-J121.
    """
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
    """Return what getProperties shows, by key; empty texts where nothing is set.

    Source: J118, J120.
    """
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
"""The operations there are."""


def operate(activation: ManagedActivation, name: str) -> object:
    """Carry out an operation of the MBean and return what it returns.

    `stop` returns whether everything ended in good order (`Activation.stop`), `isStartable` and its like a
    boolean, `getStatus`, `getProperties` and `getJMSServerType` a text, the others nothing.

    Args:
        activation: Of which activation.
        name: One of `OPERATIONS`.

    Raises:
        ConfigurationError: There is no such operation, or it has no meaning here.

    Source: J10, J115, J116, J118-J120, W27.
    """
    operation = _OPERATIONS.get(name)
    if operation is not None:
        return operation(activation)
    if name in UNAVAILABLE:
        raise ConfigurationError(f"operation {name} has no meaning here: {UNAVAILABLE[name]}")
    close = difflib.get_close_matches(name[:100], OPERATIONS, n=1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    raise ConfigurationError(f"operation {name!r}{hint}: unknown, expected one of: {', '.join(OPERATIONS)}")
