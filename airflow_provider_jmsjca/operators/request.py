"""Sends a request and waits for its answer."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSensorTimeout

from airflow_provider_jmsjca.assets.jms import note_output
from airflow_provider_jmsjca.core.activation import refuse_secrets
from airflow_provider_jmsjca.core.message import JmsMessage, PropertyValue
from airflow_provider_jmsjca.core.quantities import seconds_faults
from airflow_provider_jmsjca.core.selector import selector_text
from airflow_provider_jmsjca.engine.collecting.claim import ClaimSpec
from airflow_provider_jmsjca.engine.delivering.delivery import Response, read_response
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.escaping import escaped
from airflow_provider_jmsjca.hooks.destinations import cached_find_destination, find_destination
from airflow_provider_jmsjca.hooks.jms import JmsHook
from airflow_provider_jmsjca.hooks.spool import spool_path, task_key
from airflow_provider_jmsjca.hooks.task_failures import context_entry, task_failures
from airflow_provider_jmsjca.operators.sending import Sending, argument_text, send
from airflow_provider_jmsjca.sensors.jms import JmsSensor
from airflow_provider_jmsjca.spool.batch_id import TaskKey
from airflow_provider_jmsjca.spool.files import SpoolPath, exists, is_folder
from airflow_provider_jmsjca.spool.manifest import MANIFEST, PRUNED, Manifest
from airflow_provider_jmsjca.spool.rows import manifest_messages
from airflow_provider_jmsjca.spool.secret import secret_code
from airflow_provider_jmsjca.transports.base import Outgoing

_SELECTS = "selects"


class JmsRequestOperator(JmsSensor):
    """Sends a request and returns the answer to it.

    The request carries a correlation id that belongs to the task instance, and names the queue for answers.
    The answer is the first message on that queue with the same correlation id; all others stay there. The
    service has to copy JMSCorrelationID from the request, as JMS proposes. The id ends in a secret code, so
    nobody can put a forged answer on the queue before the request is sent.

    Guarantee: the task succeeds only when the answer is in a sealed file of the spool; the answer is
    acknowledged after that. No crash loses an answer. A retry first uses an answer in the spool or on the
    queue. Only if there is none, the retry sends the request again with the same correlation id. So a request
    is sent at least once, and the service can detect duplicates by that id. A second answer stays on the
    queue.

    Args:
        destination: Destination of the request: `queue://name`, `topic://name`, `lookup://object`, or the
            name of a queue. Templated.
        message: The request: text, bytes, a `JmsMessage` or its JSON form. Any other JSON value is sent as
            JSON text. Templated.
        reply_to: The queue for answers, in the forms of `destination`. Templated.
        jms_conn_id: The Airflow connection. Templated.
        response_timeout: Seconds to wait for the answer, from the moment the request is sent.
        timeout_fatal: Fail without retries when no answer arrives in time. Otherwise Airflow retries the task
            up to `retries` times.
        result_property: Name of the answer's property that holds the result. `SUCCESS`, `VALCHANGE` and
            `MULTIPLE_HITS` succeed. With any other result, or without the property, the task fails without
            retries, and the body of the answer is the error. If this task is cleared, it sends a new request.
            `None`: every answer succeeds.
        correlation_id: Correlation id of the request. `None` makes an id from DAG, DAG run, task, map index,
            and a code computed with a secret in the spool. If others can guess an id of your own, they can
            answer before the service. Templated.
        response_selector: A message selector that selects the answer, instead of the correlation id. A blank
            selector counts as none. Templated.
        properties: Properties of a request that is given as a value; see `JmsPublishOperator`. Templated.
        message_type: JMSType of a request that is given as a value. Templated.
        priority: 0 (lowest) to 9; `None`: the request's own, by default 4. Templated.
        time_to_live: Seconds until the request expires; `None`: the request's own, by default never.
            Templated.
        deduplicate: Let the broker drop the request if a retry sends it again; only for a broker that can
            (Artemis). Then a retry can't repeat a request that the service has lost.
        deferrable: Wait in the triggerer and hold no worker.
        **kwargs: Arguments of `JmsSensor` (`poke_interval`, `soft_fail`, `dead_letter_destination` for
            answers that can't be decoded, `max_body_bytes`, `spool_path`), and of every operator.

    Returns:
        As XCom `{"event": "answer", "jms_conn_id": ..., "destination": "queue://answers", "message": {...},
        "correlation_id": ..., "result": ..., "batch_id": ..., "manifest": "file:///..."}`, of which
        `message_from_event` returns the message.

    Source: I32, I38, I40-I42, I45-I47, I50, I54.
    """

    destination_fields: ClassVar[Sequence[str]] = ("destination", "reply_to", "dead_letter_destination")
    template_fields: Sequence[str] = (
        "destination",
        "message",
        "reply_to",
        "jms_conn_id",
        "correlation_id",
        "response_selector",
        "properties",
        "message_type",
        "priority",
        "time_to_live",
        "dead_letter_destination",
        "spool_path",
    )
    ui_color = "#e8d5b5"

    def __init__(
        self,
        *,
        destination: str,
        message: Any,
        reply_to: str,
        jms_conn_id: str = JmsHook.default_conn_name,
        response_timeout: float = 60,
        timeout_fatal: bool = False,
        result_property: str | None = None,
        correlation_id: str | None = None,
        response_selector: str | None = None,
        properties: Mapping[str, PropertyValue] | None = None,
        message_type: str | None = None,
        priority: int | str | None = None,
        time_to_live: float | str | None = None,
        deduplicate: bool = False,
        **kwargs: Any,
    ) -> None:
        for name in ("peek", "message_selector", "predicate", "fail_on", "max_messages", "timeout"):
            if name in kwargs:
                raise ConfigurationError(
                    f"JmsRequestOperator: {name} is not allowed; use response_selector to choose the answer, "
                    "result_property to recognise a failure, response_timeout to limit the wait"
                )
        refuse_secrets(type(self).__name__, {"reply_to": reply_to})
        faults = seconds_faults("response_timeout", response_timeout)
        if faults:
            raise ConfigurationError(faults)
        super().__init__(
            destination=destination, jms_conn_id=jms_conn_id, peek=False, timeout=response_timeout, **kwargs
        )
        self.message = message
        self.reply_to = reply_to
        self.response_timeout = response_timeout
        self.timeout_fatal = timeout_fatal
        self.result_property = result_property
        self.correlation_id = correlation_id
        self.response_selector = response_selector
        self.properties = properties
        self.message_type = message_type
        self.priority = priority
        self.time_to_live = time_to_live
        self.deduplicate = deduplicate
        self._number = 0
        self._request_id = self._correlation = ""
        self._selects = False

    def execute(self, context: Context) -> Any:
        """Send the request, unless its answer exists, and wait for the answer.

        Raises:
            AirflowException: No answer arrived in time; with `timeout_fatal` an `AirflowFailException`.
            AirflowFailException: The answer reports a failure of the request; or the configuration can't be
                used; or the broker refuses.
            TransientBrokerError: The request couldn't be sent, or the outcome of the send is unknown.
        """
        with task_failures():
            if self.mode != "poke":
                raise ConfigurationError(
                    f"mode is {self.mode!r}; expected deferrable=True, which occupies no worker either: "
                    "a rescheduled task would send its request again each time"
                )
            self._begin(context)
            outgoing = self._outgoing()
            self._source()  # raises errors of the configuration before the request is sent
            repeated = getattr(context_entry(context, "ti"), "try_number", 1) > 1 or is_folder(
                self._folder(context)
            )
            hook = JmsHook(self.jms_conn_id)
            options = hook.options()
            with hook.connect(options, cached_find_destination()) as connection:
                self._selects = connection.capabilities.selector
                if repeated:
                    with self._soft_failures():
                        found = self._probe(context)
                    if found.value is not None:
                        return found.value
                send(connection, outgoing)
                self.log.info(
                    "Sent request %r to %s on %s; expecting its reply on %s",
                    self._correlation, self.destination, connection.broker, self.reply_to,
                )  # fmt: skip
            self._note_request()
        return self._in_time(lambda: super(JmsRequestOperator, self).execute(context))

    def resume(self, context: Context, event: Mapping[str, Any] | None = None) -> Any:
        """Receive the answer after the trigger has fired: a message arrived, or the time is over.

        The result and the errors are those of `execute`.
        """
        with task_failures():
            self._begin(context)
        self._selects = bool((event or {}).get("state", {}).get(_SELECTS))
        return self._in_time(lambda: super(JmsRequestOperator, self).resume(context, event))

    def _in_time(self, wait: Callable[[], Any]) -> Any:
        try:
            return wait()
        except AirflowSensorTimeout as error:
            kind = AirflowFailException if self.timeout_fatal else AirflowException
            raise kind(
                f"no answer to request {self._correlation!r} arrived at {self.reply_to} within "
                f"{self.response_timeout:g} s"
            ) from error

    def _begin(self, context: Context) -> None:
        """Determine the number of the request, counted from 0 for the task instance, and its correlation id.

        The number grows by one after an answer that failed the task, so the next attempt sends a new request.
        Otherwise a retry has the same number and correlation id, and so repeats the request.
        """
        for self._number in itertools.count():
            folder = self._folder(context)
            if not exists(folder / MANIFEST):
                break
            if exists(folder / PRUNED):
                continue
            (stored,) = manifest_messages(Manifest.read(folder / MANIFEST))
            if not self._response(stored.message).failed:
                break
        key = task_key(context)
        # With a guessed id, anybody could put an answer on the queue before the request is sent. A retry
        # needs the same id on another worker and without Airflow's database. So the id is derived from a
        # secret in the spool, which both workers can read.
        names = [key.dag_id, key.run_id, key.task_id, str(key.map_index)]
        if self._number:
            names.append(str(self._number))
        self._request_id = "/".join([*names, secret_code(spool_path(self.spool_path), *names)])
        self._correlation = argument_text("correlation_id", self.correlation_id) or self._request_id

    def _outgoing(self) -> list[Outgoing]:
        return Sending(
            destination=find_destination(self.destination),
            messages=[self.message],
            properties=self.properties,
            message_type=self.message_type,
            correlation_id=self._correlation,
            reply_to=self.reply_to,
            priority=self.priority,
            time_to_live=self.time_to_live,
        ).outgoing(self._request_id if self.deduplicate else None)

    def _note_request(self) -> None:
        hook = JmsHook(self.jms_conn_id)
        note_output(hook, hook.settings(), find_destination(self.destination))

    def _folder(self, context: Context) -> SpoolPath:
        return spool_path(self.spool_path) / self._key(context).batch_id()

    # -- hooks of the sensor --------------------------------------------------------------------------------

    def _key(self, context: Context) -> TaskKey:
        key = task_key(context)
        # `#` is not allowed in the id of a task, so no other task has this key.
        return replace(key, task_id=f"{key.task_id}#{self._number}") if self._number else key

    def _state(self) -> dict[str, Any]:
        return {_SELECTS: self._selects}

    def _watched(self) -> tuple[str, str | None]:
        if selector := self._response_selector():
            return self.reply_to, selector
        quoted = self._correlation.replace("'", "''")
        return self.reply_to, f"JMSCorrelationID = '{quoted}'" if self._selects else None

    def _claim_spec(self, source: Any) -> ClaimSpec:
        if self._response_selector():
            return super()._claim_spec(source)
        return replace(super()._claim_spec(source), choose=self._choose, filters_messages=not self._selects)

    def _accepts(self, message: JmsMessage) -> object:
        return bool(self._response_selector()) or message.correlation_id == self._correlation

    def _response_selector(self) -> str | None:
        return selector_text(argument_text("response_selector", self.response_selector))

    def _response(self, message: JmsMessage) -> Response:
        if self.result_property is None:
            return Response(result=None)
        return read_response(message, self.result_property)

    def _value(self, manifest: Manifest, messages: Sequence[JmsMessage], spool: SpoolPath) -> dict[str, Any]:
        (answer,) = messages
        response = self._response(answer)
        if response.failed:
            raise AirflowFailException(
                f"request {self._correlation!r} failed: {escaped(response.error)} (the answer is kept in "
                f"{manifest.uri}; if you clear the task, it sends a new request)"
            )
        # The process that receives the answer may not be the one that sent the request.
        self._note_request()
        (content,) = super()._value(manifest, messages, spool)["messages"]
        return {
            "event": "answer",
            "jms_conn_id": self.jms_conn_id,
            **content,
            "correlation_id": self._correlation,
            "result": None if response.result is None else str(response.result),
            "batch_id": manifest.batch_id,
            "manifest": manifest.uri,
        }
