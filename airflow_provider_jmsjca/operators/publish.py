"""Sends messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from airflow.sdk import BaseOperator, Context

from airflow_provider_jmsjca.core.message import JmsMessage, PropertyValue
from airflow_provider_jmsjca.errors import CapabilityError, ConfigurationError
from airflow_provider_jmsjca.hooks.destinations import find_destination
from airflow_provider_jmsjca.hooks.failures import task_failures
from airflow_provider_jmsjca.hooks.jms import JmsHook
from airflow_provider_jmsjca.operators.quantities import seconds_faults
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import Connection, Outgoing


class JmsPublishOperator(BaseOperator):
    """Sends one or many messages to a destination.

    Guarantee: the task succeeds only when the broker has confirmed every message. If it fails half-way the
    messages before are there, and a retry sends them again; with `transacted=True`, on a broker with atomic
    commits, either all are there or none. When the connection breaks during a commit nobody knows the
    outcome: the task fails, and a retry may repeat messages. `deduplicate=True` makes the broker drop such
    repetitions where it can (Artemis).

    Args:
        destination: `queue://name`, `topic://name`, `lookup://object`, or the name of a queue. Templated.
        messages: A message or a list of them. Each is text, bytes, a `JmsMessage`, or the JSON form of one
            (`JmsMessage.to_json`). Templated.
        jms_conn_id: The Airflow connection.
        properties: Added to messages given as text or bytes. Templated.
        message_type: JMSType of messages given as text or bytes. Templated.
        correlation_id: Of messages given as text or bytes. Templated.
        transacted: Send all of them in one transaction. More than one message is refused on brokers without
            atomic commits (Artemis, RabbitMQ).
        delay: Seconds before they can be received.
        deduplicate: Give each message an id that is the same when the task is tried again.

    Returns:
        `{"destination": "queue://orders", "count": 2}`.

    Source: JMS 2.0 chapter 7.
    """

    template_fields: Sequence[str] = (
        "destination",
        "messages",
        "jms_conn_id",
        "properties",
        "message_type",
        "correlation_id",
    )
    ui_color = "#e8d5b5"

    def __init__(
        self,
        *,
        destination: str,
        messages: Any,
        jms_conn_id: str = JmsHook.default_conn_name,
        properties: Mapping[str, PropertyValue] | None = None,
        message_type: str | None = None,
        correlation_id: str | None = None,
        transacted: bool = False,
        delay: float | None = None,
        deduplicate: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.destination = destination
        self.messages = messages
        self.jms_conn_id = jms_conn_id
        self.properties = properties
        self.message_type = message_type
        self.correlation_id = correlation_id
        self.transacted = transacted
        self.delay = delay
        self.deduplicate = deduplicate

    def execute(self, context: Context) -> dict[str, Any]:
        """Send the messages and wait until the broker has confirmed them."""
        with task_failures():
            outgoing = self._outgoing(context)
            connection = connect(JmsHook(self.jms_conn_id).settings())
            try:
                self._check(connection, outgoing)
                if self.transacted:
                    unit = connection.unit()
                    for item in outgoing:
                        unit.send(item)
                    unit.commit()
                else:
                    connection.send(outgoing)
            finally:
                connection.close()
        self.log.info("Sent %d messages to %s on %s", len(outgoing), self.destination, connection.broker)
        return {"destination": str(find_destination(self.destination)), "count": len(outgoing)}

    def _outgoing(self, context: Context) -> list[Outgoing]:
        self._check_arguments()
        target = find_destination(self.destination)
        delay = None if self.delay is None else timedelta(seconds=self.delay)
        instance = context["ti"]
        prefix = f"{instance.dag_id}/{instance.run_id}/{instance.task_id}/{instance.map_index}"
        return [
            Outgoing(
                destination=target,
                message=message,
                delay=delay,
                deduplication_id=f"{prefix}/{number}" if self.deduplicate else None,
            )
            for number, message in enumerate(self._read())
        ]

    def _check_arguments(self) -> None:
        faults: list[str] = []
        if self.delay is not None:
            faults += seconds_faults("delay", self.delay, least=0, otherwise="None for no delay")
        properties: object = self.properties
        if properties is not None and not isinstance(properties, Mapping):
            faults.append(
                f"properties is a {type(properties).__name__}; expected a mapping of names to values, "
                "such as {'region': 'eu'}"
            )
        if faults:
            raise ConfigurationError(faults)

    def _read(self) -> Iterator[JmsMessage]:
        given = self.messages
        many = isinstance(given, Sequence) and not isinstance(given, str | bytes)
        faults: list[str] = []
        for place, item in enumerate(given if many else [given]):
            try:
                yield self._message(item)
            except ConfigurationError as error:
                where = f"messages[{place}]" if many else "messages"
                faults.extend(f"{where}: {fault}" for fault in error.faults)
        if faults:
            raise ConfigurationError(faults)

    def _message(self, item: object) -> JmsMessage:
        match item:
            case JmsMessage():
                return item
            case str():
                return JmsMessage.text(
                    item, self.properties or {}, type=self.message_type, correlation_id=self.correlation_id
                )
            case bytes():
                return JmsMessage.bytes(
                    item, self.properties or {}, type=self.message_type, correlation_id=self.correlation_id
                )
            case Mapping():
                return JmsMessage.from_json(item)
        raise ConfigurationError(
            f"a {type(item).__name__} is no message; expected text, bytes, a JmsMessage or its JSON form"
        )

    def _check(self, connection: Connection, outgoing: Sequence[Outgoing]) -> None:
        capabilities, broker = connection.capabilities, connection.broker
        if self.delay:
            capabilities.require(broker, "delayed_delivery", purpose="delay")
        if self.deduplicate:
            capabilities.require(broker, "deduplicating_send", purpose="deduplicate=True")
        if self.transacted and len(outgoing) > 1:
            capabilities.require(broker, "atomic_commit", purpose="transacted=True")
        kinds = {item.message.body_kind for item in outgoing} - capabilities.body_kinds
        if kinds:
            raise CapabilityError(
                f"messages with a {kind} body can't be sent to {broker}: the body would not survive"
                for kind in sorted(kinds)
            )
