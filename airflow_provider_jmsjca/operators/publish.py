"""Sends messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar

from airflow.sdk import BaseOperator, Context

from airflow_provider_jmsjca.assets.jms import note_output
from airflow_provider_jmsjca.core.activation import refuse_secrets
from airflow_provider_jmsjca.core.message import PropertyValue
from airflow_provider_jmsjca.hooks.destinations import cached_find_destination, find_destination
from airflow_provider_jmsjca.hooks.jms import JmsHook
from airflow_provider_jmsjca.hooks.secrets import SecretsRefused
from airflow_provider_jmsjca.hooks.settings import settings_for
from airflow_provider_jmsjca.hooks.task_failures import context_entry, task_failures
from airflow_provider_jmsjca.operators.sending import SENDING_FIELDS, Sending, send, with_delivery_dates


class JmsPublishOperator(SecretsRefused, BaseOperator):
    """Sends one or many messages to a destination.

    Guarantee: the task succeeds only when the broker, or the store for delays, has confirmed every message.
    If it fails half-way, the earlier messages have been sent, and a retry sends them again. With
    `transacted=True`, on a broker with atomic commits, either all are sent or none. When the connection
    breaks during a commit, the outcome is unknown: the task fails, and a retry may repeat messages.
    `deduplicate=True` makes the broker drop such duplicates, if it supports that (Artemis).

    If the connection sets `ignore_tx`, the messages are sent in one transaction, which the task commits.

    Args:
        destination: `queue://name`, `topic://name`, `lookup://object`, or the name of a queue. Templated.
        messages: A message or a list of messages. Each is text, bytes, a `JmsMessage`, or its JSON form
            (`JmsMessage.to_json`). Any other JSON value is sent as JSON text: a mapping, list, number or
            boolean. Templated.
        jms_conn_id: The Airflow connection.
        properties: Properties to add to messages that are given as text, bytes or another value. A
            `JmsMessage` and its JSON form keep their own. Templated.
        message_type: JMSType of messages that are given as text, bytes or another value. Templated.
        correlation_id: JMSCorrelationID of the messages; `None`: their own. Templated.
        reply_to: Destination for answers, in the forms of `destination`; `None`: the messages' own.
            Templated.
        priority: 0 (lowest) to 9; `None`: the messages' own, by default 4. Templated.
        time_to_live: Seconds until the messages expire, counted from the moment they are sent; `None`: the
            messages' own, by default never. Templated.
        transacted: Send all messages in one transaction. More than one message is refused on brokers without
            atomic commits (Artemis, RabbitMQ).
        delay: Seconds before the messages can be received; `None`: no delay. For a broker that can't delay
            (RabbitMQ), the store of this installation keeps them until they are due, encrypted with Airflow's
            Fernet key. Then the triggerer or `airflow jms store run` sends them. Templated.
        deliver_at: Delivery time, instead of `delay`: a `datetime` with a time zone, or ISO 8601 text.
            Without either, a message's own property `DELIVERY_DATE` applies if the connection or `[jmsjca]`
            sets `allow_message_delays`. Templated.
        deduplicate: Give each message an id that is the same in every try of the task, so that the broker
            drops messages that a retry repeats.

    Returns:
        `{"destination": "queue://orders", "count": 2}`. If the store holds the messages, it also has their
        numbers in limbo: `"limbo": [17, 18]`. For lineage the destination is an output of the task.

    Source: JMS 2.0 chapter 7; P18.
    """

    destination_fields: ClassVar[Sequence[str]] = ("destination", "reply_to")
    template_fields: Sequence[str] = (*SENDING_FIELDS, "deliver_at")
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
        reply_to: str | None = None,
        priority: int | str | None = None,
        time_to_live: float | str | None = None,
        transacted: bool = False,
        delay: float | str | None = None,
        deliver_at: datetime | str | None = None,
        deduplicate: bool = False,
        **kwargs: Any,
    ) -> None:
        refuse_secrets(type(self).__name__, {"destination": destination, "reply_to": reply_to})
        super().__init__(**kwargs)
        self.destination = destination
        self.messages = messages
        self.jms_conn_id = jms_conn_id
        self.properties = properties
        self.message_type = message_type
        self.correlation_id = correlation_id
        self.reply_to = reply_to
        self.priority = priority
        self.time_to_live = time_to_live
        self.transacted = transacted
        self.delay = delay
        self.deliver_at = deliver_at
        self.deduplicate = deduplicate

    def execute(self, context: Context) -> dict[str, Any]:
        """Send the messages and wait until the broker has confirmed them."""
        with task_failures():
            sending = Sending.of(self, find_destination, messages=self.messages, deliver_at=self.deliver_at)
            outgoing = sending.outgoing(self._deduplication(context))
            hook = JmsHook(self.jms_conn_id)
            options = hook.options()
            if options["allow_message_delays"] is True:
                outgoing = with_delivery_dates(outgoing)
            with hook.connect(options, cached_find_destination()) as connection:
                broker = connection.broker
                limbo = send(connection, outgoing, transacted=self.transacted, limbo=self.jms_conn_id)
        note_output(hook, settings_for(self.jms_conn_id, options), sending.destination)
        sent = {"destination": str(sending.destination), "count": len(outgoing)}
        if limbo:
            self.log.info(
                "%s can't delay messages: %d messages for %s wait in limbo until the triggerer or "
                "airflow jms store run sends them",
                broker,
                len(limbo),
                self.destination,
            )
            return {**sent, "limbo": limbo}
        self.log.info("Sent %d messages to %s on %s", len(outgoing), self.destination, broker)
        return sent

    def _deduplication(self, context: Context) -> str | None:
        if not self.deduplicate:
            return None
        instance = context_entry(context, "ti")
        return f"{instance.dag_id}/{instance.run_id}/{instance.task_id}/{instance.map_index}"
