"""Sends due messages of limbo, each over the connection that it names.

Guarantee: no message is sent before it is due, no message is lost, and two processes never send the same
message at once. A process may be killed between the broker's confirmation and the store's. Then another
process takes over its messages when the lease expires. On brokers with transactions and selectors, send
markers (`engine.send_markers`) show whether the broker already has the messages. Artemis drops duplicates. On
other brokers the messages are sent again. A process that is suspended for longer than its lease may also send
messages a second time.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import uuid
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from airflow_provider_jmsjca.core.configuration.destination_options import read_text
from airflow_provider_jmsjca.core.failure import Failure
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.engine import send_markers
from airflow_provider_jmsjca.engine.session.connection import JmsConnection
from airflow_provider_jmsjca.errors import (
    ConfigurationError,
    InDoubtError,
    JmsError,
    PermanentBrokerError,
    TransientStoreError,
)
from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.store.base import PRIVATE, Limbo, LimboMessage, Store, stored_name
from airflow_provider_jmsjca.transports.base import ConnectionSettings, Outgoing

LEASE: Final = timedelta(seconds=60)
"""Duration of a process's lease on the messages that it is going to send."""

EVERY: Final = timedelta(seconds=1)
"""Interval at which due messages are sent."""

_SWEEP_EVERY: Final = timedelta(minutes=10)
_ENDING_SECONDS: Final = 3.0

_AT_ONCE = 100
_RETRY = timedelta(seconds=1)
_PAUSES = tuple(timedelta(seconds=each) for each in (1, 2, 5, 10))

_NOTED_AT_ONCE = 50
# A sender removes its send markers at this number, because ActiveMQ applies a selector only to the first 200
# messages of a queue.
_MOST_SEND_MARKERS = 50
_Group = list[tuple[LimboMessage, Outgoing]]
_log = safe_logger(__name__)


@dataclass(slots=True)
class SendResult:
    """Result of a call of `send_due`: the number of messages sent, and of those that failed permanently."""

    sent: int = 0
    failed: int = 0


class LimboSender:
    """Sends due messages of a limbo; for one thread.

    A call of `send_due` opens each connection once, unless the broker refuses a message or the connection is
    lost.

    Args:
        limbo: The limbo.
        connect: Opens a connection by its name in limbo.
        connections: Names of the connections to use; `None`: all except private ones.
        lease: Duration of the sender's lease on the messages that it is going to send.
        clock: The clock of the store, for leases and due times; `None`: `Limbo.now`.
    """

    def __init__(
        self,
        limbo: Limbo,
        connect: Callable[[str], AbstractContextManager[JmsConnection]],
        *,
        connections: Collection[str] | None = None,
        lease: timedelta = LEASE,
        clock: Callable[[], datetime] | None = None,
    ) -> None:
        self._limbo = limbo
        self._connect = connect
        self._connections = connections
        self._lease = lease
        self._clock = limbo.now if clock is None else clock
        # Time at which `send_due` last read the clock; precise enough for the pauses of connections.
        self._now = datetime.fromtimestamp(0, UTC)
        self._owner = uuid.uuid4().hex
        self._outages: dict[str, tuple[int, datetime]] = {}
        self._open_connections: dict[str, tuple[JmsConnection, contextlib.ExitStack]] = {}
        # Numbers of messages that are sent, but not yet recorded as sent in the store.
        self._unrecorded: list[int] = []
        # By connection: number of send markers at the broker; end of the time without send markers, after a
        # refusal. And the connections whose expired send markers were removed.
        self._send_markers: Counter[str] = Counter()
        self._marker_refusals: dict[str, datetime] = {}
        self._cleaned: set[str] = set()
        # Whether leased messages may have been sent, because a connection was lost during the send.
        self._in_doubt = False
        # Messages that were refused together with a send marker. The marker may be the cause, so they are
        # sent once more without one.
        self._refused_with_marker: dict[int, JmsError] = {}

    def send_due(self) -> SendResult:
        """Send due messages; those of an unavailable connection stay for a later call.

        Raises:
            TransientStoreError: The store is unavailable. The next call first records the messages that this
                call has sent but not recorded. If the lease expires earlier, another sender takes them over.
        """
        done = SendResult()
        try:
            self._record_sent([], done)
            self._renew_owner()
            self._take_over(done)
            self._send_all_due(done)
            for name in list(self._open_connections):
                self._remove_own_markers(name, least=1)
        finally:
            for name in list(self._open_connections):
                self._close_connection(name)
        return done

    def _renew_owner(self) -> None:
        """Lease messages under a new owner name from now on.

        So a send marker with the old owner name lists only messages that were leased under that name.
        """
        self._owner = uuid.uuid4().hex
        self._send_markers.clear()
        self._in_doubt = False

    def _take_over(self, done: SendResult) -> None:
        """Take over messages of killed senders: record the sent messages, and end the lease of the others.

        Send markers show which messages were sent. On a broker without send markers, the lease of every
        message ends, and sent messages are sent again. A broker that drops duplicates ignores the repetition.

        Args:
            done: The result, to which recorded messages are added.
        """
        now = self._now = self._clock()
        found = self._limbo.take_over(
            now, until=now + self._lease, leave=self._pausing(now), connections=self._connections
        )
        for owner, messages in found.items():
            for name, numbers in _by_connection(messages).items():
                try:
                    if self._uses_send_markers(name):
                        self._apply_markers(name, owner, done)
                except TransientStoreError:
                    raise
                except JmsError as error:
                    self._record_outage(name, error)
                else:
                    self._limbo.give_back(owner, [each.number for each in numbers])

    def _apply_markers(self, name: str, owner: str, done: SendResult | None = None) -> None:
        """Record messages named by an owner's send markers as sent, and remove the markers from the broker.

        If the broker refuses this, send markers are not used on the connection for a while.

        Args:
            name: Name of the connection in limbo.
            owner: Owner of the leases that the send markers name.
            done: The result, to which the messages are added; `None`: they are counted already.
        """

        def note(numbers: list[int]) -> None:
            sent = self._limbo.sent(owner, numbers)
            if done is not None:
                done.sent += sent

        try:
            send_markers.apply_markers(self._connection(name), owner, note)
            if name not in self._cleaned:
                send_markers.remove_expired(self._connection(name), self._now)
                self._cleaned.add(name)
        except (PermanentBrokerError, ConfigurationError) as error:
            self._close_connection(name)
            self._disable_markers(name, error)

    def _disable_markers(self, name: str, error: JmsError) -> None:
        self._marker_refusals[name] = self._now + _SWEEP_EVERY
        _log.warning(
            "The user of connection %r has no access to %s, so a crash may send messages of limbo twice. "
            "Grant it read and write access: %s",
            name,
            send_markers.SEND_MARKERS,
            error,
        )

    def _uses_send_markers(self, name: str) -> bool:
        until = self._marker_refusals.get(name)
        return (until is None or until <= self._now) and send_markers.supports_markers(self._connection(name))

    def _remove_own_markers(self, name: str, *, least: int) -> None:
        """Remove this sender's own send markers from the broker if there are at least `least`.

        If the connection fails, it is not used again until a pause is over.
        """
        if self._send_markers[name] < least:
            return
        try:
            self._apply_markers(name, self._owner)
        except TransientStoreError:
            raise
        except JmsError as error:
            self._record_outage(name, error)
        else:
            self._send_markers[name] = 0

    def _pausing(self, now: datetime) -> set[str]:
        return {name for name, (_, until) in self._outages.items() if until > now}

    def _record_outage(self, name: str, error: JmsError) -> None:
        self._close_connection(name)
        outages = self._outages.get(name, (0, None))[0]
        rest = _PAUSES[min(outages, len(_PAUSES) - 1)]
        self._outages[name] = outages + 1, self._now + rest
        _log.warning(
            "Messages in limbo wait for the connection %r; next attempt in %d s: %s",
            name,
            rest.total_seconds(),
            error,
        )

    def _send_all_due(self, done: SendResult) -> None:
        while True:
            now = self._now = self._clock()
            leased = self._limbo.lease(
                now,
                owner=self._owner,
                until=now + self._lease,
                limit=_AT_ONCE,
                leave=self._pausing(now),
                connections=self._connections,
            )
            if not leased:
                return
            for name, messages in _by_connection(leased).items():
                self._send_over(name, messages, done)
            if self._in_doubt:
                self._renew_owner()

    def _send_over(self, name: str, messages: Sequence[LimboMessage], done: SendResult) -> None:
        readable = self._read(messages, done)
        left = deque([readable] if readable else [])
        try:
            while left:
                if self._send_until_refused(name, left, done):
                    self._close_connection(name)  # a broker may close the connection after a refusal
        except TransientStoreError:
            raise
        except JmsError as error:
            # If the outcome of the send is unknown, the lease is kept. A later sender then learns from the
            # send marker whether the broker has the messages.
            doubtful = isinstance(error, InDoubtError) and self._send_markers[name] > 0
            self._record_outage(name, error)
            kept = {each.number for each, _ in left[0]} if doubtful else set()
            self._limbo.give_back(
                self._owner, [each.number for each, _ in readable if each.number not in kept]
            )
            self._in_doubt |= doubtful
        else:
            self._outages.pop(name, None)
            self._remove_own_markers(name, least=_MOST_SEND_MARKERS)

    def _connection(self, name: str) -> JmsConnection:
        """Return the connection with this name, which stays open during a call of `send_due`."""
        if name not in self._open_connections:
            with contextlib.ExitStack() as opened:
                connection = opened.enter_context(self._connect(name))
                self._open_connections[name] = connection, opened.pop_all()
        return self._open_connections[name][0]

    def _close_connection(self, name: str) -> None:
        _, opened = self._open_connections.pop(name, (None, None))
        if opened is None:
            return
        try:
            opened.close()
        except JmsError as error:  # harmless: the broker has confirmed all messages sent over the connection
            _log.warning("Limbo could not close the connection %r: %s", name, error)

    def _read(self, messages: Sequence[LimboMessage], done: SendResult) -> _Group:
        found: _Group = []
        contents = self._limbo.contents([each.number for each in messages])
        for each in messages:
            match contents.get(each.number):
                case None:  # purged after its lease expired
                    pass
                case JmsMessage() as message:
                    try:
                        target = read_text(each.destination)
                    except ConfigurationError as error:
                        self._failed(each, error, done, is_permanent=True)
                    else:
                        found.append((each, Outgoing(destination=target, message=message)))
                case error:
                    self._failed(each, error, done, is_permanent=True)
        return found

    def _send_until_refused(self, name: str, left: deque[_Group], done: SendResult) -> bool:
        """Send groups of messages in order, and remove each sent group from `left`.

        A refused group is replaced by its halves. A refused group of one message is removed, and the attempt
        at this message counts as failed.

        Returns:
            Whether the broker refused a group; later groups stay in `left` then.

        Raises:
            JmsError: The connection is unavailable.
        """
        connection, uses_markers = self._connection(name), self._uses_send_markers(name)
        if not (connection.capabilities.atomic_commit or connection.capabilities.deduplicating_send):
            # Without transactions and deduplication, messages are sent one by one: after the refusal of a
            # group, it would be unknown which of its messages the broker has.
            groups = [[each] for group in left for each in group]
            left.clear()
            left.extend(groups)
        sent: list[int] = []
        try:
            while left:
                group = left[0]
                number = group[0][0].number
                blamed = self._refused_with_marker.pop(number, None)
                with_marker = uses_markers and blamed is None
                if with_marker:
                    self._send_markers[name] += 1
                refusal = _refusal(connection, group, self._owner if with_marker else None)
                if with_marker and refusal is not None:
                    self._send_markers[name] -= 1
                if refusal is not None and with_marker and len(group) == 1:
                    self._refused_with_marker[number] = refusal
                    return True
                left.popleft()
                if refusal is None and uses_markers and blamed is not None:
                    uses_markers = False
                    self._disable_markers(name, blamed)
                if refusal is None:
                    sent += [each.number for each, _ in group]
                    if len(sent) >= _NOTED_AT_ONCE:
                        self._record_sent(sent, done)
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
            self._record_sent(sent, done)

    def _record_sent(self, numbers: Sequence[int], done: SendResult) -> None:
        self._unrecorded += numbers
        if not self._unrecorded:
            return
        noted = self._limbo.sent(self._owner, self._unrecorded)
        numbers, self._unrecorded = self._unrecorded, []
        if noted < len(numbers):
            _log.warning(
                "Sending %d messages from limbo took longer than %d s; another process may have sent them "
                "too",
                len(numbers) - noted,
                self._lease.total_seconds(),
            )
        done.sent += len(numbers)

    def _failed(
        self, message: LimboMessage, error: JmsError, done: SendResult, *, is_permanent: bool = False
    ) -> None:
        failure = Failure.of(error, with_trace=False)
        again = not is_permanent and message.tries + 1 < message.most_tries
        due_at = self._clock() + _RETRY if again else None
        self._limbo.give_back(self._owner, [message.number], due_at=due_at, failure=failure)
        if again:
            return
        done.failed += 1
        _log.error(
            "Message %d can't be sent to %s and stays in limbo (retry: airflow jms limbo revive): %s",
            message.number,
            message.destination,
            error,
        )


class StoreUpkeep:
    """Periodic maintenance of a store by a long-running process; for one thread.

    Args:
        store: The store.
        connect: Opens a connection by its name in limbo.
        connections: Names of the connections to use; `None`: all except private ones.
        clock: The clock of the store, for leases and due times; `None`: `Limbo.now`.
    """

    def __init__(
        self,
        store: Store,
        connect: Callable[[str], AbstractContextManager[JmsConnection]],
        *,
        connections: Collection[str] | None = None,
        clock: Callable[[], datetime] | None = None,
    ) -> None:
        self._store = store
        self._clock = store.limbo.now if clock is None else clock
        self._sender = LimboSender(store.limbo, connect, connections=connections, clock=clock)
        self._next_sweep: datetime | None = None

    def round(self) -> SendResult:
        """Send due messages of limbo; every ten minutes, delete surplus and expired attempts and ids.

        Raises:
            TransientStoreError: The store is unavailable; see `LimboSender.send_due`.
        """
        done = self._sender.send_due()
        now = self._clock()
        if self._next_sweep is None or now >= self._next_sweep:
            self._next_sweep = now + _SWEEP_EVERY
            self._store.attempts.sweep(now)
            self._store.handled.sweep(now)
        return done


@contextlib.contextmanager
def maintained(
    open_store: Callable[[], AbstractContextManager[Store]],
    connect: Callable[[str], AbstractContextManager[JmsConnection]],
    *,
    connections: Collection[str] | None = None,
    wanted: Callable[[], bool] = lambda: True,
) -> Iterator[None]:
    """Maintain a store in a thread until the block ends.

    A thread calls `StoreUpkeep.round` periodically. The end of the block waits at most 3 seconds for a call
    under way. A longer call keeps its leases, so no other process sends its messages.

    Args:
        open_store: Opens the store in that thread. Errors are logged and retried.
        connect: Opens a connection by its name in limbo.
        connections: Names of the connections to use; `None`: all except private ones.
        wanted: Called after each round; if it returns `False`, the thread ends early.
    """
    stopped = threading.Event()
    upkeep_of = functools.partial(StoreUpkeep, connect=connect, connections=connections)
    thread = threading.Thread(
        target=_maintain, args=(open_store, upkeep_of, wanted, stopped), name="jms-limbo", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(_ENDING_SECONDS)


def _maintain(
    open_store: Callable[[], AbstractContextManager[Store]],
    upkeep_of: Callable[[Store], StoreUpkeep],
    wanted: Callable[[], bool],
    stopped: threading.Event,
) -> None:
    with contextlib.ExitStack() as opened:
        upkeep: StoreUpkeep | None = None
        reported = ""
        while True:
            try:
                if upkeep is None:
                    upkeep = upkeep_of(opened.enter_context(open_store()))
                upkeep.round()
                reported = ""
            except JmsError as error:
                if str(error) != reported:
                    reported = str(error)
                    _log.error("Sending from limbo is blocked by an error: %s", error)
            except Exception:  # noqa: BLE001 - the outermost edge of this thread
                _log.exception("Sending from limbo failed; retrying")
            if stopped.wait(EVERY.total_seconds()) or not wanted():
                return


def private_name(connection: ConnectionSettings) -> str:
    """Return the name under which limbo keeps the messages of a connection that isn't in Airflow.

    Processes that connect to the same broker as the same user share the name.
    """
    name = connection.url
    if connection.virtual_host is not None:
        name += f" host {connection.virtual_host}"
    if connection.username is not None:
        name += f" as {connection.username}"
    return PRIVATE + stored_name(name)


def _by_connection(messages: Iterable[LimboMessage]) -> dict[str, list[LimboMessage]]:
    found: defaultdict[str, list[LimboMessage]] = defaultdict(list)
    for each in messages:
        found[each.jms_conn_id].append(each)
    return found


def _refusal(connection: JmsConnection, group: _Group, owner: str | None) -> JmsError | None:
    """Send a group; return the broker's refusal, or `None` if it accepted all messages.

    Args:
        connection: The connection.
        group: Messages to send.
        owner: Owner of the leases, for the send marker; `None`: send no marker.
    """
    for each, outgoing in group:
        # Each try uses the same id, so that consumers can detect duplicates.
        outgoing.message_id = f"limbo/{each.put_at.timestamp():.3f}/{each.number}"
        if connection.capabilities.deduplicating_send:
            outgoing.deduplication_id = outgoing.message_id
    try:
        with connection.session(transacted=connection.capabilities.atomic_commit) as session:
            session.send_all(outgoing for _, outgoing in group)
            if owner is not None:
                session.send_all([send_markers.send_marker(owner, [each.number for each, _ in group])])
            if session.transacted:
                session.commit()
    except (PermanentBrokerError, ConfigurationError) as error:
        return error
    return None
