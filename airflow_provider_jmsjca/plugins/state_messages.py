"""Publishes the states of DAG runs and task instances as messages.

Off unless `[jmsjca] state_messages_destination` names a destination.

| event | effect |
|---|---|
| the broker is unreachable or refuses | the messages are lost; a WARNING every ten minutes counts them |
| more than 1,000 messages wait | further messages are lost and counted |
| the process ends | it waits up to 3 seconds for messages that are still to be sent |
| the process is killed | its waiting messages are lost |

Guarantee: at most once. No failure here fails a process of Airflow, and such a process is blocked for 3
seconds at most, at its end. A state of a DAG run may be published although the transaction that sets it is
rolled back afterwards.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from airflow.listeners import hookimpl
from airflow.sdk.configuration import conf

from airflow_provider_jmsjca.logs import safe_logger

if TYPE_CHECKING:
    from airflow_provider_jmsjca.transports.base import Connection

_log = safe_logger(__name__)

MOST_WAITING: Final = 1_000
"""Maximum number of messages that wait to be sent."""

FLUSH_SECONDS: Final = 3.0
"""How long a process that ends waits for messages that are still to be sent."""

_AT_ONCE: Final = 100
_ANSWER: Final = timedelta(seconds=5)
_PAUSE_SECONDS: Final = 5.0
_IDLE_SECONDS: Final = 10.0
_REPORT_SECONDS: Final = 600.0


@dataclass(frozen=True, slots=True)
class Target:
    """The connection and destination of the messages.

    Attributes:
        conn_id: The Airflow connection.
        destination: The destination, as text.
    """

    conn_id: str
    destination: str


def configured_target() -> Target | None:
    """Return the target that `[jmsjca]` configures; `None` if state messages are off."""
    destination = str(conf.get("jmsjca", "state_messages_destination", fallback="")).strip()
    if not destination:
        return None
    conn_id = str(conf.get("jmsjca", "state_messages_conn_id", fallback="")).strip()
    return Target(conn_id or "jms_default", destination)


Sender = Callable[[Target, Sequence[Mapping[str, Any]]], None]


class StatePublisher:
    """Sends the messages of one process, in a daemon thread that ends when it has been idle.

    Args:
        open_sender: Returns a function that sends, and a function that closes the connections. The daemon
            thread calls it and both functions. `None`: messages are sent over Airflow connections.
        pause: Seconds between two attempts after a failure.
    """

    def __init__(
        self,
        open_sender: Callable[[], tuple[Sender, Callable[[], None]]] | None = None,
        *,
        pause: float = _PAUSE_SECONDS,
    ) -> None:
        self._open = open_sender or _open_sender
        self._pause = pause
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Target, Mapping[str, Any]]] = deque()
        self._sending = 0
        self._runs = False
        self._lost = 0
        self._reported_at = -_REPORT_SECONDS

    def publish(self, target: Target, state: Mapping[str, Any]) -> None:
        """Queue a state for sending, without blocking; if too many states wait, this one is lost."""
        with self._changed:
            if len(self._waiting) >= MOST_WAITING:
                self._lost += 1
                return
            self._waiting.append((target, state))
            starts, self._runs = not self._runs, True
            self._changed.notify_all()
        if starts:
            try:
                threading.Thread(target=self._run, name="jms-states", daemon=True).start()
            except RuntimeError:  # no thread is left; the next state tries again
                with self._changed:
                    self._runs = False

    def flush(self, within: float) -> bool:
        """Wait until no message is left to send; return whether that happened in time.

        Args:
            within: Seconds to wait at most.
        """
        with self._changed:
            return self._changed.wait_for(lambda: not (self._waiting or self._sending), within)

    def _run(self) -> None:
        with contextlib.ExitStack() as opened:
            send: Sender | None = None
            while (batch := self._next()) is not None:
                try:
                    if send is None:
                        send, close = self._open()
                        opened.callback(close)
                    for target in dict.fromkeys(each for each, _ in batch):
                        send(target, [state for to, state in batch if to == target])
                except Exception as error:  # noqa: BLE001 - the outermost edge of this thread; Airflow goes on
                    send = None
                    with contextlib.suppress(Exception):
                        opened.close()
                    self._failed(len(batch), error)
                    self._done()
                    time.sleep(self._pause)
                else:
                    self._done()

    def _next(self) -> list[tuple[Target, Mapping[str, Any]]] | None:
        """Return the next messages; `None` if no message came for a while: the thread then ends."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._waiting, _IDLE_SECONDS):
                self._runs = False
                return None
            batch = [self._waiting.popleft() for _ in range(min(_AT_ONCE, len(self._waiting)))]
            self._sending = len(batch)
            return batch

    def _done(self) -> None:
        with self._changed:
            self._sending = 0
            self._changed.notify_all()

    def _failed(self, number: int, error: Exception) -> None:
        now = time.monotonic()
        with self._changed:
            self._lost += number
            if now < self._reported_at + _REPORT_SECONDS:
                return
            lost, self._lost, self._reported_at = self._lost, 0, now
        _log.warning(
            "%d state messages were lost; Airflow is not affected: %s. "
            "See [jmsjca] state_messages_destination and state_messages_conn_id",
            lost,
            error,
        )


def _open_sender() -> tuple[Sender, Callable[[], None]]:
    """Return a function that sends over one connection for each target, and one that closes them all."""
    # Only a process that publishes loads these.
    from dataclasses import replace  # noqa: PLC0415

    from airflow_provider_jmsjca.core.message import JmsMessage  # noqa: PLC0415
    from airflow_provider_jmsjca.hooks.destinations import find_destination  # noqa: PLC0415
    from airflow_provider_jmsjca.hooks.jms import JmsHook  # noqa: PLC0415
    from airflow_provider_jmsjca.transports import connect  # noqa: PLC0415
    from airflow_provider_jmsjca.transports.base import Outgoing  # noqa: PLC0415

    connections: dict[str, Connection] = {}

    def send(target: Target, states: Sequence[Mapping[str, Any]]) -> None:
        if target.conn_id not in connections:
            settings = JmsHook(target.conn_id).settings()
            connections[target.conn_id] = connect(
                replace(
                    settings,
                    client_id=None,
                    connect_timeout=min(settings.connect_timeout, _ANSWER),
                    reply_timeout=min(settings.reply_timeout, _ANSWER),
                )
            )
        destination = find_destination(target.destination)
        connections[target.conn_id].send(
            Outgoing(
                destination=destination,
                message=JmsMessage.text(json.dumps(state), _properties(state), type="airflow.state"),
            )
            for state in states
        )

    def close() -> None:
        while connections:
            connections.popitem()[1].close()

    return send, close


_SELECTABLE: Final = ("event", "state", "dag_id", "run_id", "task_id", "map_index")


def _properties(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the message properties: the parts of a state that message selectors can use."""
    return {name: state[name] for name in _SELECTABLE if state.get(name) is not None}


# -- of this process --------------------------------------------------------------------------------------

_publishers: dict[int, StatePublisher] = {}


def publisher() -> StatePublisher:
    """Return the publisher of this process; a forked process has its own publisher."""
    found = _publishers.get(os.getpid())
    if found is None:
        found = _publishers.setdefault(os.getpid(), StatePublisher())
    return found


def _publish(make: Callable[[], Mapping[str, Any]]) -> None:
    """Publish a state if state messages are configured; never raise and never block."""
    try:
        target = configured_target()
        if target is not None:
            publisher().publish(target, make())
    except Exception:  # noqa: BLE001 - nothing of this may fail Airflow's own work
        _log.warning(
            "A state message could not be created and is lost; Airflow is not affected", exc_info=True
        )


def run_state(run: Any, state: str) -> dict[str, Any]:
    """Return the content of a message about a DAG run."""
    return {
        "event": "dag_run",
        "state": state,
        **_fields(run, "dag_id", "run_id", "run_type", "logical_date", "start_date", "end_date"),
        "at": datetime.now(UTC).isoformat(),
    }


def task_state(instance: Any, state: str, previous: object, error: object = None) -> dict[str, Any]:
    """Return the content of a message about a task instance; it has the class of an error, not its text."""
    return {
        "event": "task_instance",
        "state": state,
        "previous_state": None if previous is None else _plain(previous),
        **_fields(
            instance, "dag_id", "run_id", "task_id", "map_index", "try_number", "start_date", "end_date"
        ),
        "exception": type(error).__name__ if isinstance(error, BaseException) else None,
        "at": datetime.now(UTC).isoformat(),
    }


def _fields(source: Any, *names: str) -> dict[str, Any]:
    return {name: _plain(getattr(source, name, None)) for name in names}


def _plain(value: Any) -> Any:
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    if isinstance(value, datetime):
        return value.isoformat()
    return str(getattr(value, "value", value))


class StateMessages:
    """Listens to Airflow, and publishes states if state messages are configured."""

    @hookimpl
    def on_dag_run_running(self, dag_run: Any, msg: str) -> None:
        """Publish that a DAG run has started."""
        del msg
        _publish(lambda: run_state(dag_run, "running"))

    @hookimpl
    def on_dag_run_success(self, dag_run: Any, msg: str) -> None:
        """Publish that a DAG run has succeeded."""
        del msg
        _publish(lambda: run_state(dag_run, "success"))

    @hookimpl
    def on_dag_run_failed(self, dag_run: Any, msg: str) -> None:
        """Publish that a DAG run has failed."""
        del msg
        _publish(lambda: run_state(dag_run, "failed"))

    @hookimpl
    def on_task_instance_running(self, previous_state: Any, task_instance: Any) -> None:
        """Publish that a task has started."""
        _publish(lambda: task_state(task_instance, "running", previous_state))

    @hookimpl
    def on_task_instance_success(self, previous_state: Any, task_instance: Any) -> None:
        """Publish that a task has succeeded."""
        _publish(lambda: task_state(task_instance, "success", previous_state))

    @hookimpl
    def on_task_instance_failed(self, previous_state: Any, task_instance: Any, error: Any) -> None:
        """Publish that a try of a task has failed."""
        _publish(lambda: task_state(task_instance, _failed_as(task_instance), previous_state, error))

    @hookimpl
    def on_task_instance_skipped(self, previous_state: Any, task_instance: Any) -> None:
        """Publish that a task has skipped itself."""
        _publish(lambda: task_state(task_instance, "skipped", previous_state))

    @hookimpl
    def before_stopping(self, component: object) -> None:
        """Wait up to 3 seconds for messages that are still to be sent."""
        del component
        if (found := _publishers.get(os.getpid())) is not None:
            found.flush(FLUSH_SECONDS)


def _failed_as(instance: Any) -> str:
    """Return the state after a failed try: `up_for_retry` or `failed`.

    Airflow calls the same hook for both.
    """
    state = _plain(getattr(instance, "state", None))
    return "up_for_retry" if state == "up_for_retry" else "failed"
