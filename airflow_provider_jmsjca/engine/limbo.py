"""Sends what is due in limbo, over whichever connection each message names.

Guarantee: no message is sent before it is due, none is lost, and two processes never send the same one at
once. A process killed between the broker's confirmation and the store's leaves messages that are sent once
more when its lease is over; Artemis drops those by their ids. A process that stands still for longer than its
lease may also send what another has sent since.

Source: P12-P18.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import uuid
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.failure import Failure
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.engine.session.connection import JmsConnection
from airflow_provider_jmsjca.errors import (
    ConfigurationError,
    JmsError,
    PermanentBrokerError,
    TransientStoreError,
)
from airflow_provider_jmsjca.store.base import Limbo, LimboMessage, Store
from airflow_provider_jmsjca.transports.base import Outgoing

LEASE: Final = timedelta(seconds=60)
"""How long messages belong to whoever is sending them."""

EVERY: Final = timedelta(seconds=1)
"""How often to look for what is due."""

_SWEEP_EVERY = timedelta(minutes=10)

_AT_ONCE = 100
_RETRY = timedelta(seconds=1)
_RESTS = tuple(timedelta(seconds=each) for each in (1, 2, 5, 10))

_NOTED_AT_ONCE = 50
_Group = list[tuple[LimboMessage, Outgoing]]
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Released:
    """What a round has done: how many messages were sent, and how many failed for good."""

    sent: int = 0
    failed: int = 0


class LimboSender:
    """Sends the messages of a limbo that are due; for one thread.

    A call opens each connection once, unless the broker refuses a message or the connection is lost.

    Args:
        limbo: Where they are.
        connect: Opens a connection, given the name that a message has for it.
        lease: How long messages belong to this sender, once it began to send them.
        clock: Says what time it is.
    """

    def __init__(
        self,
        limbo: Limbo,
        connect: Callable[[str], AbstractContextManager[JmsConnection]],
        *,
        lease: timedelta = LEASE,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._limbo = limbo
        self._connect = connect
        self._lease = lease
        self._clock = clock
        self._owner = f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex}"
        self._outages: dict[str, tuple[int, datetime]] = {}
        self._held: dict[str, tuple[JmsConnection, contextlib.ExitStack]] = {}
        # Sent, while the store could not be told.
        self._unnoted: list[int] = []

    def send_due(self) -> Released:
        """Send all that is due; what a connection that can't be used was to send is left for a later round.

        Raises:
            TransientStoreError: The store can't be used now. What was sent and could not be noted is noted
                first by the next call; only another sender, once the lease is over, sends it again.
        """
        done = Released()
        try:
            self._note_sent([], done)
            self._send_all_due(done)
        finally:
            for name in list(self._held):
                self._let_go(name)
        return done

    def _send_all_due(self, done: Released) -> None:
        while True:
            now = self._clock()
            resting = {name for name, (_, until) in self._outages.items() if until > now}
            leased = self._limbo.lease(
                now, owner=self._owner, until=now + self._lease, limit=_AT_ONCE, leave=resting
            )
            if not leased:
                return
            of_connection: defaultdict[str, list[LimboMessage]] = defaultdict(list)
            for message in leased:
                of_connection[message.jms_conn_id].append(message)
            for name, messages in of_connection.items():
                self._send_over(name, messages, done)

    def _send_over(self, name: str, messages: Sequence[LimboMessage], done: Released) -> None:
        readable = self._read(messages, done)
        left = deque([readable] if readable else [])
        try:
            while left:
                if self._send_until_refused(self._hold(name), left, done):
                    self._let_go(name)  # for a broker may end the one on which it refused something
        except TransientStoreError:
            raise
        except JmsError as error:
            self._let_go(name)
            outages = self._outages.get(name, (0, None))[0]
            rest = _RESTS[min(outages, len(_RESTS) - 1)]
            self._outages[name] = outages + 1, self._clock() + rest
            _log.warning(
                "Messages in limbo wait for the connection %r, which is tried again in %d s: %s",
                name,
                rest.total_seconds(),
                error,
            )
            self._limbo.give_back(self._owner, [each.number for each, _ in readable])
        else:
            self._outages.pop(name, None)

    def _hold(self, name: str) -> JmsConnection:
        """Return the connection of this call; open it, if there is none."""
        if name not in self._held:
            with contextlib.ExitStack() as opened:
                connection = opened.enter_context(self._connect(name))
                self._held[name] = connection, opened.pop_all()
        return self._held[name][0]

    def _let_go(self, name: str) -> None:
        _, opened = self._held.pop(name, (None, None))
        if opened is None:
            return
        try:
            opened.close()
        except JmsError as error:  # all that was sent over it is confirmed
            _log.warning("The connection %r of limbo could not be closed: %s", name, error)

    def _read(self, messages: Sequence[LimboMessage], done: Released) -> _Group:
        found: _Group = []
        contents = self._limbo.contents([each.number for each in messages])
        for each in messages:
            match contents.get(each.number):
                case None:  # purged, after its lease was over
                    pass
                case JmsMessage() as message:
                    try:
                        target = Destination.parse(each.destination)
                    except ConfigurationError as error:
                        self._failed(each, error, done, for_good=True)
                    else:
                        found.append((each, Outgoing(destination=target, message=message)))
                case error:
                    self._failed(each, error, done, for_good=True)
        return found

    def _send_until_refused(self, connection: JmsConnection, left: deque[_Group], done: Released) -> bool:
        """Send groups and take them from the list; one that is refused is split, or its message has failed.

        Returns:
            Whether the broker refused one; the others are left then.

        Raises:
            JmsError: The connection can't be used now.
        """
        if not (connection.capabilities.atomic_commit or connection.capabilities.deduplicating_send):
            # Of a group that is refused nobody knows what is there.
            groups = [[each] for group in left for each in group]
            left.clear()
            left.extend(groups)
        sent: list[int] = []
        try:
            while left:
                group = left[0]
                refusal = _refusal(connection, group)
                left.popleft()
                if refusal is None:
                    sent += [each.number for each, _ in group]
                    if len(sent) >= _NOTED_AT_ONCE:
                        self._note_sent(sent, done)
                        sent = []
                    continue
                if len(group) == 1:
                    self._failed(group[0][0], refusal, done)
                else:
                    half = len(group) // 2
                    left.extendleft([group[half:], group[:half]])
                return True
            return False
        finally:
            self._note_sent(sent, done)

    def _note_sent(self, numbers: Sequence[int], done: Released) -> None:
        self._unnoted += numbers
        if not self._unnoted:
            return
        noted = self._limbo.sent(self._owner, self._unnoted)
        numbers, self._unnoted = self._unnoted, []
        if noted < len(numbers):
            _log.warning(
                "%d messages of limbo took longer to send than %d s: others may have sent them too",
                len(numbers) - noted,
                self._lease.total_seconds(),
            )
        done.sent += len(numbers)

    def _failed(
        self, message: LimboMessage, error: JmsError, done: Released, *, for_good: bool = False
    ) -> None:
        failure = Failure.of(error, with_trace=False)
        again = not for_good and message.tries + 1 < message.most_tries
        due_at = self._clock() + _RETRY if again else None
        self._limbo.give_back(self._owner, [message.number], due_at=due_at, failure=failure)
        if again:
            return
        done.failed += 1
        _log.error(
            "Message %d in limbo can't be sent to %s and stays there (airflow jms limbo revive tries again): "
            "%s",
            message.number,
            message.destination,
            error,
        )


class StoreUpkeep:
    """What has to be done for a store, by whoever runs all the time; for one thread.

    Args:
        store: It.
        connect: As of `LimboSender`.
        clock: Says what time it is.
    """

    def __init__(
        self,
        store: Store,
        connect: Callable[[str], AbstractContextManager[JmsConnection]],
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._store = store
        self._clock = clock
        self._sender = LimboSender(store.limbo, connect, clock=clock)
        self._next_sweep = clock()

    def round(self) -> Released:
        """Send all that is due in limbo, and now and then drop attempts and ids that are too many or too old.

        Raises:
            TransientStoreError: As of `LimboSender.send_due`.
        """
        done = self._sender.send_due()
        now = self._clock()
        if now >= self._next_sweep:
            self._next_sweep = now + _SWEEP_EVERY
            self._store.attempts.sweep(now)
            self._store.handled.sweep(now)
        return done


def _refusal(connection: JmsConnection, group: _Group) -> JmsError | None:
    """Send these; return why the broker refuses one of them, `None` if it has them all."""
    if connection.capabilities.deduplicating_send:
        for each, outgoing in group:
            outgoing.deduplication_id = f"limbo/{each.put_at.timestamp():.3f}/{each.number}"
    try:
        with connection.session(transacted=connection.capabilities.atomic_commit) as session:
            session.send_all(outgoing for _, outgoing in group)
            if session.transacted:
                session.commit()
    except (PermanentBrokerError, ConfigurationError) as error:
        return error
    return None
