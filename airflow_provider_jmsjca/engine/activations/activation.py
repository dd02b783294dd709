"""Consumes the destinations of a spec: on one connection, on each member, or as a shared subscription.

| event | effect on the message |
|---|---|
| the handler returns | committed, together with the messages it sent |
| the handler raises, or asks for a rollback | rolled back, its sends discarded; redelivered, attempt + 1 |
| the handler exceeds the transaction timeout | rolled back when the handler returns |
| the handler doesn't return before the deadline of a stop | abandoned, rolled back, returned to the broker |
| the connection is lost | redelivered over the next one; the handler's sends are discarded |
| the process is killed | redelivered, to this or another process |
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import timedelta
from types import TracebackType
from typing import Final, Self

from airflow_provider_jmsjca.core.activation import ActivationSpec
from airflow_provider_jmsjca.core.configuration.administered import destination_named
from airflow_provider_jmsjca.core.configuration.layers import Layer
from airflow_provider_jmsjca.core.configuration.precedence import resolve
from airflow_provider_jmsjca.core.delivery.outage import ActivationState
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.metrics import prometheus_text
from airflow_provider_jmsjca.core.options import Level
from airflow_provider_jmsjca.engine.activations.every_member import every_member
from airflow_provider_jmsjca.engine.activations.health import HealthServer, health_of
from airflow_provider_jmsjca.engine.activations.limits import STOP_WITHIN, TICK_SECONDS, Seconds, duration
from airflow_provider_jmsjca.engine.activations.listener import Listener
from airflow_provider_jmsjca.engine.activations.metrics import measured
from airflow_provider_jmsjca.engine.activations.registry import Supervision, registrar_of
from airflow_provider_jmsjca.engine.activations.run import Connections, one_connection
from airflow_provider_jmsjca.engine.activations.shared_subscription import load_balancing, shared_subscription
from airflow_provider_jmsjca.engine.delivering.settings import (
    BARE,
    ListenerContext,
    Subscribes,
    listener_settings,
)
from airflow_provider_jmsjca.engine.delivering.threaded.workers import Handler
from airflow_provider_jmsjca.engine.limbo import maintained, private_name
from airflow_provider_jmsjca.engine.session.connection import JmsConnection
from airflow_provider_jmsjca.errors import ConfigurationError, TransientBrokerError
from airflow_provider_jmsjca.store.base import Store
from airflow_provider_jmsjca.transports import connect, refuse_unknown_scheme
from airflow_provider_jmsjca.transports.base import Connection, ConnectionSettings
from airflow_provider_jmsjca.transports.members import limbo_name, member_settings
from airflow_provider_jmsjca.transports.settings import to_connection_settings

_OF_THE_CONNECTION: Final = ("connection_url", "username", "password")


class Activation(Listener):
    """Consumes the destinations of a spec, and calls a function with each message.

    For example::

        with Activation(spec, handler, connection="stomp://localhost:61613") as activation:
            ...  # it consumes until the end of the block

    Or call `activation.run(idle_for=60)`, which consumes for a bounded time and returns the counts. The spec
    selects one of three kinds, which have the same methods. With `distributed_destination_connection`, it is
    a listener on each member. With a distributed `subscription_name`, it is a share of a distributed durable
    subscription. Otherwise it is a listener on one connection.

    Guarantee: a message is settled only after its handler has returned, or when the redelivery handling moves
    or deletes it. After any crash before that, it is redelivered. A crash between a handler's return and the
    broker's confirmation delivers it once more. Attempt counts last as long as this object. With `use_store`
    they last as long as the store keeps them.

    Every method may be called from any thread, but not from a signal handler.

    Args:
        spec: The activation spec, or its fields in a mapping.
        handler: Called with each `Delivery`, in a thread of a pool.
        connection: Address of the broker: a URL with options in its query, or settings. The `connection_url`,
            `username` and `password` of the spec override those of a URL. `None`: the spec has the address.
        instance: Identifies this process among others of the activation, for `generate_unique_client_id`.
        confirm_acknowledgements: Wait until the broker confirms each settlement; also a field of the spec.
        non_blocking_redelivery: Don't block during redelivery delays above 5 seconds: the message waits in
            limbo. Without limbo the broker delays the message, if it can. Also a field of the spec.
        subscribes: Returns whether a message is wanted. Unwanted messages move to `unsubscribed_destination`
            of the spec. The function must be quick, because other messages wait for it.
        find: Returns the destination for a name that the handler passes to `send`.
        store: Keeps attempts, ids and delayed messages over restarts, for a spec with `use_store`; close it
            after the activation has stopped. A running activation sends the delayed messages of its
            connection when they are due, over a second connection without the client id. With or without
            `use_store`, the activation is listed in the store, and obeys `airflow jms activations`.
        jms_conn_id: With `store`: name under which limbo keeps the messages of this connection. If it is the
            id of an Airflow connection, Airflow's processes send these messages too. Empty: the name is
            derived from URL, virtual host and user, so that only activations with the same connection use it.
        owner: With `store`: the owner shown by `airflow jms activations list`. Empty: name of the program.
        start_within: Seconds to wait at the start of a `with` block until it consumes.
        stop_within: Seconds that running handlers get at the end of a `with` block.

    Attributes:
        spec: The spec in force.
        client_id: JMS client id; with members, without the suffix of a member. `None`: no client id.
        consuming: A read-only `threading.Event`, set while the broker has confirmed the subscriptions.
        ended_by: Reason for the end of the last `run`; `None` before.
        missing: Members that weren't up when the last `run` ended; `None` without members.

    Raises:
        ConfigurationError: The broker's address is missing, or both the settings and the spec have one. Or
            no transport supports the scheme, or a listener doesn't support an option of the spec.
    """

    # J9, J10, J12, J13, J41, J49, J81-J84, J116-J122, W15, W24-W27, W30, W31, W33, W46

    def __init__(
        self,
        spec: ActivationSpec | Mapping[str, object],
        handler: Handler,
        *,
        connection: str | ConnectionSettings | None = None,
        instance: str = "",
        confirm_acknowledgements: bool = False,
        non_blocking_redelivery: bool = False,
        subscribes: Subscribes | None = None,
        find: Callable[[str], Destination] = destination_named,
        store: Store | None = None,
        jms_conn_id: str = "",
        owner: str = "",
        start_within: Seconds = 30.0,
        stop_within: Seconds = STOP_WITHIN,
    ) -> None:
        if not isinstance(spec, ActivationSpec):
            spec = ActivationSpec(**spec)
        self._start_within = duration("start_within", start_within).total_seconds()
        self._stop_within = duration("stop_within", stop_within)
        self.spec, settings = _resolved(spec, connection)
        self.client_id = self.spec.client_id_for(factory_client_id=settings.client_id, instance=instance)
        kept_in = store if self.spec.use_store else None
        if kept_in is not None:
            jms_conn_id = jms_conn_id or private_name(settings)
        settings = replace(settings, client_id=self.client_id)
        self._supervision = None if store is None else Supervision(registrar_of(store), owner, settings)
        connections = _connections(
            self.spec,
            settings,
            ListenerContext(
                confirm_acknowledgements=confirm_acknowledgements,
                non_blocking_redelivery=non_blocking_redelivery,
                subscribes=subscribes,
                find=find,
                store=store,
                jms_conn_id=jms_conn_id,
            ),
            admit=(lambda: None) if self._supervision is None else self._supervision.admit,
        )
        super().__init__(connections, handler)
        self._keep_up_store = None if kept_in is None else _store_upkeep(self, settings, kept_in, jms_conn_id)
        self._upkeep = contextlib.ExitStack()
        self._health = contextlib.ExitStack()

    def __enter__(self) -> Self:
        """Start, and wait until the activation consumes, or is connected and suspended.

        With members, wait until at least one member consumes and a connection to each was tried.

        Raises:
            PermanentBrokerError: The broker refuses.
            ConfigurationError: The settings can't work on this broker.
            TransientBrokerError: Nothing is consumed after `start_within`; the activation was stopped.
        """
        self.start()
        deadline = time.monotonic() + self._start_within
        while not (self.ready or (self.suspended and self.state is ActivationState.UP)):
            if self.await_end(TICK_SECONDS) or time.monotonic() >= deadline:
                state, refused, stopped = self.state, self.statistics().refused, self.stop_reason
                self.stop(0 if self.running else self._stop_within)
                why = "; ".join(refused) or stopped or "the broker hasn't answered"
                raise self.fault or TransientBrokerError(
                    f"{self.settings.name}: not consuming {self._start_within:g} s after its start "
                    f"(state: {state}): {why}"
                )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop, and raise the fault of the activation, unless the block has raised."""
        self.stop(self._stop_within, reason="the block ends")
        if error is None and self.fault is not None:
            raise self.fault

    def metrics(self) -> str:
        """Return the metrics in Prometheus' text format; the page on monitoring has their names."""
        return prometheus_text([measured(self)])

    def serve_health(self, port: int, host: str = "127.0.0.1") -> HealthServer:
        """Serve `/healthz` and `/metrics` over HTTP, until `stop` or the end of `run` or the `with` block.

        If the activation stops by itself, for example on a refusal, `/healthz` answers 503 with the reason.

        Args:
            port: TCP port; 0 takes a free one.
            host: Address to listen on. There is no login: restrict access to any address but the default.

        Returns:
            The server, with its `port`, its `url` and `close()`.

        Raises:
            ConfigurationError: The address can't be used.
        """
        server = HealthServer(lambda: health_of(self), self.metrics, port=port, host=host)
        self._health.callback(server.close)
        return server

    def _unused(self) -> None:
        self._health.close()

    def begin(
        self, limit: int | None = None, *, stop_within: timedelta = timedelta(seconds=STOP_WITHIN)
    ) -> None:
        """Start with an optional limit; see `Listener.begin`."""
        started = not self.running
        if started and self._supervision is not None:
            self._supervision.end()
            self._supervision.begin(self)
        super().begin(limit, stop_within=stop_within)
        if started and self._keep_up_store is not None:
            self._upkeep.close()
            self._upkeep.enter_context(self._keep_up_store())

    def await_stop(self, deadline: float) -> bool:
        """Wait for the end of a stop; see `Listener.await_stop`."""
        ended = super().await_stop(deadline)
        if not self.running:
            self._upkeep.close()
            if self._supervision is not None and not self.in_handler:
                self._supervision.end()
        return ended


def activation_of(
    spec: ActivationSpec,
    connection: ConnectionSettings,
    handler: Handler,
    context: ListenerContext = BARE,
    admit: Callable[[], object] = lambda: None,
) -> Listener:
    """Return a listener with the connections that a spec selects.

    Args:
        spec: The spec in force; its address of the broker is ignored.
        connection: Address of the broker, with the client id in force.
        handler: Called with each message.
        context: Settings in addition to spec and connection. `@host:port` is appended to a member's
            `jms_conn_id`.
        admit: Called before each attempt to connect; it may wait, or raise `DeliveryStoppedError`.

    Raises:
        ConfigurationError: A listener doesn't support an option of the spec.
    """
    return Listener(_connections(spec, connection, context, admit), handler)


def _connections(
    spec: ActivationSpec,
    connection: ConnectionSettings,
    context: ListenerContext,
    admit: Callable[[], object],
) -> Connections:
    """Return the connections that a spec selects; the arguments are those of `activation_of`."""

    def connect_admitted(settings: ConnectionSettings) -> Connection:
        admit()
        return connect(settings)

    members = every_member(spec, connection, context, connect=connect_admitted)
    if members is not None:
        return members
    context = context.over(connection)
    connect_it = functools.partial(connect_admitted, connection)
    balancing = load_balancing(spec, context)
    if balancing is None:
        return one_connection(listener_settings(spec, context), connect_it)
    return shared_subscription(
        balancing, connect_it, functools.partial(connect_admitted, replace(connection, client_id=None))
    )


def _store_upkeep(
    listener: Listener, connection: ConnectionSettings, store: Store, jms_conn_id: str
) -> Callable[[], AbstractContextManager[None]]:
    """Return a function; its context manager sends the delayed messages of an activation while that runs.

    Args:
        listener: The activation.
        connection: Settings of its connection.
        store: The store with its delayed messages.
        jms_conn_id: Name of the connection in limbo.
    """
    found = {jms_conn_id: connection}
    if listener.member_names:
        members = member_settings(connection)
        found = {limbo_name(jms_conn_id, name): each for name, each in members.items()}

    def open_connection(name: str) -> JmsConnection:
        # Without the client id: the activation uses it, and the broker refuses a second connection with it.
        return JmsConnection(connect(replace(found[name], client_id=None)))

    return functools.partial(
        maintained,
        lambda: contextlib.nullcontext(store),
        open_connection,
        connections=frozenset(found),
        wanted=lambda: listener.running,
    )


def _resolved(
    spec: ActivationSpec, connection: str | ConnectionSettings | None
) -> tuple[ActivationSpec, ConnectionSettings]:
    """Return the spec in force and the settings of its connection."""
    if isinstance(connection, ConnectionSettings):
        said = [name for name in _OF_THE_CONNECTION if getattr(spec, name) is not None]
        if said:
            raise ConfigurationError(
                f"{', '.join(said)}: set in the spec, but the argument connection already has all settings. "
                "Leave them out of the spec, or pass a URL as connection"
            )
        refuse_unknown_scheme(connection.scheme)
        return spec, connection
    layers = [spec.layer()]
    if connection is not None:
        of_call = Layer(
            level=Level.CONNECTION_FACTORY, source="connection", fields={"connection_url": connection}
        )
        layers.insert(0, of_call)
    found = resolve(layers)
    return ActivationSpec.from_resolved(found), to_connection_settings(found)
