"""Waits until messages are available, and optionally consumes them."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from airflow.sdk import BaseSensorOperator, Context, PokeReturnValue
from airflow.sdk.exceptions import (
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSensorTimeout,
    AirflowSkipException,
    AirflowTaskTimeout,
)
from airflow.sdk.execution_time.timeout import timeout as execution_timer

from airflow_provider_jmsjca.assets.jms import note_input
from airflow_provider_jmsjca.core.activation import ActivationSpec, refuse_secrets
from airflow_provider_jmsjca.core.configuration.destination_options import reference_text
from airflow_provider_jmsjca.core.destination import Destination, DestinationKind
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.core.quantities import count_faults, seconds_faults
from airflow_provider_jmsjca.core.selector import Selector
from airflow_provider_jmsjca.engine.delivering.settings import (
    ListenerContext,
    ListenerSettings,
    listener_settings,
    plain_function,
    refuse_unrun,
)
from airflow_provider_jmsjca.engine.watching.peek import browse_or_receive, peek
from airflow_provider_jmsjca.errors import (
    BatchInUseError,
    ConfigurationError,
    PermanentBrokerError,
    TransientBrokerError,
)
from airflow_provider_jmsjca.escaping import escaped
from airflow_provider_jmsjca.hooks.destinations import find_destination
from airflow_provider_jmsjca.hooks.jms import JmsHook
from airflow_provider_jmsjca.hooks.secrets import SecretsRefused
from airflow_provider_jmsjca.hooks.selectors import effective_selector
from airflow_provider_jmsjca.hooks.spool import (
    known_ids_key,
    reference_retention,
    spool_path,
    spool_roots,
    task_key,
)
from airflow_provider_jmsjca.hooks.task_failures import deferral_timeout, task_failures, timeout_text
from airflow_provider_jmsjca.spool.batch_id import TaskKey
from airflow_provider_jmsjca.spool.files import SpoolPath, exists, is_folder
from airflow_provider_jmsjca.spool.manifest import PRUNED, Manifest
from airflow_provider_jmsjca.spool.references import seal_message, sweep_references
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import Connection, ConnectionSettings, Subscription
from airflow_provider_jmsjca.triggers.payload import Fit, Payload, batch_event, fit, message_content

# The processor of DAG files imports this module for every DAG with a sensor, and runs no task. Modules that
# only a running task needs are imported in its methods.
if TYPE_CHECKING:
    from airflow_provider_jmsjca.engine.collecting.claim import Choice, ClaimSpec
    from airflow_provider_jmsjca.spool.spool import SpoolBatch

Predicate: TypeAlias = Callable[[JmsMessage], object]

_XCOM_BODY_BYTES = 64 * 1024
_MOST_MESSAGES = 1_000


class JmsSensor(SecretsRefused, BaseSensorOperator):
    """Succeeds when a queue has a message; consumes it, or leaves it for a later task.

    With `peek=True` it consumes nothing. For the probes of each broker, and their effect on the redelivered
    flag, see `JmsActivationTrigger`.

    With `peek=False` it claims one message, or a batch, and returns it. Guarantee: a message is acknowledged
    only after it is in a sealed file of the spool, so no crash loses it. The messages belong to the task
    instance, not to one try. A retry, or the task after it was cleared, returns the same messages and takes
    no others. Messages that the broker redelivers, to this sensor or another one of the queue, are dropped as
    long as the spool retains their ids. Where producers create the ids (RabbitMQ), a second equal message is
    claimed too, because it may have been sent on purpose. If a task of an earlier DAG run took messages and
    never finished, each try logs which task to clear. A message that can't be decoded is moved to
    `dead_letter_destination`, else to the target of the redelivery handling of the connection or of
    `[jmsjca]`. Without either target, the message stays on the queue, and the sensor skips it.

    Args:
        destination: `queue://name`, `lookup://object`, or the name of a queue. Templated.
        jms_conn_id: The Airflow connection. Templated.
        message_selector: Only matching messages count; `None` for all. Templated.
        peek: Leave the message on the queue.
        deferrable: Wait in the triggerer and occupy no worker. The trigger only probes; the worker consumes.
        predicate: Called with messages, as `JmsMessage`, in the order of the queue until it returns a true
            value. With `peek=False` it is called for each message, and those that it refuses stay on the
            queue. It may be called several times for a message. At most 1,000 messages are skipped, fewer
            where the broker's page is smaller (ActiveMQ Classic: 200). An exception fails the try, and
            nothing is consumed.
        fail_on: A message that satisfies it fails the task, without retries. A function like `predicate`, or
            the text of a message selector, such as `status = 'FAILED'`. With `peek=False` only that message
            is consumed.
        dead_letter_destination: Destination of messages that can't be decoded, with `peek=False`; `$` stands
            for the queue's name. Templated.
        max_messages: Maximum number of messages in a batch, 1 to 1,000; only with `peek=False`.
        batch_timeout: Seconds to wait for further messages of a batch after the first.
        max_body_bytes: Maximum length of a message's body and properties in XCom, as JSON. For a longer
            message, XCom has a reference to a copy in the spool. The copy is kept for
            `[jmsjca] reference_retention_days`.
        spool_path: Directory of the batches, as for `JmsCollectOperator`. Templated.
        **kwargs: `poke_interval` (seconds between two probes), `timeout` (seconds after which the sensor
            fails or, with `soft_fail` or `never_fail`, is skipped), `mode`, and arguments of every operator.
            With `never_fail` any other failure skips the task too, and with `silent_fail` an error of a probe
            is only logged; both also if `deferrable`. The `execution_timeout` includes the time in which the
            sensor is deferred.

    Returns:
        As XCom `{"event": "ready", "jms_conn_id": ..., "destination": "queue://orders"}`; with `peek=False`
        `{"event": "batch", "jms_conn_id": ..., "destination": ..., "batch_id": ..., "manifest": "file:///...",
        "messages": [...]}`, in the form of `JmsActivationTrigger`'s batches: `messages_from_event`
        returns the messages.
    """

    destination_fields: ClassVar[Sequence[str]] = ("destination", "dead_letter_destination")
    template_fields: Sequence[str] = (
        "destination",
        "jms_conn_id",
        "message_selector",
        "dead_letter_destination",
        "spool_path",
    )
    ui_color = "#d6e4f0"

    def __init__(
        self,
        *,
        destination: str,
        jms_conn_id: str = JmsHook.default_conn_name,
        message_selector: str | None = None,
        peek: bool = True,
        deferrable: bool = False,
        predicate: Predicate | None = None,
        fail_on: Predicate | str | None = None,
        dead_letter_destination: str | None = None,
        max_messages: int = 1,
        batch_timeout: float = 1,
        max_body_bytes: int = _XCOM_BODY_BYTES,
        spool_path: str | None = None,
        **kwargs: Any,
    ) -> None:
        given = {"destination": destination, "dead_letter_destination": dead_letter_destination}
        refuse_secrets(type(self).__name__, given)
        super().__init__(**kwargs)
        self.destination = destination
        self.jms_conn_id = jms_conn_id
        self.message_selector = message_selector
        self.peek = peek
        self.deferrable = deferrable
        self.predicate = predicate
        self.fail_on = fail_on
        self.dead_letter_destination = dead_letter_destination
        self.max_messages = max_messages
        self.batch_timeout = batch_timeout
        self.max_body_bytes = max_body_bytes
        self.spool_path = spool_path
        self._warns_of_unfinished = True  # once in a run, not after each deferral

    def execute(self, context: Context) -> Any:
        """Probe once, then wait in this task's process or in the triggerer."""
        if context.get("task_reschedule_count", 0):
            self._warns_of_unfinished = False
        if not self.deferrable:
            with self._soft_failures():
                return super().execute(context)
        now, limit = time.time(), self.execution_timeout
        return self._probe_or_defer(
            context,
            until=now + self.timeout,
            timeout_at=None if limit is None else now + limit.total_seconds(),
        )

    def poke(self, context: Context) -> PokeReturnValue:
        """Probe once; return whether the wait is over, and the task's result.

        Raises:
            AirflowFailException: A message satisfies `fail_on`, the configuration is invalid, or the broker
                refuses.
        """
        found = self._probe(context)
        return PokeReturnValue(is_done=found.value is not None, xcom_value=found.value)

    def resume(self, context: Context, event: Mapping[str, Any] | None = None) -> Any:
        """Probe again after the trigger has seen a message, or at the deadline.

        Raises:
            AirflowFailException: The trigger reports a permanent fault.
            AirflowSensorTimeout: `timeout` is over, counted from the start of this try.
            AirflowTaskTimeout: `execution_timeout` is over, counted from the start of this try.
        """
        self._warns_of_unfinished = False
        event = event or {}
        if event.get("event") not in {"ready", "deadline"}:
            raise AirflowFailException(event.get("error", "the trigger returned no event"))
        until, timeout_at = event["state"]["until"], event["state"]["timeout_at"]
        over = event["event"] == "deadline"
        if over and timeout_at is not None and timeout_at <= until:
            raise AirflowTaskTimeout(timeout_text(self))
        if not over:
            self.log.info("%s holds messages", escaped(event["destination"]))
            if self.peek and self.predicate is None and self.fail_on is None:
                with task_failures():
                    return self._report(find_destination(self.destination))
        probe = functools.partial(
            self._probe_or_defer,
            context,
            until=until,
            timeout_at=timeout_at,
            is_resumed=not over,
            is_last=over,
        )
        if timeout_at is None:
            return probe()
        # Airflow's own timer restarts each time a deferred task resumes on a worker.
        left = timeout_at - time.time()
        if left <= 0:
            raise AirflowTaskTimeout(timeout_text(self))
        with execution_timer(left, error_message=timeout_text(self)):
            return probe()

    # -- waiting --------------------------------------------------------------------------------------------

    def _probe_or_defer(
        self,
        context: Context,
        *,
        until: float,
        timeout_at: float | None,
        is_resumed: bool = False,
        is_last: bool = False,
    ) -> Any:
        """Return the task's result, or defer.

        Args:
            context: The task's context.
            until: End of `timeout`, in seconds since the epoch.
            timeout_at: End of `execution_timeout`, in seconds since the epoch.
            is_resumed: Whether the trigger saw a message.
            is_last: Whether `timeout` is over: this is the last probe.
        """
        with self._soft_failures():
            try:
                found = self._probe(context)
            except AirflowFailException:
                raise
            except Exception:
                if not self.silent_fail:
                    raise
                self.log.exception("Sensor poke failed; trying again")
                found = _Found(left=1)
            if found.value is None:
                if is_last or time.time() >= until:
                    raise AirflowSensorTimeout(f"no message within the timeout of {self.timeout:g} s")
                # The trigger would fire again at once for messages that this probe has seen and left.
                pause = self.poke_interval if is_resumed or found.left else 0
                with task_failures():
                    self._defer(self._source(), until, timeout_at, not_before=time.time() + pause)
        return found.value

    def _defer(self, source: _Source, until: float, timeout_at: float | None, not_before: float) -> None:
        from airflow_provider_jmsjca.triggers.listen import JmsListenTrigger  # noqa: PLC0415 - not at parse time

        self.log.info(
            "Deferred until a message is on %s, over connection %r%s, for %s at most",
            source.queue,
            self.jms_conn_id,
            f", matching {source.selector!r}" if source.selector else "",
            timedelta(seconds=max(0, round(until - time.time()))),
        )
        watch = reference_text(source.queue)
        deadline = until if timeout_at is None else min(until, timeout_at)
        self.defer(
            trigger=JmsListenTrigger(
                jms_conn_id=self.jms_conn_id,
                destination=watch,
                message_selector=source.selector,
                poll_interval=self.poke_interval,
                not_before={watch: not_before},
                deadline=deadline,
                state={"until": until, "timeout_at": timeout_at, **self._state()},
            ),
            method_name="resume",
            timeout=deferral_timeout(deadline),
        )

    def _state(self) -> dict[str, Any]:
        """Return the state that a subclass keeps while the task is deferred, as JSON values."""
        return {}

    @contextlib.contextmanager
    def _soft_failures(self) -> Iterator[None]:
        """Skip the task instead of failing it, if `soft_fail` or `never_fail` is set.

        Both cover timeouts and failures without a retry. `never_fail` also covers every other exception, such
        as that of a predicate. In the modes without deferral, Airflow does most of this.
        """
        try:
            yield
        except (AirflowSkipException, AirflowRescheduleException):
            raise
        except (AirflowSensorTimeout, AirflowFailException) as error:
            if self.soft_fail or self.never_fail:
                raise AirflowSkipException(f"{error} (skipped because of soft_fail or never_fail)") from error
            raise
        except Exception as error:
            if self.never_fail:
                raise AirflowSkipException(
                    f"{type(error).__name__}: {error} (skipped because of never_fail)"
                ) from error
            raise

    # -- looking --------------------------------------------------------------------------------------------

    def _probe(self, context: Context) -> _Found:
        with task_failures():
            self._check()
            source = self._source()
            try:
                if source.listener is None:
                    return self._peek(source)
                found = self._claim(source, context)
            except (TransientBrokerError, BatchInUseError) as error:
                self.log.warning("Can't check %s now; trying again later: %s", source.queue, error)
                return _Found()
            if found.value is not None:
                note_input(JmsHook(self.jms_conn_id), source.connection, source.queue)
            return found

    def _check(self) -> None:
        faults = [
            *count_faults("max_messages", self.max_messages),
            *seconds_faults("batch_timeout", self.batch_timeout),
            *count_faults("max_body_bytes", self.max_body_bytes, minimum=0),
        ]
        if not faults and self.max_messages > _MOST_MESSAGES:
            faults.append(
                f"max_messages is {self.max_messages}; expected at most {_MOST_MESSAGES:,}: "
                "use JmsCollectOperator for more"
            )
        if self.peek and self.max_messages != 1:
            faults.append(f"max_messages is {self.max_messages}; expected 1 with peek=True, or peek=False")
        if self.peek and self.dead_letter_destination:
            faults.append("dead_letter_destination is not allowed with peek=True, which moves no messages")
        if faults:
            raise ConfigurationError(faults)
        for name, function in (("predicate", self.predicate), ("fail_on", self.fail_on)):
            if callable(function):
                plain_function(name, function)
            elif function is not None and not (name == "fail_on" and isinstance(function, str)):
                raise ConfigurationError(f"{name} is {function!r}; expected a function")
        self._failing()

    def _watched(self) -> tuple[str, str | None]:
        """Return the queue and the selector."""
        return self.destination, self.message_selector or None

    def _key(self, context: Context) -> TaskKey:
        """Return the key of the task that owns the messages."""
        return task_key(context)

    def _source(self) -> _Source:
        name, own = self._watched()
        queue = find_destination(name)
        if queue.kind is not DestinationKind.QUEUE:
            raise ConfigurationError(
                f"{type(self).__name__} waits on a queue, not on {queue}: a topic stores no messages"
            )
        hook = JmsHook(self.jms_conn_id)
        if self.peek:
            selector = effective_selector(hook.options(), queue, own)
            settings, listener = hook.settings(), None
        else:
            given = {"destination": reference_text(queue), "message_selector": own}
            if self.dead_letter_destination:
                given["dead_letter_destination"] = self.dead_letter_destination
            spec, settings = hook.activation(ActivationSpec(**given))
            listener = listener_settings(spec, ListenerContext().over(settings))
            selector = listener.subscription.selector
        # Only durable subscriptions need a client id. With one, the broker would refuse the sensor while a
        # listener of the same connection is running.
        return _Source(
            queue=queue, selector=selector, connection=replace(settings, client_id=None), listener=listener
        )

    def _peek(self, source: _Source) -> _Found:
        from airflow_provider_jmsjca.engine.collecting.claim import LOOKED_PAST, Choice  # noqa: PLC0415 - not at parse time

        with _connected(source) as connection:
            if self.predicate is None and self.fail_on is None:
                there = peek(connection, source.queue, source.selector)
                return _Found(value=self._report(source.queue) if there else None)
            left = 0
            for message in browse_or_receive(connection, source.queue, source.selector, LOOKED_PAST):
                choice = self._choose(message)
                if choice is Choice.CLAIM_ALONE:
                    raise self._failure([message], source.queue)
                if choice is Choice.CLAIM:
                    return _Found(value=self._report(source.queue))
                left += 1
            return _Found(left=left)

    def _claim(self, source: _Source, context: Context) -> _Found:
        from airflow_provider_jmsjca.engine.collecting.claim import claim  # noqa: PLC0415 - not at parse time
        from airflow_provider_jmsjca.spool.rows import manifest_messages  # noqa: PLC0415 - not at parse time
        from airflow_provider_jmsjca.spool.spool import SpoolBatch  # noqa: PLC0415 - not at parse time

        spool, batch_id = spool_path(self.spool_path), self._key(context).batch_id()
        activation = known_ids_key(self.jms_conn_id, source.queue)
        self._warn_of_unfinished(spool, batch_id, activation)
        open_batch = functools.partial(
            SpoolBatch, spool, batch_id, source=str(source.queue), activation=activation
        )
        what = self._claim_spec(source)
        manifest, left = self._claimed_manifest(source, spool / batch_id, open_batch, what), 0
        if manifest is None:
            try:
                with _connected(source) as connection:
                    result = claim(connection, open_batch, what)
            except TransientBrokerError as error:
                # Sealed messages belong to this task, whether or not the broker has the acknowledgement.
                manifest = self._claimed_manifest(source, spool / batch_id, open_batch, what)
                if manifest is None:
                    raise
                self.log.warning("%s; the claimed messages are already stored in %s", error, manifest.uri)
            else:
                manifest, left = result.manifest, result.left
                self.log.info(
                    "Checked %s: %s claimed, %d repeated messages dropped, %d left there, %d moved as dead "
                    "letters",
                    source.queue,
                    "nothing" if manifest is None else f"batch {manifest.batch_id} of {manifest.rows}",
                    result.repeated,
                    left,
                    result.dead_letters,
                )
        if manifest is None:
            return _Found(left=left)
        if exists(manifest.folder / PRUNED):
            raise ConfigurationError(
                f"batch {batch_id}: this task's messages were removed from the spool, and a cleared task "
                "takes no others. Start a new DAG run"
            )
        messages = [stored.message for stored in manifest_messages(manifest)]
        if any(self._fails(message) for message in messages):
            raise self._failure(messages, source.queue, f"; it is kept in {manifest.uri}")
        return _Found(value=self._value(manifest, messages, spool))

    def _warn_of_unfinished(self, spool: SpoolPath, batch_id: str, activation: str) -> None:
        """Log unfinished batches of earlier DAG runs; only at the first probe of a try."""
        from airflow_provider_jmsjca.spool.spool import unfinished_batches  # noqa: PLC0415 - not at parse time

        if self._warns_of_unfinished:
            for each in unfinished_batches(spool, batch_id, activation):
                self.log.warning("%s", escaped(each.warning()))
            self._warns_of_unfinished = False

    def _value(self, manifest: Manifest, messages: Sequence[JmsMessage], spool: SpoolPath) -> dict[str, Any]:
        contents = [self._content(message, manifest, spool) for message in messages]
        if any("reference" in content for content in contents):
            sweep_references(spool, reference_retention())
            if spool not in spool_roots():
                self.log.warning(
                    "XCom refers to messages in %s, which readers don't trust. Add it to [jmsjca] "
                    "spool_roots, or read the messages by messages_from_event(..., spool_path=...)",
                    spool,
                )
        named = {"batch_id": manifest.batch_id, "manifest": manifest.uri, "destination": manifest.source}
        return batch_event(self.jms_conn_id, contents) | named

    def _content(self, message: JmsMessage, manifest: Manifest, spool: SpoolPath) -> dict[str, Any]:
        source = Destination.from_header(manifest.source)
        how = fit(message, self.max_body_bytes, Payload.MESSAGE)
        if how is Fit.WHOLE:
            return message_content(source, message, Payload.MESSAGE)
        headers = message if how is Fit.SEALED else replace(message, properties={}, property_types={})
        content = message_content(source, headers, Payload.REFERENCE)
        return content | {"reference": seal_message(spool, message)}

    def _claimed_manifest(
        self, source: _Source, folder: SpoolPath, open_batch: Callable[[], SpoolBatch], what: ClaimSpec
    ) -> Manifest | None:
        """Finish the batch that this try or an earlier one claimed, and return its manifest.

        Returns:
            `None` if no batch was claimed, or the batch has no message.
        """
        from airflow_provider_jmsjca.engine.collecting.claim import finish  # noqa: PLC0415 - not at parse time

        if not is_folder(folder):
            return None
        with open_batch() as batch:
            if batch.rows == 0:
                batch.complete()  # the attempt that opened the batch died before it received a message
            elif batch.manifest is None:
                try:
                    with _connected(source) as connection:
                        finish(connection, batch, what)
                except (TransientBrokerError, PermanentBrokerError) as error:
                    self.log.warning(
                        "Batch %s is finished, but its messages can't be acknowledged now; if the broker "
                        "redelivers them, they are dropped: %s",
                        batch.batch_id,
                        error,
                    )
                    batch.complete()
        if batch.rows == 0:
            batch.discard()
            return None
        return batch.manifest

    def _claim_spec(self, source: _Source) -> ClaimSpec:
        from airflow_provider_jmsjca.core.delivery.settlement import dead_letter_targets  # noqa: PLC0415 - not at parse time
        from airflow_provider_jmsjca.core.redelivery.tracker import UNSEEN  # noqa: PLC0415 - not at parse time
        from airflow_provider_jmsjca.engine.collecting.claim import ClaimSpec  # noqa: PLC0415 - not at parse time

        listener = source.listener
        assert listener is not None, "only who consumes claims"  # noqa: S101
        delivery = listener.delivery
        return ClaimSpec(
            subscription=Subscription(destination=source.queue, selector=source.selector),
            max_messages=self.max_messages,
            wait_for_more=timedelta(seconds=self.batch_timeout),
            choose=None if self.predicate is None and self.fail_on is None else self._choose,
            filters_messages=self.predicate is not None,
            dead_letter=dead_letter_targets(UNSEEN, delivery),
            redirect=delivery.redirect,
            client_id=listener.client_id,
        )

    def _choose(self, message: JmsMessage) -> Choice:
        from airflow_provider_jmsjca.engine.collecting.claim import Choice  # noqa: PLC0415 - not at parse time

        if self._fails(message):
            return Choice.CLAIM_ALONE
        wanted = self._accepts(message)
        refuse_unrun("predicate", wanted)
        return Choice.CLAIM if wanted else Choice.LEAVE

    def _accepts(self, message: JmsMessage) -> object:
        return True if self.predicate is None else self.predicate(message)

    def _fails(self, message: JmsMessage) -> bool:
        failing = self._failing()
        if failing is None:
            return False
        failed = failing(message)
        refuse_unrun("fail_on", failed)
        return bool(failed)

    def _failing(self) -> Predicate | None:
        if not isinstance(self.fail_on, str):
            return self.fail_on
        try:
            # Compared as STOMP brokers do, to which every property is text.
            return Selector.parse(self.fail_on, strings_as_numbers=True).matches
        except ConfigurationError as error:
            raise ConfigurationError([f"fail_on: {fault}" for fault in error.faults]) from error

    def _failure(self, messages: Sequence[JmsMessage], queue: Destination, more: str = "") -> Exception:
        named = ", ".join(str(each.message_id) for each in messages if self._fails(each))
        condition = f" ({self.fail_on})" if isinstance(self.fail_on, str) else ""
        return AirflowFailException(f"message {named} of {queue} satisfies fail_on{condition}{more}")

    def _report(self, queue: Destination) -> dict[str, Any]:
        return {"event": "ready", "jms_conn_id": self.jms_conn_id, "destination": str(queue)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """Result of a probe.

    Attributes:
        value: The task's result; `None` if it has to wait.
        left: Number of messages that the probe has examined and left on the queue.
    """

    value: dict[str, Any] | None = None
    left: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """Queue, connection and selector of a probe.

    Attributes:
        listener: Settings for consuming; `None` with `peek=True`.
    """

    queue: Destination
    selector: str | None
    connection: ConnectionSettings
    listener: ListenerSettings | None


@contextlib.contextmanager
def _connected(source: _Source) -> Iterator[Connection]:
    connection = connect(source.connection)
    try:
        yield connection
    finally:
        connection.close()
