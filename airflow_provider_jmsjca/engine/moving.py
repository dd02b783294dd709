"""Moves messages to other destinations, never back to their source.

If a broker refuses the copy of a message, smaller copies are tried.
"""

from __future__ import annotations

import contextlib
import functools
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
from airflow_provider_jmsjca.transports.base import BrokerInfo, Received, UnitOfWork

_MOST_KNOWN: Final = 1000


@functools.lru_cache(maxsize=1024)
def check_target(broker: BrokerInfo, target: Destination, source: Destination) -> None:
    """Refuse a target from which the copy would return to the source of its message.

    Cached: listeners check the same targets again for each message.

    Raises:
        ConfigurationError: The copy would return.
    """
    broker.names.check_target(target, source, broker.product)


def target_of(broker: BrokerInfo, target: MoveTarget, source: Destination) -> Destination:
    """Return the destination to which a message from `source` is moved.

    Raises:
        ConfigurationError: The target contains `$`, which stands for the source's name, and the broker
            doesn't read this name literally. Or the message would return to its source. Or the result isn't a
            valid name.
    """
    found = target.destination(source)
    if "$" in target.name:
        broker.names.check_derived(found, source, broker.product)
    check_target(broker, found, source)
    return found


def check_handling(broker: BrokerInfo, handling: RedeliveryHandling, source: Destination) -> None:
    """Refuse redelivery handling with an impossible move.

    Raises:
        ConfigurationError: A move has an impossible target; see `target_of`.
    """
    for action in handling.actions:
        for target in action.all_targets if isinstance(action, Move) else ():
            target_of(broker, target, source)


def commit_with_fallback(
    received: Received, ways: range, fill: Callable[[UnitOfWork, int], None]
) -> JmsError | None:
    """Commit a unit of work with the most complete form of a copy that the broker accepts.

    Some brokers refuse a message only at the commit.

    Args:
        received: The message to settle.
        ways: Numbers of the forms, as in `core.copies.dead_letter.send_letter`. A start above 0 means that
            the connection was lost with the earlier forms.
        fill: Adds the sends for the form with this number to the unit of work, which already settles the
            message.

    Returns:
        Why the first form, the most complete one, was not used; `None` if it was.

    Raises:
        PermanentBrokerError: The broker refused all forms (this is the first refusal), or the connection was
            lost with each of them.
        ConfigurationError: No form can be sent.
        TransientBrokerError: See `UnitOfWork.commit`.
    """
    if not ways:
        raise PermanentBrokerError(
            "the connection was lost each time a copy of the message was sent, even the shortest one"
        )
    lost = ConnectionLostError("the connection was lost each time the complete message was sent")
    refusal: JmsError | None = lost if ways.start else None
    for way in ways:
        unit = received.unit()
        try:
            with rolled_back(unit):
                unit.acknowledge(received)
                fill(unit, way)
            unit.commit()
        except PermanentBrokerError as error:
            refusal = refusal or error
        else:
            return refusal
    raise refusal or AssertionError("there is no way to do it")


@contextlib.contextmanager
def rolled_back(unit: UnitOfWork) -> Iterator[None]:
    """Roll a unit of work back if the block raises; otherwise its messages would stay in it forever."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, TransientBrokerError):
            unit.rollback()
        raise


class FailedDeadLetterSends:
    """Counts connections lost while sending the dead letter of a message, in one process.

    As in a listener, the first loss repeats the same form, because it may be chance; each later loss selects
    a smaller form. Counts are kept for at most 1,000 messages; the oldest are forgotten first.
    """

    def __init__(self) -> None:
        self._counts: OrderedDict[str, int] = OrderedDict()
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def counted(self, key: str) -> Iterator[range]:
        """Yield the numbers of the versions of a message to send in the block; later ones have fewer parts.

        From the second connection lost in such a block on, the range starts with a less complete version. It
        is empty if all versions were tried. After a block without an error, it starts with the complete one.

        Args:
            key: Identifies the message.
        """
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
