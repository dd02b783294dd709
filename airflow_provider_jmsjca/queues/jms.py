"""What `MessageQueueTrigger` of the provider `common.messaging` finds for `jms`.

Airflow imports this module where that provider is installed; without it the import fails, and Airflow takes
the feature for disabled. A `MessageQueueTrigger` of any scheme imports it: so it imports nothing else of this
package until its own scheme is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.providers.common.messaging.providers.base_provider import BaseMessageQueueProvider

if TYPE_CHECKING:
    from airflow_provider_jmsjca.triggers.activation import JmsActivationTrigger


class JmsMessageQueueProvider(BaseMessageQueueProvider):
    """Makes a `JmsActivationTrigger` of a `MessageQueueTrigger`.

    Two ways to say it:

    - `MessageQueueTrigger(scheme="jms", jms_conn_id="jms_default", destination="queue://orders", ...)`
    - `MessageQueueTrigger(queue="jms://jms_default/queue/orders", ...)`

    What else is given are arguments of `JmsActivationTrigger`, whose guarantee holds: Airflow stores and runs
    that trigger.
    """

    scheme = "jms"

    def queue_matches(self, queue: str) -> bool:
        """Say whether a queue is one of ours: whether it begins with `jms://`."""
        return queue.strip().lower().startswith(f"{self.scheme}://")

    def trigger_class(self) -> type[JmsActivationTrigger]:
        """Return the trigger that Airflow stores and runs."""
        from airflow_provider_jmsjca.triggers.activation import JmsActivationTrigger  # noqa: PLC0415 - see above

        return JmsActivationTrigger

    def trigger_kwargs(self, queue: str, **kwargs: Any) -> dict[str, Any]:
        """Return the trigger's arguments that the queue says: `jms_conn_id` and `destination`.

        Raises:
            ConfigurationError: The queue isn't `jms://conn_id/queue/NAME` or `jms://conn_id/topic/NAME`; or
                another argument says the same.
        """
        from airflow_provider_jmsjca.core.destination_uri import DestinationUri  # noqa: PLC0415 - see above
        from airflow_provider_jmsjca.errors import ConfigurationError  # noqa: PLC0415 - see above

        uri = DestinationUri.parse(queue)
        faults = [
            f"MessageQueueTrigger: {name} is said by queue={str(uri)!r} already; expected it once"
            for name in ("jms_conn_id", "destination")
            if kwargs.get(name) is not None
        ]
        if uri.virtual_host is not None:
            faults.append(
                f"MessageQueueTrigger: queue={str(uri)!r} says a virtual host, which belongs into the "
                f"connection {uri.authority!r}"
            )
        if faults:
            raise ConfigurationError(faults)
        return {"jms_conn_id": uri.authority, "destination": str(uri.destination)}
