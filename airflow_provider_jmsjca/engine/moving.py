"""Takes messages out of their destinations, never back to where they came from.

Where a broker refuses a copy, it is sent with less and less of the message.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final

from airflow_provider_jmsjca.core.copies.dead_letter import WAYS
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.redelivery import Move, MoveTarget, RedeliveryHandling
from airflow_provider_jmsjca.errors import (
    ConnectionLostError,
    JmsError,
    PermanentBrokerError,
    TransientBrokerError,
)
from airflow_provider_jmsjca.transports.base import BrokerInfo, Connection, UnitOfWork

_MOST_KNOWN: Final = 1000


def check_target(broker: BrokerInfo, target: Destination, source: Destination) -> None:
    """Refuse a target from which a copy would come back to where its message was received.

    Raises:
        ConfigurationError: The copy would come back.
    """
    broker.names.check_target(target, source, broker.product)


def target_of(broker: BrokerInfo, target: MoveTarget, source: Destination) -> Destination:
    """Return where a message from `source` is moved.

    Raises:
        ConfigurationError: `$` stands for a name that the broker doesn't take literally, the message would
            come back, or the result is no name.
    """
    found = target.destination(source)
    if "$" in target.name:
        broker.names.check_derived(found, source, broker.product)
    check_target(broker, found, source)
    return found


def check_handling(broker: BrokerInfo, handling: RedeliveryHandling, source: Destination) -> None:
    """Refuse redelivery handling with a move that can't be made.

    Raises:
        ConfigurationError: As of `target_of`.
    """
    for action in handling.actions:
        for target in action.all_targets if isinstance(action, Move) else ():
            target_of(broker, target, source)


def commit_with_fallback(
    connection: Connection, ways: range, fill: Callable[[UnitOfWork, int], None]
) -> JmsError | None:
    """Commit a unit of work in the first of several ways that the broker takes.

    Some brokers refuse a message no sooner than at the commit.

    Args:
        connection: Where.
        ways: Numbers of the ways, as of `core.copies.dead_letter.letters`. Beginning above 0 means that the
            connection was lost in those before.
        fill: Adds to a unit what it sends and settles, in the way of this number.

    Returns:
        Why the most faithful way was not taken; `None` if it was.

    Raises:
        PermanentBrokerError: The broker refuses all of them, this is what it said of the first; or none is
            left, for the connection was lost in each.
        ConfigurationError: Nothing can be sent in any way.
        TransientBrokerError: See `UnitOfWork.commit`.
    """
    if not ways:
        raise PermanentBrokerError("the connection was lost however little of it was sent")
    lost = ConnectionLostError("the connection was lost each time all of it was sent")
    refusal: JmsError | None = lost if ways.start else None
    for way in ways:
        unit = connection.unit()
        try:
            with rolled_back(unit):
                fill(unit, way)
            unit.commit()
        except PermanentBrokerError as error:
            refusal = refusal or error
        else:
            return refusal
    raise refusal or AssertionError("there is no way to do it")


@contextlib.contextmanager
def rolled_back(unit: UnitOfWork) -> Iterator[None]:
    """Roll the unit back if it can't be put together: its messages would stay part of it for ever."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, TransientBrokerError):
            unit.rollback()
        raise


class FailedDeadLetterSends:
    """How often a connection was lost with the dead letter of a message, for those of one process.

    Which way comes next is as in a listener: the same once more, for it may be chance, then less each time.
    At most 1,000 messages are known; the oldest is forgotten first.
    """

    def __init__(self) -> None:
        self._counts: OrderedDict[str, int] = OrderedDict()
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def counted(self, key: str) -> Iterator[range]:
        """Give the ways that are left for a message, none if all were tried; note how it comes out."""
        with self._lock:
            lost = self._counts.get(key, 0)
        try:
            yield range(max(lost - 1, 0), WAYS)
        except TransientBrokerError:
            with self._lock:
                self._counts[key] = lost + 1
                self._counts.move_to_end(key)
                while len(self._counts) > _MOST_KNOWN:
                    self._counts.popitem(last=False)
            raise
        with self._lock:
            self._counts.pop(key, None)
