"""Waits until messages are there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from airflow.sdk import BaseSensorOperator, Context
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_jmsjca.core.destination import DestinationKind
from airflow_provider_jmsjca.core.destination_options import reference_text
from airflow_provider_jmsjca.engine.peek import peek
from airflow_provider_jmsjca.errors import ConfigurationError, TransientBrokerError
from airflow_provider_jmsjca.hooks.destinations import find_destination
from airflow_provider_jmsjca.hooks.failures import task_failures
from airflow_provider_jmsjca.hooks.jms import JmsHook
from airflow_provider_jmsjca.hooks.selectors import selector_in_force
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.triggers.ready import JmsReadyTrigger


class JmsSensor(BaseSensorOperator):
    """Succeeds when a queue holds a message; a later task consumes it.

    Guarantee: it consumes nothing. How a look is done on each broker, and what it does to the redelivered
    flag, is said at `JmsActivationTrigger`.

    `peek=False`, consuming the message, is refused in this version: a message may be acknowledged only once
    it is durable elsewhere, and Airflow tells a task no such thing about its XCom.

    Args:
        destination: `queue://name`, `lookup://object`, or the name of a queue. Templated.
        jms_conn_id: The Airflow connection.
        message_selector: Only messages that match count; `None` for all. Templated.
        peek: Leave the message where it is.
        deferrable: Wait in the triggerer and hold no worker.
        **kwargs: `poke_interval` (seconds between two looks), `timeout`, `mode`, and those of every operator.

    Returns:
        `{"event": "ready", "jms_conn_id": ..., "destination": "queue://orders"}` as XCom.
    """

    template_fields: Sequence[str] = ("destination", "jms_conn_id", "message_selector")
    ui_color = "#d6e4f0"

    def __init__(
        self,
        *,
        destination: str,
        jms_conn_id: str = JmsHook.default_conn_name,
        message_selector: str | None = None,
        peek: bool = True,
        deferrable: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if not peek:
            raise ConfigurationError(
                "JmsSensor: peek=False is not possible yet: the message could be lost between its "
                "acknowledgement and XCom. Use peek=True and let a later task consume it"
            )
        self.destination = destination
        self.jms_conn_id = jms_conn_id
        self.message_selector = message_selector
        self.peek = peek
        self.deferrable = deferrable

    def execute(self, context: Context) -> Any:
        """Look once, then wait here or in the triggerer."""
        if not self.deferrable:
            super().execute(context)
            return self._report()
        if not self.poke(context):
            self.defer(
                trigger=JmsReadyTrigger(
                    self.jms_conn_id,
                    reference_text(find_destination(self.destination)),
                    self.message_selector,
                    self.poke_interval,
                ),
                method_name="resume",
                timeout=timedelta(seconds=self.timeout),
            )
        return self._report()

    def poke(self, context: Context) -> bool:  # noqa: ARG002  # Airflow's signature
        """Say whether a message is there."""
        with task_failures():
            queue = find_destination(self.destination)
            if queue.kind is not DestinationKind.QUEUE:
                raise ConfigurationError(f"JmsSensor waits on a queue, not on {queue}: a topic holds nothing")
            hook = JmsHook(self.jms_conn_id)
            selector = selector_in_force(hook.options(), queue, self.message_selector or None)
            # Whoever only looks has no identity: it would be refused while a consumer has this client id.
            settings = replace(hook.settings(), client_id=None)
            try:
                connection = connect(settings)
                try:
                    return peek(connection, queue, selector)
                finally:
                    connection.close()
            except TransientBrokerError as error:
                self.log.warning("No look at %s this time: %s", queue, error)
                return False

    def resume(self, context: Context, event: Mapping[str, Any] | None = None) -> Any:  # noqa: ARG002
        """Go on with what the trigger saw.

        Raises:
            AirflowFailException: The trigger met a fault that trying again doesn't mend.
        """
        if event is None or event.get("event") != "ready":
            raise AirflowFailException((event or {}).get("error", "the trigger returned no event"))
        return dict(event)

    def _report(self) -> dict[str, Any]:
        destination = str(find_destination(self.destination))
        return {"event": "ready", "jms_conn_id": self.jms_conn_id, "destination": destination}
