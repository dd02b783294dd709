"""Consumes messages with a user's function, under the rules of an activation spec."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final

from airflow.sdk import BaseOperator, BaseOperatorLink, Context
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
    AirflowTaskTimeout,
)
from airflow.sdk.execution_time.timeout import timeout as execution_timer

from airflow_provider_jmsjca.assets.jms import note_input
from airflow_provider_jmsjca.core.activation import ActivationSpec
from airflow_provider_jmsjca.core.configuration.destination_options import reference_text
from airflow_provider_jmsjca.core.delivery.settings import DeliverySettings
from airflow_provider_jmsjca.core.destination import DestinationKind
from airflow_provider_jmsjca.core.quantities import count_faults, seconds_faults
from airflow_provider_jmsjca.core.redelivery import Move
from airflow_provider_jmsjca.engine.collecting.batch_spec import EndReason
from airflow_provider_jmsjca.engine.delivering.settings import (
    ListenerContext,
    ListenerSettings,
    Subscribes,
    plain_function,
)
from airflow_provider_jmsjca.errors import ConfigurationError, DeliveryStoppedError
from airflow_provider_jmsjca.escaping import escaped
from airflow_provider_jmsjca.hooks.destinations import cached_find_destination
from airflow_provider_jmsjca.hooks.jms import JmsHook
from airflow_provider_jmsjca.hooks.secrets import SecretsRefused
from airflow_provider_jmsjca.hooks.store import installed_store, store_for
from airflow_provider_jmsjca.hooks.task_failures import (
    context_entry,
    deferral_timeout,
    task_failures,
    timeout_text,
)
from airflow_provider_jmsjca.operators.run_state import RunState
from airflow_provider_jmsjca.operators.web_links import JmsDeadLettersLink, console_address
from airflow_provider_jmsjca.store.base import ActivationOrder, WantedState
from airflow_provider_jmsjca.transports.base import ConnectionSettings

# The processor of DAG files imports this module for every DAG with a listener, and runs no task. Modules that
# only a running task needs are imported in its methods.
if TYPE_CHECKING:
    from airflow_provider_jmsjca.engine.activations.listener import Listener
    from airflow_provider_jmsjca.engine.delivering.statistics import Counts

_PROGRESS = timedelta(seconds=5)
# Airflow ends the process 5 seconds after its request to stop; the connection must be closed by then.
_WITHIN_IF_KILLED: Final = timedelta(seconds=4)


class _Killed:
    """Flag that Airflow has requested the task to end.

    A signal handler sets the flag, perhaps while it interrupts the thread that reads the flag. So the flag
    can't use a lock, as `threading.Event` does.
    """

    def __init__(self) -> None:
        self._reported = False

    def set(self) -> None:
        """Record the request to end the task."""
        self._reported = True

    def is_set(self) -> bool:
        """Return whether the task was requested to end."""
        return self._reported


class JmsListenOperator(SecretsRefused, BaseOperator):
    """Calls a function with each message of a destination, each in a transaction of its own.

    The function gets a `Delivery`, which can be read like the message. Messages that it sends with
    `Delivery.send()` belong to the transaction. When the function returns, the delivery is committed. When it
    raises or requests a rollback, the delivery is rolled back. The redelivery handling then decides when the
    message is delivered again.

    The task ends at the first of `max_messages`, `run_for` and `idle_for`; at least one must be given. It
    fails if the same messages fail repeatedly for `failure_timeout`, and no other message arrives. It also
    fails at Airflow's `execution_timeout`, counted from its start, including the time it was deferred. While
    a queue is empty the task is deferred and occupies no worker. It keeps its worker if the spec's connection
    settings differ from the Airflow connection, because the triggerer has only the Airflow connection.

    The task fails, without retries, when the function stops the delivery. With `use_store` of the spec the
    stop is permanent: the task is skipped in later DAG runs, until `airflow jms activations resume`.

    Guarantee: a message is settled only after the function has returned. After a crash before the broker has
    confirmed the settlement, the message is redelivered. On ActiveMQ, messages that the function sent are
    then not sent; on other brokers they may be sent twice. Attempts are counted while the task has its
    worker, or, with `use_store` of the spec, as long as the store keeps the counts.

    Args:
        spec: An `ActivationSpec`, or its fields: destination (one, or several that take turns),
            concurrency_mode, redelivery_handling ... Templated if it is a mapping. Secrets are refused,
            because Airflow stores and shows the spec; put them in an Airflow connection.
        on_message: Called with each `Delivery`, in a thread of its own, in the task's context.
        jms_conn_id: The Airflow connection; `None` takes the spec's `jms_conn_id`. A spec with a
            `connection_url` needs no Airflow connection. Templated.
        max_messages: End when this number of messages is settled; never more are settled.
        run_for: End after this number of seconds, including deferred time.
        idle_for: End after this number of seconds without a message, including deferred time.
        failure_timeout: Fail if redelivered messages failed repeatedly for this number of seconds, while no
            new message arrived and none was settled. Also fail if no message arrived for this time after the
            broker left a connection attempt unanswered. `None` takes `idle_for`, or an hour without
            `idle_for`.
        defer_after: Leave the worker after this number of seconds without a message; `None` never does.
        poll_interval: Seconds between two probes while deferred, on brokers that can be browsed.
        stop_timeout: Seconds that running calls get at the end; after that they are rolled back. A task that
            is killed or cleared gives them 4 at most, because Airflow ends its process after 5.
        confirm_acknowledgements: Wait until the broker confirms each settlement; also a field of the spec.
        non_blocking_redelivery: Don't block during redelivery delays above 5 seconds: with `use_store` the
            message waits in limbo, otherwise at the broker if it supports delays. Also a field of the spec.
        subscribes: Returns whether a message is wanted; the others move to the spec's
            `unsubscribed_destination`. The function must be quick, because other messages wait for it.

    Returns:
        `{"delivered": 12, "redelivered": 2, "committed": 10, "rolled_back": 2, "moved": 0, "deleted": 0, ...,
        "ended_by": "count"}`. A distributed durable subscription adds `"moved_to_queue"`. A listener on every
        member adds `"members_down"`: the members that were down at the end. If `run_for` ended while the task
        was deferred, these are the members that were down when the task left the worker. For lineage the
        destinations are inputs of the task. The destinations to which the function sends aren't recorded,
        because they aren't known in advance.

    Source: J81-J84, J128-J148, J172, J183-J211, W12, W30, W31, W33, W46.
    """

    destination_fields: ClassVar[Sequence[str]] = ()
    spec_field: ClassVar[str | None] = "spec"
    template_fields: Sequence[str] = ("spec", "jms_conn_id")
    ui_color = "#c9d8ea"
    operator_extra_links: Collection[BaseOperatorLink] = (JmsDeadLettersLink(),)

    def __init__(
        self,
        *,
        spec: ActivationSpec | Mapping[str, Any],
        on_message: Callable[..., Any],
        jms_conn_id: str | None = None,
        max_messages: int | None = None,
        run_for: float | None = None,
        idle_for: float | None = None,
        failure_timeout: float | None = None,
        defer_after: float | None = 5,
        poll_interval: float = 5,
        stop_timeout: float = 30,
        confirm_acknowledgements: bool = False,
        non_blocking_redelivery: bool = False,
        subscribes: Subscribes | None = None,
        **kwargs: Any,
    ) -> None:
        self.refuse_secrets({"spec": spec})
        super().__init__(**kwargs)
        self.spec = spec
        self.on_message = on_message
        self.jms_conn_id = jms_conn_id
        self.max_messages = max_messages
        self.run_for = run_for
        self.idle_for = idle_for
        self.failure_timeout = failure_timeout
        self.defer_after = defer_after
        self.poll_interval = poll_interval
        self.stop_timeout = stop_timeout
        self.confirm_acknowledgements = confirm_acknowledgements
        self.non_blocking_redelivery = non_blocking_redelivery
        self.subscribes = subscribes
        self._killed = _Killed()
        self._dead_letters_link = ""

    @property
    def linked_dead_letters(self) -> str:
        """Console address of the queue with moved messages; empty if unknown, or if none was moved."""
        return self._dead_letters_link

    def execute(self, context: Context) -> dict[str, Any]:
        """Consume until a bound is reached, or until the task is deferred."""
        with task_failures():
            self._check()
        now, timeout = time.time(), self.execution_timeout
        return self._listen(
            context,
            RunState(
                until=None if self.run_for is None else now + self.run_for,
                timeout_at=None if timeout is None else now + timeout.total_seconds(),
            ),
        )

    def resume(self, context: Context, event: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Continue after the task was deferred.

        Raises:
            AirflowFailException: The trigger failed with an error that a retry can't fix.
            AirflowTaskTimeout: `execution_timeout` is over, counted from the first start of this try.
        """
        event = event or {}
        if event.get("event") not in {"ready", "deadline", "requested"}:
            raise AirflowFailException(event.get("error", "the trigger returned no event"))
        run_state = RunState.resumed(event, time.time())
        if run_state.woken_by is not None:
            first = escaped(event["message_id"])
            self.log.info("%s holds messages; the first is %s", escaped(event["watch"]), first)
        elif event["event"] == "requested":
            self.log.info("The activation was stopped or drained while the task was deferred")
        else:
            self.log.info("No message arrived while the task was deferred, and its time is up")
        if event["event"] == "deadline" and run_state.ends_by_time:
            from airflow_provider_jmsjca.engine.activations.limits import run_report  # noqa: PLC0415 - not at parse time

            down = run_state.members_down
            report = run_report(run_state.counts, EndReason.TIME)
            return report if down is None else report | {"members_down": list(down)}
        if run_state.timeout_at is None:
            return self._listen(context, run_state)
        # Airflow's own timer restarts when a deferred task resumes on a worker.
        left = run_state.timeout_at - time.time()
        if left <= 0 or (event["event"] == "deadline" and run_state.ends_by_timeout):
            raise AirflowTaskTimeout(timeout_text(self))
        with execution_timer(left, error_message=timeout_text(self)):
            return self._listen(context, run_state)

    def on_kill(self) -> None:
        """Stop consuming: running calls end or are rolled back, and other messages return to the broker."""
        self._killed.set()

    def _check(self) -> None:
        faults: list[str] = []
        if self.max_messages is None and self.run_for is None and self.idle_for is None:
            faults.append("a listener needs an end: max_messages, run_for or idle_for")
        if self.max_messages is not None:
            faults += count_faults("max_messages", self.max_messages)
        if self.run_for is not None:
            faults += seconds_faults("run_for", self.run_for, otherwise="None for no such end")
        if self.idle_for is not None:
            faults += seconds_faults("idle_for", self.idle_for, otherwise="None for no such end")
        if self.failure_timeout is not None:
            faults += seconds_faults("failure_timeout", self.failure_timeout, otherwise="None for idle_for")
        if self.defer_after is not None:
            faults += seconds_faults("defer_after", self.defer_after, otherwise="None to keep the worker")
        faults += seconds_faults("poll_interval", self.poll_interval)
        faults += seconds_faults("stop_timeout", self.stop_timeout, minimum=0)
        if faults:
            raise ConfigurationError(faults)

    def _listen(self, context: Context, run_state: RunState) -> dict[str, Any]:
        from airflow_provider_jmsjca.engine.activations.activation import activation_of  # noqa: PLC0415 - not at parse time
        from airflow_provider_jmsjca.engine.activations.limits import FAILURE_TIMEOUT, duration  # noqa: PLC0415 - not at parse time
        from airflow_provider_jmsjca.engine.activations.metrics import measured  # noqa: PLC0415 - not at parse time
        from airflow_provider_jmsjca.engine.limbo import maintained  # noqa: PLC0415 - not at parse time
        from airflow_provider_jmsjca.engine.watching.depths import probed_queues  # noqa: PLC0415 - not at parse time
        from airflow_provider_jmsjca.hooks.metrics import sending  # noqa: PLC0415 - not at parse time
        from airflow_provider_jmsjca.hooks.registry import task_supervision  # noqa: PLC0415 - not at parse time

        with task_failures(), contextlib.ExitStack() as resources:
            plain_function("on_message", self.on_message)
            spec, settings = self._resolved(_instance(context_entry(context, "ti")))
            store = resources.enter_context(store_for(spec))
            if store is not None:
                # The task itself sends due messages of limbo, because there may be no triggerer to do so.
                resources.enter_context(
                    maintained(lambda: contextlib.closing(installed_store()), JmsHook.connect_for_limbo)
                )
            supervision = task_supervision(context_entry(context, "ti"), settings)
            activation = activation_of(
                spec,
                settings,
                self._handle,
                ListenerContext(
                    confirm_acknowledgements=self.confirm_acknowledgements,
                    non_blocking_redelivery=self.non_blocking_redelivery,
                    subscribes=self.subscribes,
                    find=cached_find_destination(),
                    store=store,
                    # Messages in limbo are sent over the Airflow connection. So limbo is used only if that
                    # connection leads to the same broker as the spec.
                    jms_conn_id=self._conn_id if store is not None and self._is_known(settings) else "",
                ),
                admit=(lambda: None) if supervision is None else supervision.admit,
            )
            for source in activation.settings.delivery.sources:
                note_input(JmsHook(self._conn_id), settings, source)
            defer_after = self.defer_after if self._may_defer(activation, settings) else None
            quiet = run_state.idle_limit(time.time(), idle_for=self.idle_for, defer_after=defer_after)
            so_far, until, began = run_state.counts, run_state.until, time.time()
            failure_timeout = duration(
                "failure_timeout", self.failure_timeout or self.idle_for or FAILURE_TIMEOUT
            )
            if supervision is not None:
                resources.enter_context(supervision.running(activation))
            queues = probed_queues(settings, activation.settings.delivery.sources, activation.member_names)
            resources.enter_context(sending(lambda: measured(activation), queues))
            counts = so_far + self._run(
                activation,
                so_far,
                lambda: None if supervision is None else supervision.order,
                max_messages=None if self.max_messages is None else self.max_messages - so_far.settled,
                run_for=None if until is None else max(until - time.time(), 0.001),
                idle_for=quiet,
                failure_timeout=failure_timeout,
                within=self.stop_timeout,
                within_if_stopped=_WITHIN_IF_KILLED,
                progress=lambda now: self._log_progress(so_far + now, _down_hosts(activation)),
                progress_every=_PROGRESS,
            )
        if counts.moved:
            self._dead_letters_link = self._link_to_dead_letters(activation.settings.delivery)
        down = activation.missing
        self._log_progress(counts, down or ())
        if self._killed.is_set():
            raise AirflowException(
                f"told to stop; {counts.settled} messages are settled, the others return to the broker"
            )
        ended_by = activation.ended_by
        if self.max_messages is not None and counts.settled >= self.max_messages:
            ended_by = EndReason.COUNT  # even if `idle_for` was over before the last message was settled
        _refuse_unfinished(ended_by, counts)
        if ended_by is EndReason.IDLE and defer_after is not None:
            now = time.time()
            after = replace(run_state, members_down=down).after(
                counts,
                now,
                began=began,
                quiet=quiet or 0.0,
                idle_for=self.idle_for,
                interval=self.poll_interval,
            )
            self._end_if_failing(activation, after, now, failure_timeout.total_seconds())
            if after.idle_until is None or after.idle_until > now:
                self._defer(activation.settings, after, activation.member_names)
        if ended_by is EndReason.IDLE:
            # After a deferral, this run has waited only for the rest of `idle_for`; the log has the whole.
            self.log.info(
                "The task ends: no message arrived for %g s (`idle_for`), including the time deferred",
                self.idle_for,
            )
        return activation.report(so_far, ended_by)

    def _run(
        self,
        activation: Listener,
        so_far: Counts,
        order: Callable[[], ActivationOrder | None],
        **ends: Any,
    ) -> Counts:
        """Run an activation until one of its bounds, and return the counts of this run.

        If a user drains the activation after the task has consumed messages, the counts are returned too.

        Args:
            activation: The activation.
            so_far: Counts of the task's earlier runs of the activation, before it was deferred.
            order: Returns the state that a user has requested for the activation, `None` without a request.
            **ends: Bounds of the run, and other arguments of `Listener.run`.

        Raises:
            AirflowSkipException: The activation is stopped or drained, and the task has consumed no message.
            AirflowFailException: The handler, a user or another process has stopped the activation after the
                task had consumed a message. There is no retry.
        """
        try:
            counts = activation.run(stop=self._killed, **ends)
        except DeliveryStoppedError as error:
            raise _stopped(str(error), so_far + activation.counts) from error
        ordered = order()
        if ordered is not None and activation.stop_reason == str(ordered):
            if ordered.wanted is WantedState.DRAINED and (so_far + counts).delivered:
                return counts
            raise _stopped(str(ordered), so_far + counts)
        if activation.ended_by is EndReason.STOPPED and not self._killed.is_set():
            kept = activation.settings.store is not None
            raise AirflowFailException(
                f"the handler stopped message delivery: {activation.stop_reason}; "
                f"{(so_far + counts).settled} messages are settled, the rest stays at the broker. "
                + (
                    "Nothing is consumed until the activation is resumed (airflow jms activations resume)"
                    if kept
                    else "Without use_store the stop isn't stored: the next run consumes again"
                )
            )
        return counts

    @staticmethod
    def _end_if_failing(activation: Listener, state: RunState, now: float, failure_timeout: float) -> None:
        """Raise `AirflowException` if the same messages failed for too long, time before deferrals included.

        A run of the activation can't detect this itself, because it sees only the failures since the last
        deferral.
        """
        from airflow_provider_jmsjca.engine.activations.limits import failures_of_each  # noqa: PLC0415 - not at parse time

        failures = failures_of_each(activation.settings.delivery) * max(1, activation.failing or 1)
        if state.has_only_failures(now, failure_timeout=failure_timeout, failures=failures):
            raise _only_fails(state.counts)

    def _resolved(self, instance: str) -> tuple[ActivationSpec, ConnectionSettings]:
        spec = self._given_spec()
        self._conn_id = self.jms_conn_id or spec.jms_conn_id
        return JmsHook(self._conn_id).activation(spec, instance=instance)

    def _given_spec(self) -> ActivationSpec:
        return self.spec if isinstance(self.spec, ActivationSpec) else ActivationSpec(**self.spec)

    def _may_defer(self, activation: Listener, settings: ConnectionSettings) -> bool:
        """Return whether the triggerer can wait instead of the task."""
        if self.defer_after is None or (self.idle_for is not None and self.idle_for <= self.defer_after):
            return False
        # A topic can't be probed, and a deferred subscriber would miss its messages. This includes a
        # distributed subscription: its messages aren't moved while the task is deferred.
        sources = activation.settings.delivery.sources
        if not activation.watchable or any(each.kind is DestinationKind.TOPIC for each in sources):
            return False
        # A trigger is kept in Airflow's database, where a password of the spec must not go.
        if self._is_known(settings):
            return True
        self.log.info(
            "Not deferred while no message arrives: the spec's connection settings differ from connection "
            "%r, and the triggerer can use only that connection",
            self._conn_id,
        )
        return False

    def _is_known(self, settings: ConnectionSettings) -> bool:
        """Return whether the Airflow connection has these settings, apart from the client id."""
        try:
            known = JmsHook(self._conn_id).settings()
        except ConfigurationError:  # the connection has no address; the spec has one
            return False
        return replace(known, client_id=None) == replace(settings, client_id=None)

    def _defer(self, listener: ListenerSettings, run_state: RunState, members: Sequence[str]) -> None:
        from airflow_provider_jmsjca.triggers.listen import JmsListenTrigger  # noqa: PLC0415 - not at parse time

        selector = listener.subscription.selector
        self.log.info(
            "Deferred until messages are on %s%s, over connection %r%s%s",
            ", ".join(str(each.destination) for each in listener.subscriptions),
            f" of each of {', '.join(members)}" if members else "",
            self._conn_id,
            f", matching {selector!r}" if selector else "",
            ""
            if run_state.deadline is None
            else f", for {max(0.0, run_state.deadline - time.time()):.0f} s at most",
        )
        self.defer(
            trigger=JmsListenTrigger(
                jms_conn_id=self._conn_id,
                destination=reference_text(listener.subscription.destination),
                further=[reference_text(each.destination) for each in listener.further],
                members=members,
                message_selector=listener.subscription.selector,
                poll_interval=self.poll_interval,
                deadline=run_state.deadline,
                not_before={name: rest.until for name, rest in run_state.pauses.items()},
                retry_permanent_errors=listener.retry_permanent_errors,
                activation=listener.whole or listener.name,
                broker=listener.url.partition("?")[0],
                state=run_state.as_state(),
            ),
            method_name="resume",
            timeout=deferral_timeout(run_state.timeout_at),
        )

    def _link_to_dead_letters(self, delivery: DeliverySettings) -> str:
        """Return the console address of the queue to which messages of the first destination are moved."""
        source = delivery.sources[0]
        moves = [each for each in delivery.handling.actions if isinstance(each, Move)]
        targets = [target for move in moves for target in move.targets(source)]
        targets += [each.destination(source) for each in delivery.dead_letter]
        console = JmsHook(self._conn_id).options()["console_url"]
        return console_address(self._conn_id, console, targets[0]) if targets else ""

    def _handle(self, delivery: Any) -> object:
        return self.on_message(delivery)

    def _log_progress(self, counts: Counts, down: Sequence[str]) -> None:
        shown = ", ".join(f"{name} {count}" for name, count in counts.as_dict().items() if count)
        self.log.info(
            "Listening: %s%s", shown or "nothing yet", f"; not up: {', '.join(down)}" if down else ""
        )


def _down_hosts(activation: Listener) -> Sequence[str]:
    """Return the hosts of members that are down, for the log.

    If no member is down, return the activation's state instead; nothing if that is `UP`.
    """
    from airflow_provider_jmsjca.core.delivery.outage import ActivationState  # noqa: PLC0415 - not at parse time

    if activation.down or activation.state is ActivationState.UP:
        return activation.down
    return (str(activation.state),)


def _instance(task: Any) -> str:
    """Return the name that identifies this task and is the same in every DAG run.

    Source: W31.
    """
    index = getattr(task, "map_index", -1)
    name = f"{task.dag_id}.{task.task_id}"
    return name if index is None or index < 0 else f"{name}.{index}"


def _refuse_unfinished(ended_by: EndReason | None, counts: Counts) -> None:
    """Raise `AirflowException` if messages may be left that the task should have settled."""
    if ended_by is EndReason.FAILURES:
        raise _only_fails(counts)
    if ended_by is EndReason.BLOCKED:
        raise AirflowException(
            "no message arrived, but the broker stopped answering on a connection of this task and may still "
            "hold messages for it. RabbitMQ does so while its memory or disk alarm is on; "
            f"{counts.settled} messages are settled. A retry gets the rest; give failure_timeout more "
            "seconds to wait longer for the broker"
        )


def _stopped(why: str, counts: Counts) -> AirflowException:
    """Return the exception for a stopped activation.

    `AirflowSkipException` if the task has consumed no message, else `AirflowFailException`.
    """
    return AirflowFailException(why) if counts.delivered else AirflowSkipException(why)


def _only_fails(counts: Counts) -> AirflowException:
    return AirflowException(
        "the same messages failed again and again, and none was settled in that time; "
        f"{counts.settled} messages are settled, the rest stays at the broker. Have such messages "
        "moved: redelivery_handling='5:1000; 10:move(queue:$.dlq)', or give failure_timeout more seconds"
    )
