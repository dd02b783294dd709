"""Sends a message about the outcome of a task or a DAG run."""

from __future__ import annotations

import copy
import enum
import functools
from collections.abc import Callable, Generator, Mapping, Sequence
from datetime import datetime
from typing import Any

from airflow.sdk import BaseNotifier, Context
from airflow.sdk.log import redact  # type: ignore[attr-defined]  # masks Airflow's logs

from airflow_provider_jmsjca.core.activation import refuse_secrets
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.masking import masked_text
from airflow_provider_jmsjca.core.message import PropertyValue
from airflow_provider_jmsjca.engine.connecting.threads import in_thread
from airflow_provider_jmsjca.engine.session.tracing import with_current_trace
from airflow_provider_jmsjca.hooks.destinations import find_destination
from airflow_provider_jmsjca.hooks.jms import JmsHook
from airflow_provider_jmsjca.operators.sending import SENDING_FIELDS, Sending, json_text, send

_LONGEST_TEXT = 4000


class JmsNotifier(BaseNotifier):
    """Sends messages when the state of a task or a DAG run changes, or when a deadline is missed.

    Use it for `on_failure_callback`, `on_success_callback`, `on_retry_callback`, `on_skipped_callback` and
    `on_execute_callback` of tasks, for the callbacks of DAGs, and for deadline alerts. For alerts,
    `AsyncCallback(JmsNotifier, kwargs={...})` sends from the triggerer without blocking its event loop. One
    notifier may serve many tasks, because each call renders its templates again.

    Guarantee: a call returns when the broker has confirmed the messages. If the broker can't be reached or
    refuses, the call raises once, within the timeouts of the connection, and is not tried again. Airflow
    writes the error to the log of the task, and the task's own state and error stay as they are. If the
    connection is lost during the confirmation, the broker may or may not have the messages.

    Args:
        destination: `queue://name`, `topic://name`, `lookup://object`, or the name of a queue. In the
            triggerer, `lookup://object` finds entries of `[jmsjca]`, but not Airflow variables. Templated.
        messages: A message or a list of them, in the forms of `JmsPublishOperator`. `None` sends one JSON
            object with `dag_id`, `run_id`, `task_id`, `map_index`, `try_number`, `state`, `logical_date`,
            `exception`, `reason`, `deadline` and `log_url`, if Airflow provides them. Secrets that Airflow
            masks in its logs are masked in this object. So are passwords of URLs and of `password=...` in the
            text of an exception. Templated.
        jms_conn_id: The Airflow connection. Templated.
        properties: Added to messages that are given as values, and to the default message. Templated.
        message_type: JMSType of messages that are given as values, and of the default message. Templated.
        correlation_id: JMSCorrelationID of the messages; `None`: their own. Templated.
        reply_to: Destination for answers, in the forms of `destination`; `None`: the messages' own.
            Templated.
        priority: 0 (lowest) to 9; `None`: the messages' own, by default 4. Templated.
        time_to_live: Seconds until the messages expire; `None`: the messages' own, by default never.
            Templated.
        delay: Seconds before the messages can be received; `None`: no delay. For a broker that can't delay
            (RabbitMQ), the store keeps them until they are due; see `JmsPublishOperator`. Templated.
        context: Template context; Airflow passes it if it awaits the notifier.

    Raises:
        ConfigurationError: The destination holds a secret.

    Source: JMS 2.0 chapter 7.
    """

    template_fields: Sequence[str] = SENDING_FIELDS

    def __init__(
        self,
        *,
        destination: str,
        messages: Any = None,
        jms_conn_id: str = JmsHook.default_conn_name,
        properties: Mapping[str, PropertyValue] | None = None,
        message_type: str | None = None,
        correlation_id: str | None = None,
        reply_to: str | None = None,
        priority: int | str | None = None,
        time_to_live: float | str | None = None,
        delay: float | str | None = None,
        context: Context | None = None,
    ) -> None:
        refuse_secrets(type(self).__name__, {"destination": destination, "reply_to": reply_to})
        self.destination = destination
        self.messages = messages
        self.jms_conn_id = jms_conn_id
        self.properties = properties
        self.message_type = message_type
        self.correlation_id = correlation_id
        self.reply_to = reply_to
        self.priority = priority
        self.time_to_live = time_to_live
        self.delay = delay
        super().__init__(context)

    def __call__(self, *args: Any) -> None:
        """Send the messages; Airflow calls this with the context."""
        super(JmsNotifier, copy.copy(self)).__call__(
            *args
        )  # a copy, because the call replaces templates by rendered values

    def __await__(self) -> Generator[Any, None, None]:
        """Send the messages; Airflow's triggerer awaits this, after it has passed `context`."""
        return super(JmsNotifier, copy.copy(self)).__await__()

    def notify(self, context: Context) -> None:
        """Send the messages, and wait until the broker has confirmed them.

        Raises:
            ConfigurationError: The arguments or the Airflow connection can't be used; every fault is named.
            TransientBrokerError: The broker can't be reached, or didn't answer in time.
            PermanentBrokerError: The broker refuses the user, the destination or a message.
        """
        outgoing = self._sending(context, find_destination).outgoing()
        with JmsHook(self.jms_conn_id).get_conn() as connection:
            send(connection, outgoing, limbo=self.jms_conn_id)
        self.log.info("Sent %d messages to %s", len(outgoing), self.destination)

    async def async_notify(self, context: Context) -> None:
        """Send the messages, and wait for the broker's confirmation without blocking the event loop.

        Raises:
            JmsError: Any error of `notify`.

        Guarantee: a cancellation takes effect at once; messages under way may or may not reach the broker.
        """
        hook = JmsHook(self.jms_conn_id)
        options = await hook.aoptions()
        find = functools.partial(find_destination, variables=False)
        outgoing = with_current_trace(self._sending(context, find).outgoing())  # the thread has no span

        def work() -> None:
            with hook.connect(options, find) as connection:
                send(connection, outgoing, limbo=self.jms_conn_id)

        await in_thread(work)
        self.log.info("Sent %d messages to %s", len(outgoing), self.destination)

    def _sending(self, context: Context, find: Callable[[str], Destination]) -> Sending:
        messages = json_text(_report(context)) if self.messages is None else self.messages
        return Sending.of(self, find, messages=messages)


def _report(context: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of the default message: the fields that Airflow provides."""
    run, task, exception = context.get("dag_run"), context.get("ti"), context.get("exception")
    known = {
        "dag_id": _part(task, "dag_id") or _part(run, "dag_id") or _part(context.get("dag"), "dag_id"),
        "run_id": _part(task, "run_id") or _part(run, "run_id") or context.get("run_id"),
        "task_id": _part(task, "task_id"),
        "map_index": _part(task, "map_index"),
        "try_number": _part(task, "try_number"),
        "state": _part(task, "state") or _part(run, "state"),
        "logical_date": _part(run, "logical_date"),
        "exception": None if exception is None else _masked_error(f"{type(exception).__name__}: {exception}"),
        "reason": context.get("reason") and _masked_error(str(context["reason"])),
        "deadline": _part(context.get("deadline"), "deadline_time"),
        "log_url": _part(task, "log_url"),
    }
    return {name: _plain(value) for name, value in known.items() if value not in (None, "")}


def _part(source: object, name: str) -> Any:
    """Return a field of an object, or of the mapping that replaces it in the triggerer."""
    return source.get(name) if isinstance(source, Mapping) else getattr(source, name, None)


def _masked_error(text: str) -> str:
    """Return the text of an exception with the secrets known to Airflow, and likely passwords, masked."""
    # Mask before shortening: part of a secret would not be recognised.
    return masked_text(str(redact(text)))


def _plain(value: Any) -> Any:
    match value:
        case int():
            return value
        case datetime():
            return value.isoformat()
        case enum.Enum():
            return value.value
    return str(redact(str(value)))[:_LONGEST_TEXT]
