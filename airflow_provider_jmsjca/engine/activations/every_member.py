"""A listener on each member of a distributed destination.

| event | effect |
|---|---|
| a member is lost | it reconnects with the usual pauses; the others continue |
| a member refuses permanently (credentials, missing queue) | it is logged and retried; the others continue |
| all members refuse permanently | the activation stops with that fault |
| a handler still runs with a message of a lost member | it keeps its slot; the message is redelivered |
| a handler stops the activation | every member stops, within one deadline |
"""

from __future__ import annotations

import functools
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta

from airflow_provider_jmsjca.core.activation import ActivationSpec
from airflow_provider_jmsjca.core.delivery.concurrency import ConcurrencyLimit, Permits
from airflow_provider_jmsjca.core.delivery.events import StopAsked
from airflow_provider_jmsjca.core.delivery.outage import ActivationState
from airflow_provider_jmsjca.core.options.choices import DistributedDestinationConnection
from airflow_provider_jmsjca.engine.activations.base import STOP_WITHIN, ActivationGroup
from airflow_provider_jmsjca.engine.activations.plain import PlainActivation
from airflow_provider_jmsjca.engine.delivering.settings import (
    BARE,
    ListenerContext,
    ListenerSettings,
    listener_settings,
)
from airflow_provider_jmsjca.engine.delivering.statistics import Counts, Statistics
from airflow_provider_jmsjca.engine.delivering.threaded.workers import Handler
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import ConnectFunction, Connection, ConnectionSettings
from airflow_provider_jmsjca.transports.members import limbo_name, member_settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One broker of several.

    Attributes:
        name: The broker's host and port, `broker-a:61613`.
        settings: How its listener consumes.
        connect: Opens a connection to it.
    """

    name: str
    settings: ListenerSettings
    connect: ConnectFunction


@dataclass(frozen=True, slots=True, kw_only=True)
class EveryMember:
    """Settings of a listener on each member.

    Attributes:
        settings: Settings of the whole activation.
        members: Settings of each member.
    """

    settings: ListenerSettings
    members: tuple[Member, ...]


def every_member(
    spec: ActivationSpec,
    connection: ConnectionSettings,
    context: ListenerContext = BARE,
    *,
    connect: Callable[[ConnectionSettings], Connection] = connect,
) -> EveryMember | None:
    """Return the settings of a listener on each member; `None` if the spec uses a single connection.

    Args:
        spec: The spec in force.
        connection: How to connect; each of its hosts is a member.
        context: The environment of the listener. Each member has its own counts in the store, and each
            message returns from limbo to its member.
        connect: Opens one connection.

    Raises:
        ConfigurationError: The spec requires something that a listener can't do, or a host is listed twice.

    Source: W12, W17, W46.
    """
    if spec.distributed_destination_connection is not DistributedDestinationConnection.EVERY_MEMBER:
        return None
    local = spec.replace(distributed_destination_connection=DistributedDestinationConnection.LOCAL_ONLY)
    one = listener_settings(local, context.over(connection))
    whole = replace(one, spec=spec)
    members = tuple(
        Member(
            name=name,
            settings=replace(
                whole,
                name=f"{whole.name} on {name}",
                client_id=each.client_id,
                url=each.url,
                jms_conn_id=limbo_name(whole.jms_conn_id, name) if whole.has_limbo else "",
            ),
            connect=functools.partial(connect, each),
        )
        for name, each in member_settings(connection).items()
    )
    return EveryMember(settings=whole, members=members)


# The first of these states that a member is in is the state of the whole.
_STATES = (
    ActivationState.UP,
    ActivationState.CONNECTING,
    ActivationState.DISCONNECTING,
    ActivationState.DOWN,
)


class _SharedConcurrencyLimit(ConcurrencyLimit):
    """Concurrency limit for machines in several threads."""

    def __init__(self, places: int, limit: int | None) -> None:
        super().__init__(places, limit)
        self._lock = threading.Lock()

    def join(self, wake: Callable[[], object]) -> Permits:
        with self._lock:
            return super().join(wake)

    def admit(self, share: Permits, *, unit: bool, message: bool) -> bool:
        with self._lock:
            return super().admit(share, unit=unit, message=message)

    def report(self, share: Permits, *, units: int, taken: int, settled: int, waiting: int) -> bool:
        with self._lock:
            return super().report(share, units=units, taken=taken, settled=settled, waiting=waiting)

    def withdraw(self, share: Permits) -> None:
        with self._lock:
            super().withdraw(share)


class _MemberConsuming(threading.Event):
    """Set while a member is consumed; keeps the event of the whole set while every member is consumed.

    Args:
        whole: The event of the whole.
        every: Events of the members; this one is appended.
    """

    _lock = threading.Lock()

    def __init__(self, whole: threading.Event, every: list[threading.Event]) -> None:
        super().__init__()
        self._whole = whole
        self._every = every
        every.append(self)

    def set(self) -> None:
        super().set()
        self._tell()

    def clear(self) -> None:
        super().clear()
        self._tell()

    def _tell(self) -> None:
        with self._lock:
            if all(each.is_set() for each in self._every):
                self._whole.set()
            else:
                self._whole.clear()


class EveryMemberActivation(ActivationGroup):
    """A listener on each member, used like one `Activation`.

    Concurrency and bounds apply to all members together: in serial mode one handler runs at a time,
    regardless of the member that sent its message. Members with a backlog take turns.

    Guarantee: that of `Activation`, for each member's messages. In-flight messages of a lost member are
    redelivered by that member once it is back.

    Args:
        settings: Result of `every_member`.
        handler: Called with each message, in a thread of its member's pool.
        clock: Monotonic seconds.
        chance: A random number, 0 up to but not including 1.

    Attributes:
        members: The activation of each member, by its name.
        consuming: Set while every member has confirmed the subscriptions.

    Raises:
        ConfigurationError: Attempts are to be recorded, and there is no store.

    Source: W12, W17, W46; J119-J121, W27.
    """

    def __init__(
        self,
        settings: EveryMember,
        handler: Handler,
        *,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._room: ConcurrencyLimit | None = None
        whole = threading.Event()
        every: list[threading.Event] = []
        self.members = {
            member.name: PlainActivation(
                member.settings,
                member.connect,
                handler,
                clock=clock,
                chance=chance,
                consuming=_MemberConsuming(whole, every),
                gives_up=self._all_refuse,
                on_stop=functools.partial(self._stop_others, member.name),
            )
            for member in settings.members
        }
        self._all = tuple(self.members.values())
        self.member_names = tuple(self.members)
        super().__init__(settings.settings, self._all, clock, whole)

    def _all_refuse(self) -> bool:
        return all(each.refusal is not None for each in self._all)

    def _stop_others(self, name: str, event: StopAsked) -> None:
        with self._lock:  # not during a start: members that haven't started yet can't be stopped
            for other, member in self.members.items():
                if other != name:
                    member.request_stop(event.within, reason=event.reason, delete_durable=False)

    @property
    def ready(self) -> bool:
        """Whether a member consumes, and all were tried."""
        return all(each.answered for each in self._all) and any(each.ready for each in self._all)

    @property
    def states(self) -> dict[str, ActivationState]:
        """The state of each member by its name. Source: J119."""
        return {name: member.state for name, member in self.members.items()}

    @property
    def state(self) -> ActivationState:
        """Up if a member is up; else Connecting, Disconnecting or Down, the first that applies to a member.

        Source: J119.
        """
        found = set(self.states.values())
        return next(state for state in _STATES if state in found)

    @property
    def down(self) -> tuple[str, ...]:
        """The members that aren't up."""
        return tuple(name for name, state in self.states.items() if state is not ActivationState.UP)

    @property
    def server_type(self) -> str:
        """Product names of the brokers; empty until the first connection. Source: J115."""
        return ",".join(dict.fromkeys(each.server_type for each in self._all if each.server_type))

    @property
    def server(self) -> tuple[str, str]:
        """Hosts and ports of the connections, separated by commas. Source: J120."""
        found = [each.server for each in self._all if each.server_type]
        return ",".join(host for host, _ in found), ",".join(port for _, port in found)

    @property
    def counts(self) -> Counts:
        """Counts of the messages of all members since the last start."""
        return sum((each.counts for each in self._all), Counts())

    def statistics_by_part(self) -> dict[str, Statistics]:
        """Return a snapshot of each member by its name."""
        return {name: member.statistics() for name, member in self.members.items()}

    def attributes(self) -> dict[str, object]:
        """Return the attributes of JMSJCA's MBean, and the state of each member. Source: J117."""
        states = {name: str(state) for name, state in self.states.items()}
        return super().attributes() | {"Members": states}

    def begin(
        self, limit: int | None = None, *, stop_within: timedelta = timedelta(seconds=STOP_WITHIN)
    ) -> None:
        """Start like `start`, within bounds that apply to all members; members still running continue.

        Args:
            limit: Settle at most this many messages; `None`: no limit.
            stop_within: Time that running handlers get when one of them requests a stop.

        Raises:
            ConfigurationError: A member is already running, and a limit is given.
        """
        with self._lock:
            if self.running and limit is not None:
                raise ConfigurationError(
                    f"{self.settings.name} runs already; stop it, to let it run with a limit"
                )
            if self._room is None or not self.running:
                self._room = _SharedConcurrencyLimit(self.settings.delivery.concurrency, limit)
            for each in self._all:
                each.begin(room=self._room, stop_within=stop_within)

    def quiet_since(self) -> float | None:
        """Return the time of the last activity, on the clock; `None` while active, or if no member is up."""
        if not all(each.answered and each.is_idle() for each in self._all):
            return None
        quiet: list[float] = []
        for each in self._all:
            since = each.quiet_since()
            if since is not None:
                quiet.append(since)
            elif (
                each.opening or each.state is ActivationState.UP
            ):  # it has only just connected, and its messages may be about to arrive
                return None
        return max(quiet, default=None)
