"""Consumes messages with a function of the user's, under the rules of an activation spec."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeAlias

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_jmsjca.core.activation import ActivationSpec
from airflow_provider_jmsjca.core.destination import DestinationKind
from airflow_provider_jmsjca.core.destination_options import reference_text
from airflow_provider_jmsjca.engine.batch_spec import EndReason
from airflow_provider_jmsjca.engine.every_member import EveryMemberActivation
from airflow_provider_jmsjca.engine.fates import Subscribes
from airflow_provider_jmsjca.engine.listener import Activation
from airflow_provider_jmsjca.engine.listener_settings import ListenerSettings, listener_settings
from airflow_provider_jmsjca.engine.load_balancing import LoadBalancedActivation, load_balancing
from airflow_provider_jmsjca.engine.members import every_member
from airflow_provider_jmsjca.engine.statistics import Counts
from airflow_provider_jmsjca.engine.user_functions import plain_function
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.hooks.destinations import finder
from airflow_provider_jmsjca.hooks.failures import task_failures
from airflow_provider_jmsjca.hooks.jms import JmsHook
from airflow_provider_jmsjca.operators.killing import WITHIN_IF_KILLED, Killed
from airflow_provider_jmsjca.operators.quantities import count_faults, seconds_faults
from airflow_provider_jmsjca.operators.stints import Stint
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import ConnectionSettings
from airflow_provider_jmsjca.triggers.listen import JmsListenTrigger

_AnyActivation: TypeAlias = Activation | EveryMemberActivation | LoadBalancedActivation
_PROGRESS = timedelta(seconds=5)


class JmsListenOperator(BaseOperator):
    """Hands the messages of a destination to a function, one transaction after the other.

    The function gets a `Delivery`: it reads like the message, and can `send()` messages that are committed
    with it. When it returns the delivery is committed; when it raises, or asks for it, it is rolled back and
    delivered again as the redelivery handling says.

    The task ends at the first of `max_messages`, `run_for` and `idle_for`; at least one must be given. While
    a queue is empty it is deferred and holds no worker; unless the spec connects otherwise than the Airflow
    connection says, which is all that the triggerer knows.

    Guarantee: a message is settled only after the function has returned. Whatever dies before the broker has
    confirmed that brings it back; on ActiveMQ what was sent along isn't sent then, on other brokers it may be
    sent twice. Counts of attempts last as long as the task holds its worker.

    Args:
        spec: An `ActivationSpec`, or its fields: destination (one, or several that take turns),
            concurrency_mode, redelivery_handling ... Templated if it is a mapping.
        on_message: Called with each `Delivery`, in a thread of its own, in the task's context.
        jms_conn_id: The Airflow connection; `None`: that of the spec. Templated.
        max_messages: End when so many messages are settled, never more.
        run_for: End after so many seconds, deferred ones included.
        idle_for: End when nothing came for so many seconds, deferred ones included.
        defer_after: Leave the worker when nothing came for so many seconds; `None` never does.
        poll_interval: Seconds between two looks while deferred, on brokers that can be browsed.
        stop_timeout: Seconds that running calls get at the end; after that they are rolled back. A task that
            is killed or cleared gives them 4 at most, for Airflow ends its process after 5.
        confirm: Wait for the broker after each message; also a field of the spec.
        park: Leave delays above 5 seconds to the broker, where it can; also a field of the spec.
        subscribes: Says of each message whether it is wanted; the others move to the spec's
            `unsubscribed_destination`. It must be quick: other messages wait for it.

    Returns:
        `{"delivered": 12, "redelivered": 2, "committed": 10, "rolled_back": 2, "moved": 0, "deleted": 0, ...,
        "ended_by": "count"}`; with a distributed durable subscription also `"moved_to_queue"`, with a
        listener on every member also `"members_down"`, those that weren't up at the end (or, if `run_for`
        ended while it was deferred, when it left the worker).

    Source: J81-J84, J128-J148, J172, J183-J211, W12, W30, W31, W33, W46.
    """

    template_fields: Sequence[str] = ("spec", "jms_conn_id")
    ui_color = "#c9d8ea"

    def __init__(
        self,
        *,
        spec: ActivationSpec | Mapping[str, Any],
        on_message: Callable[..., Any],
        jms_conn_id: str | None = None,
        max_messages: int | None = None,
        run_for: float | None = None,
        idle_for: float | None = None,
        defer_after: float | None = 5,
        poll_interval: float = 5,
        stop_timeout: float = 30,
        confirm: bool = False,
        park: bool = False,
        subscribes: Subscribes | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.spec = spec
        self.on_message = on_message
        self.jms_conn_id = jms_conn_id
        self.max_messages = max_messages
        self.run_for = run_for
        self.idle_for = idle_for
        self.defer_after = defer_after
        self.poll_interval = poll_interval
        self.stop_timeout = stop_timeout
        self.confirm = confirm
        self.park = park
        self.subscribes = subscribes
        self._killed = Killed()

    def execute(self, context: Context) -> dict[str, Any]:
        """Consume until an end is reached, or until there is nothing to do."""
        with task_failures():
            self._check()
        until = None if self.run_for is None else time.time() + self.run_for
        return self._listen(context, Stint(until=until))

    def resume(self, context: Context, event: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Go on after it was deferred.

        Raises:
            AirflowFailException: The trigger met a fault that trying again doesn't mend.
        """
        event = event or {}
        if event.get("event") not in {"ready", "deadline"}:
            raise AirflowFailException(event.get("error", "the trigger returned no event"))
        stint = Stint.resumed(event, time.time())
        if event["event"] == "deadline" and stint.ends_by_time:
            return _report(stint.so_far, EndReason.TIME, members_down=stint.members_down)
        return self._listen(context, stint)

    def on_kill(self) -> None:
        """Stop: running calls are finished or rolled back, everything else goes back to the broker."""
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
        if self.defer_after is not None:
            faults += seconds_faults("defer_after", self.defer_after, otherwise="None to keep the worker")
        faults += seconds_faults("poll_interval", self.poll_interval)
        faults += seconds_faults("stop_timeout", self.stop_timeout, least=0)
        if faults:
            raise ConfigurationError(faults)

    def _listen(self, context: Context, stint: Stint) -> dict[str, Any]:
        with task_failures():
            plain_function("on_message", self.on_message)
            spec, settings = self._resolved()
            client_id = spec.client_id_for(
                factory_client_id=settings.client_id, instance=_instance(context["ti"])
            )
            activation, listener = self._activation(spec, replace(settings, client_id=client_id))
            defer_after = self.defer_after if self._may_defer(listener, settings) else None
            quiet = stint.patience(time.time(), idle_for=self.idle_for, defer_after=defer_after)
            so_far, until = stint.so_far, stint.until
            counts = so_far + activation.run(
                max_messages=None if self.max_messages is None else self.max_messages - so_far.settled,
                run_for=None if until is None else timedelta(seconds=max(until - time.time(), 0.001)),
                idle_for=None if quiet is None else timedelta(seconds=quiet),
                stop=self._killed,
                within=timedelta(seconds=self.stop_timeout),
                within_if_stopped=WITHIN_IF_KILLED,
                progress=lambda now: self._log_progress(so_far + now, _down(activation)),
                progress_every=_PROGRESS,
            )
        members = activation if isinstance(activation, EveryMemberActivation) else None
        down = None if members is None else members.missing
        self._log_progress(counts, down or ())
        if self._killed.is_set():
            raise AirflowException(f"told to stop; {counts.settled} messages are settled, the rest goes back")
        ended_by = activation.ended_by
        if self.max_messages is not None and counts.settled >= self.max_messages:
            ended_by = EndReason.COUNT  # the last one may be settled after idleness was seen
        if ended_by is EndReason.IDLE and defer_after is not None and listener is not None:
            now = time.time()
            after = replace(stint, members_down=down).after(
                counts, now, quiet=quiet or 0.0, idle_for=self.idle_for, interval=self.poll_interval
            )
            if after.idle_until is None or after.idle_until > now:
                self._defer(listener, after, () if members is None else tuple(members.members))
        report = _report(counts, ended_by, activation.stop_reason, down)
        if isinstance(activation, LoadBalancedActivation):
            report["moved_to_queue"] = activation.topic_side.counts.committed
        return report

    def _activation(
        self, spec: ActivationSpec, settings: ConnectionSettings
    ) -> tuple[_AnyActivation, ListenerSettings | None]:
        how: dict[str, Any] = {
            "principal": settings.username,
            "confirm": self.confirm,
            "park": self.park,
            "subscribes": self.subscribes,
            "find": finder(),
        }
        members = every_member(spec, settings, **how)
        if members is not None:
            return EveryMemberActivation(members, self._handle), members.settings
        how |= {"client_id": settings.client_id, "url": settings.url}
        connect_as = functools.partial(connect, settings)
        balancing = load_balancing(spec, **how)
        if balancing is None:
            listener = listener_settings(spec, **how)
            return Activation(listener, connect_as, self._handle), listener
        anonymous = functools.partial(connect, replace(settings, client_id=None))
        return LoadBalancedActivation(balancing, connect_as, anonymous, self._handle), None

    def _resolved(self) -> tuple[ActivationSpec, ConnectionSettings]:
        spec = self.spec if isinstance(self.spec, ActivationSpec) else ActivationSpec(**self.spec)
        self._conn_id = self.jms_conn_id or spec.jms_conn_id
        return JmsHook(self._conn_id).activation(spec)

    def _may_defer(self, listener: ListenerSettings | None, settings: ConnectionSettings) -> bool:
        """Say whether the triggerer can wait in the task's place."""
        if self.defer_after is None or (self.idle_for is not None and self.idle_for <= self.defer_after):
            return False
        # A topic holds nothing that could be looked at, and a deferred subscriber would miss its messages. A
        # distributed subscription is one: deferred, nobody would move its messages.
        if listener is None or any(each.kind is DestinationKind.TOPIC for each in listener.delivery.sources):
            return False
        try:
            known = JmsHook(self._conn_id).settings()
        except ConfigurationError:
            known = None  # it has no address of its own
        # A trigger is kept in Airflow's database, where a password of the spec must not go.
        if known is not None and replace(known, client_id=None) == replace(settings, client_id=None):
            return True
        self.log.info(
            "Not deferred while nothing comes: the spec connects otherwise than the connection %r, and the "
            "triggerer knows no more than that",
            self._conn_id,
        )
        return False

    def _defer(self, listener: ListenerSettings, stint: Stint, members: Sequence[str]) -> None:
        self.defer(
            trigger=JmsListenTrigger(
                jms_conn_id=self._conn_id,
                destination=reference_text(listener.subscription.destination),
                further=[reference_text(each.destination) for each in listener.further],
                members=members,
                message_selector=listener.subscription.selector,
                poll_interval=self.poll_interval,
                deadline=stint.deadline,
                not_before={name: rest.until for name, rest in stint.rests.items()},
                retry_permanent=listener.retry_permanent,
                state=stint.as_state(),
            ),
            method_name="resume",
        )

    def _handle(self, delivery: Any) -> object:
        return self.on_message(delivery)

    def _log_progress(self, counts: Counts, down: Sequence[str]) -> None:
        shown = ", ".join(f"{name} {count}" for name, count in counts.as_dict().items() if count)
        self.log.info(
            "Listening: %s%s", shown or "nothing yet", f"; not up: {', '.join(down)}" if down else ""
        )


def _instance(task: Any) -> str:
    """Return what tells this task from others, and stays the same from run to run (W31)."""
    index = getattr(task, "map_index", -1)
    name = f"{task.dag_id}.{task.task_id}"
    return name if index is None or index < 0 else f"{name}.{index}"


def _down(activation: object) -> Sequence[str]:
    return activation.down if isinstance(activation, EveryMemberActivation) else ()


def _report(
    counts: Counts,
    ended_by: EndReason | None,
    stop_reason: str = "",
    members_down: Sequence[str] | None = None,
) -> dict[str, Any]:
    report: dict[str, Any] = {**counts.as_dict(), "ended_by": str(ended_by or EndReason.STOPPED)}
    if ended_by is EndReason.STOPPED:
        report["stop_reason"] = stop_reason
    if members_down is not None:
        report["members_down"] = list(members_down)
    return report
