"""Runs listeners over real brokers, for tests."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from airflow_provider_jmsjca import (
    ActivationSpec,
    ConnectionSettings,
    Destination,
    JmsMessage,
    Outgoing,
    Store,
    connect,
)
from tests.internals.core import Backoff
from tests.internals.engine import Handler, Listener, ListenerContext, listener_settings, one_connection
from tests.pace import at_most


def idle(least: float = 0.7) -> timedelta:
    """Return how long nothing comes once all is there, on a machine as busy as this one is now."""
    return timedelta(seconds=max(least, at_most(0.25)))


def send(settings: ConnectionSettings, queue: str, *bodies: str, **properties: Any) -> None:
    connection = connect(settings)
    target = Destination.queue(queue)
    connection.send(
        Outgoing(destination=target, message=JmsMessage.text(body, properties)) for body in bodies
    )
    connection.close()


def activation(
    settings: ConnectionSettings,
    queue: str,
    handler: Handler,
    *,
    non_blocking_redelivery: bool = False,
    store: Store | None = None,
    **spec: Any,
) -> Listener:
    made = listener_settings(
        ActivationSpec(**{"destination": f"queue://{queue}", **spec}),
        ListenerContext(non_blocking_redelivery=non_blocking_redelivery, store=store),
    )
    quick = replace(made.delivery.outage, backoff=Backoff(steps=(timedelta(seconds=0.1),)))
    return Listener(
        one_connection(
            replace(made, delivery=replace(made.delivery, outage=quick)), functools.partial(connect, settings)
        ),
        handler,
    )


def drained(settings: ConnectionSettings, queue: str) -> list[JmsMessage]:
    """Take everything out of a queue."""
    found: list[JmsMessage] = []
    activation(settings, queue, lambda delivery: found.append(delivery.message)).run(idle_for=idle())
    return found


def bodies(settings: ConnectionSettings, queue: str) -> list[Any]:
    return [message.body for message in drained(settings, queue)]


def until(condition: Callable[[], object], *, within: float = 60) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, "it didn't happen in time"
        time.sleep(0.01)
