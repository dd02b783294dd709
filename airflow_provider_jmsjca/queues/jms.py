"""Queue provider for `MessageQueueTrigger` of the provider `common.messaging`, with the scheme `jms`.

Airflow imports this module where that provider is installed. Otherwise the import fails, and Airflow has no
such queue provider. A `MessageQueueTrigger` of any scheme imports this module. So the module imports the rest
of this package only for its own scheme.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.providers.common.messaging.providers.base_provider import BaseMessageQueueProvider

if TYPE_CHECKING:
    from airflow_provider_jmsjca.triggers.activation import JmsActivationTrigger


class JmsMessageQueueProvider(BaseMessageQueueProvider):
    """Creates a `JmsActivationTrigger` for a `MessageQueueTrigger`.

    The `MessageQueueTrigger` has two forms:

    - `MessageQueueTrigger(scheme="jms", jms_conn_id="jms_default", destination="queue://orders", ...)`
    - `MessageQueueTrigger(queue="jms://jms_default/queue/orders", ...)`

    Further arguments are those of `JmsActivationTrigger`. Airflow stores and runs that trigger, with its
    guarantees.
    """

    scheme = "jms"

    def queue_matches(self, queue: str) -> bool:
        """Return whether a queue begins with `jms://`."""
        return queue.strip().lower().startswith(f"{self.scheme}://")

    def trigger_class(self) -> type[JmsActivationTrigger]:
        """Return the trigger that Airflow stores and runs."""
        from airflow_provider_jmsjca.triggers.activation import JmsActivationTrigger  # noqa: PLC0415 - see above

        return JmsActivationTrigger

    def trigger_kwargs(self, queue: str, **kwargs: Any) -> dict[str, Any]:
        """Return the trigger's arguments `jms_conn_id` and `destination` from the queue.

        Raises:
            ConfigurationError: The queue isn't `jms://conn_id/queue/NAME` or `jms://conn_id/topic/NAME`; or
                another argument also names the connection or the destination.
        """
        from airflow_provider_jmsjca.core.destination_uri import DestinationUri  # noqa: PLC0415 - see above
        from airflow_provider_jmsjca.errors import ConfigurationError  # noqa: PLC0415 - see above

        uri = DestinationUri.parse(queue)
        faults = [
            f"MessageQueueTrigger: {name} is already part of queue={str(uri)!r}; leave it out"
            for name in ("jms_conn_id", "destination")
            if kwargs.get(name) is not None
        ]
        if uri.virtual_host is not None:
            faults.append(
                f"MessageQueueTrigger: queue={str(uri)!r} has a virtual host; set it in the Airflow "
                f"connection {uri.authority!r} instead"
            )
        if faults:
            raise ConfigurationError(faults)
        return {"jms_conn_id": uri.authority, "destination": str(uri.destination)}
