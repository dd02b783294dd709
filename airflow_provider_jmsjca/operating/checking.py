"""Checks of one broker connection: login, capabilities, administration, an activation spec, a round trip."""

from __future__ import annotations

import contextlib
import queue
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.core.options.choices import InDoubtEvents
from airflow_provider_jmsjca.errors import (
    CapabilityError,
    ConfigurationError,
    JmsError,
    TransientBrokerError,
)
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.administration import QueueAdministration
from airflow_provider_jmsjca.transports.base import (
    Connection,
    ConnectionSettings,
    Outgoing,
    Received,
    Subscription,
)

if TYPE_CHECKING:
    from airflow_provider_jmsjca.engine.delivering.settings import ListenerSettings

_TARGETS: Final = "spec: targets of moves and copies"
_DELAYS: Final = "non_blocking_redelivery"
_SKIPPING: Final = frozenset({InDoubtEvents.IGNORE, InDoubtEvents.LOG_ERROR})
_WITHIN_SECONDS: Final = 10.0
CLOCK_SECONDS: Final = 5.0
"""Largest difference of two clocks, in seconds, that is not a fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The result of one check.

    Attributes:
        name: Subject of the check.
        passed: Whether it succeeded.
        detail: Measured values or names if the check passed, otherwise the error.
    """

    name: str
    passed: bool
    detail: str


def check_connection(
    settings: ConnectionSettings,
    round_trip: Destination | None = None,
    *,
    listener: ListenerSettings | None = None,
) -> Iterator[Check]:
    """Yield the result of each check; after a failed login, no more checks are made.

    Args:
        settings: How to connect. The client id is not used, because a running consumer may be using it.
        round_trip: A queue to which a message is sent, and from which it is received. Other messages on this
            queue may be received too; they return to it, marked as redelivered. `None`: no message is sent.
        listener: Settings of a listener, checked against the broker without consuming; `None` checks none.
    """
    try:
        connection = connect(replace(settings, client_id=None))
    except JmsError as error:
        yield Check(name="login", passed=False, detail=str(error))
        return
    try:
        user = f"as {settings.username!r}" if settings.username else "without a user"
        encrypted = "TLS" if settings.scheme.endswith("ssl") else "no TLS"
        yield Check(name="login", passed=True, detail=f"{connection.broker}, {user}, {encrypted}")
        table = connection.capabilities.table()
        able = [name for name, value in table.items() if value is True]
        yield Check(name="capabilities", passed=True, detail=", ".join(able))
        administration = connection.administration()
        offered = ", ".join(sorted(administration.operations))
        yield Check(name="administration", passed=True, detail=offered or administration.way_out)
        with contextlib.closing(administration):
            resources, clock = _resources(administration), _clock(administration)
        yield resources
        if clock is not None:
            yield clock
        if listener is not None:
            yield from _listener(connection, listener)
        if round_trip is not None:
            yield _round_trip(connection, round_trip, _blocked(resources, administration))
    finally:
        connection.close()


def clock_difference(administration: QueueAdministration) -> float:
    """Return by how many seconds the broker's clock is ahead of this host's; negative if it is behind.

    Raises:
        CapabilityError: The broker does not report its time.
        JmsError: The broker refused the request, or the connection was lost.
    """
    before = time.time()
    there = administration.time().timestamp()
    after = time.time()
    # The broker read its clock between `before` and `after`. Some brokers report whole seconds only, so the
    # exact time may be up to one second later.
    return there - after if there > after else min(0.0, there + 1 - before)


def _resources(administration: QueueAdministration) -> Check:
    """Check whether the broker blocks producers because memory or disk is exhausted."""
    name = "memory and disk"
    try:
        found = administration.resources()
    except CapabilityError as error:
        return Check(name=name, passed=True, detail=f"not known: {error}")
    except JmsError as error:
        return Check(name=name, passed=False, detail=str(error))
    if blocking := [each for each in found if each.blocking]:
        causes = "; ".join(f"{each}: {each.remedy} (for the figures: {each.shown_by})" for each in blocking)
        return Check(name=name, passed=False, detail=f"the broker blocks producers, out of {causes}")
    shown = ", ".join(map(str, found))
    return Check(name=name, passed=True, detail=shown or "the broker reports no alarm")


def _clock(administration: QueueAdministration) -> Check | None:
    """Check the broker's clock against this host's; return `None` if the broker does not report its time."""
    name = "clock"
    try:
        apart = clock_difference(administration)
    except CapabilityError:
        return None
    except JmsError as error:
        return Check(name=name, passed=False, detail=str(error))
    passed = abs(apart) <= CLOCK_SECONDS
    way_out = "" if passed else "; compare timedatectl status on both hosts"
    return Check(name=name, passed=passed, detail=f"the broker's clock differs by {apart:+.0f} s{way_out}")


def _blocked(resources: Check, administration: QueueAdministration) -> str:
    """Return why the broker may not confirm a send: a shortage that it reports, else a general hint.

    Returns:
        A clause for the end of an error text.
    """
    return administration.blocked_hint if resources.passed else resources.detail


def _listener(connection: Connection, listener: ListenerSettings) -> Iterator[Check]:
    """Yield a check for each capability that a listener needs, and for its targets of moves and copies."""
    from airflow_provider_jmsjca.engine.delivering.consumers import (  # noqa: PLC0415 - only with a spec
        check_targets,
    )

    in_progress, delivery = listener.in_progress, listener.delivery
    subscriptions = listener.subscriptions
    needs = (
        (
            any(each.selector for each in subscriptions),
            "message_selector",
            "selector",
            "leave it out, and choose messages in the function with subscribes",
        ),
        (
            any(each.durable_name for each in subscriptions),
            "subscription_name",
            "durable_subscription",
            "consume a queue to which the topic is forwarded",
        ),
        (
            delivery.non_blocking_redelivery and not listener.has_limbo,
            _DELAYS,
            "delayed_delivery",
            "set use_store, so that delayed messages wait in the store",
        ),
        (
            in_progress is not None and in_progress.events in _SKIPPING,
            "in_doubt_events",
            "selector",
            "set in_doubt_events to reprocess or fail_on_startup",
        ),
    )
    for is_needed, option, capability, way_out in needs:
        if is_needed:
            yield _capability(connection, option, capability, way_out)
    try:
        check_targets(listener, connection.broker)
    except ConfigurationError as error:
        for fault in error.faults:
            yield Check(name=_TARGETS, passed=False, detail=fault)
    else:
        yield Check(name=_TARGETS, passed=True, detail="no message can come back from them")
    if not connection.capabilities.atomic_commit:
        yield Check(
            name="sends of the function",
            passed=True,
            detail=f"{connection.broker} does not commit sends and acknowledgements together: after a crash "
            "they may be sent twice, and none is lost",
        )


def _capability(connection: Connection, option: str, capability: str, way_out: str) -> Check:
    try:
        connection.capabilities.require(
            connection.broker, capability, purpose=option, otherwise=f"; {way_out}"
        )
    except CapabilityError as error:
        return Check(name=f"spec: {option}", passed=False, detail=str(error))
    return Check(name=f"spec: {option}", passed=True, detail=f"the broker has the capability {capability!r}")


def _round_trip(connection: Connection, destination: Destination, blocked: str) -> Check:
    name = f"round trip over {destination}"
    own = uuid.uuid4().hex
    arrived: queue.SimpleQueue[Received] = queue.SimpleQueue()
    try:
        consumer = connection.consume(Subscription(destination=destination, prefetch=1000), arrived.put)
        began = time.time()
        try:
            connection.send([Outgoing(destination=destination, message=JmsMessage.text(own))])
        except TransientBrokerError as error:
            waited = time.time() - began
            return Check(
                name=name,
                passed=False,
                detail="login and subscription worked, but a message sent was not confirmed in "
                f"{waited:.1f} s ({error}); so does a broker that blocks producers: {blocked}",
            )
        try:
            while True:
                received = arrived.get(timeout=_WITHIN_SECONDS)
                message = received.readable
                if message is not None and message.body == own:
                    break
        finally:
            took = time.time() - began
        consumer.acknowledge((received,))
        connection.synchronize()
        consumer.close()
    except queue.Empty:
        return Check(
            name=name, passed=False, detail=f"the message did not come back within {_WITHIN_SECONDS:g} s"
        )
    except JmsError as error:
        return Check(name=name, passed=False, detail=str(error))
    apart = None if message.timestamp is None else message.timestamp / 1000 - began
    clock = "" if apart is None else f"; the broker's clock differs by {apart:+.1f} s"
    passed = apart is None or abs(apart) <= CLOCK_SECONDS
    return Check(name=name, passed=passed, detail=f"{took * 1000:.0f} ms{clock}")
